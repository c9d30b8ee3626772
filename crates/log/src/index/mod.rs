//! The sparse index of a group, kept beside its file: `<group>.index`.
//!
//! A series of *entries*. An entry says what held at a position of the group: the offset that comes
//! there, the largest timestamp before it, up to where all transactions have ended, the state of
//! those producers that appended since the entry before (at the group's start: of all), and which
//! transactions were aborted since. There is one at the start of each segment and
//! one every 64 KiB in it. An entry is written only after the group's file is synced up to its
//! position, so a file that is shorter than its last entry has lost data.
//!
//! The header names the group, and each entry has a fingerprint of the group's file: an index or a file
//! that was copied from another group is found at the start.
//!
//! The index is never synced and holds nothing that the group's file does not tell: where it is
//! missing or torn, the file is read instead.

pub mod entry;
pub mod file;
pub mod format;
pub mod sparse;
