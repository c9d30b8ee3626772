//! Messages between ranks: items, watermarks and barriers, the owners of keys, and questions about state.
//!
//! - Every rank runs the same graph. A key has one owner, which all ranks compute alike.
//! - A barrier lies between the items before a checkpoint and those behind it, on each channel.
//!
//! This folder does not know the stages that write and read messages, nor how these travel: that is the crate
//! `millstream-exchange`.

pub mod asking;
pub mod long_messages;
pub mod message;
pub mod outbox;
pub mod outlets;
pub mod owners;
pub mod plain;
pub mod references;
pub mod unpark;
