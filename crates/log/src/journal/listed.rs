//! The files of the journal in the manifest: a file is durably listed before its first block is written, and released, for
//! good, before it gets another name or is removed. So a listed file that is missing was lost.
//!
//! A file that is not listed holds nothing that is needed, with one exception: format 3 listed no files of the journal at first.
//! So a start reads the blocks of an unlisted file, too. If it was released, reading it again does no harm.

use millstream_base::Position;

use crate::error::Result;
use crate::files::DataDir;
use crate::files::manifest::Record;

/// Lists a file that is begun. Its name is durable.
pub fn list_new(dir: &DataDir, sequence: u64, secret: u64) -> Result<()> {
    append(
        dir,
        &[Record::JournalFile {
            sequence,
            secret,
            end: Position(0),
        }],
    )
}

/// Releases the listed ones of the files.
pub fn release(dir: &DataDir, sequences: impl IntoIterator<Item = u64>) -> Result<()> {
    let records: Vec<Record> = dir.manifest().look_at(|listed| {
        let sequences = sequences.into_iter();
        let listed = sequences.filter(|sequence| listed.journal_file(*sequence).is_some());
        let records = listed.map(|sequence| Record::JournalReleased { sequence });
        records.collect()
    });
    append(dir, &records)
}

/// Appends records, which are durable then.
pub fn append(dir: &DataDir, records: &[Record]) -> Result<()> {
    if records.is_empty() {
        return Ok(());
    }
    let manifest = dir.manifest();
    manifest.sync_to(manifest.append(records)?)
}
