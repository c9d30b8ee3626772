//! The manifest: the list of all files of groups and of the journal, as a log of changes.
//!
//! Rule M: a listed file's name is durable, and no byte of a file counts before the file is listed. So a listed file that is
//! missing was lost, and any other file is a leftover or was just begun.
//!
//! Life of a record: *appended* (it is in the file, so it outlasts the process) → *durable* (the file is synced up to it) →
//! *obsolete* (a rewrite leaves it out). A rewrite makes a new file with only the records that still say something, which takes
//! the name of the former one. It lists the same files, so a crash may leave either.
//!
//! ```text
//! manifest        see `record`
//! manifest.new    the next manifest until it takes that name
//! ```
//!
//! A write or a sync that fails leaves the content of the file unknown. The next step then is a rewrite. If that fails, too,
//! the manifest takes no more records until the next start.

mod current;
mod read;
mod record;
mod state;
mod write;

pub use current::{ManifestEnd, NAME, NEW_NAME, RecordCount, bytes_needed};
pub use record::{HEAD_BYTES, Head, Record};
pub use state::{Listed, ListedLane};
pub use write::Manifest;

#[cfg(test)]
mod tests;
