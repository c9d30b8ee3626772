//! The streams and partitions of a log, as its users hold them.
//!
//! A handle is a stream or a partition with the state of the log. It stays valid when the stream is deleted: its calls fail
//! then. Handles know how chunks are appended and read, and neither how a log is opened nor how streams are made.

pub mod holds;
pub mod info;
pub mod key_history;
pub mod key_watch;
pub mod keys;
pub mod partition;
pub mod partition_reads;
pub mod readers;
pub mod secondary;
pub mod stream;
pub mod transactions;
pub mod watch;
