//! The sparse index of a group, kept beside its file: `<group>.index`.
//!
//! A series of *marks*. A mark says what held at a position of the group: the offset that comes
//! there, the largest timestamp before it, up to where all transactions have ended, the state of
//! those producers that appended since the mark before (at the group's start: of all), and which
//! transactions were aborted since. There is one at the start of each segment and
//! one every 64 KiB in it. A mark is written only after the group's file is synced up to its
//! position, so a file that is shorter than its last mark has lost data.
//!
//! The header names the group, and each mark has a fingerprint of the group's file: an index or a file
//! that was copied from another group is found at the start.
//!
//! The index is never synced and holds nothing that the group's file does not tell: where it is
//! missing or torn, the file is read instead.

pub mod entry;
pub mod file;
pub mod format;
pub mod places;
