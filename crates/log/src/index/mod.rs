//! The sparse index of a group, in a file beside the group's: `<group>.index`.
//!
//! A series of *entries*. An [`entry`] holds the state at a position of the group: the offset of the chunk that begins there,
//! the largest timestamp before it, the offset before which all transactions have ended, the states of the producers that
//! appended since the entry before (at the group's start: of all), and the transactions that were aborted since. There is an
//! entry at the start of each segment and every 64 KiB in it. An entry is written only after the group's file is synced up to
//! its position, so a file that is shorter than its last entry has lost data.
//!
//! The header names the group, and each entry has a fingerprint of the group's file: so the start finds an index or a file
//! that was copied from another group.
//!
//! The index is never synced, and recovery can make all of it from the group's file: where the index is missing or torn, the
//! file is read instead. For readers a [`sparse`] index in memory holds the entries without the producers.
//!
//! The index knows neither the group's memory nor when it is written.

pub mod entry;
pub mod file;
pub mod format;
pub mod sparse;
