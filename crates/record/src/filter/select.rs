//! Makes chunks of only the records that match a filter.

use crate::header::{self, CHUNK_BYTES_MAX};
use crate::{Chunk, ChunkError, ChunkHeader, Decompressor, Filter, HEADER_BYTES, Records};

/// The records of a chunk that a filter selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selected {
    /// All of them: the caller can hand out the chunk itself.
    All,
    /// None.
    None,
    /// This many, at least one and not all, in a chunk of their own.
    Some(u32),
}

impl Filter {
    /// Appends to `out` a chunk of only the matching records, unless all match or none does.
    ///
    /// The new chunk is like a compacted one. Its records are the same bytes with the same offsets and times, and
    /// its header differs only in size, codec, number of records and checksum. It is not compressed, so it may be
    /// larger than the original, up to the bound of `decompressor`. Control chunks are selected whole. The filter
    /// does not read a chunk whose header rules out all records by their time.
    ///
    /// # Errors
    /// When the records cannot be decompressed within the bound of `decompressor`, or one is malformed; or the new
    /// chunk would be larger than the format allows. Then nothing is appended.
    pub fn select(
        &self,
        chunk: &Chunk<'_>,
        decompressor: &mut Decompressor,
        out: &mut Vec<u8>,
    ) -> Result<Selected, ChunkError> {
        let header = chunk.header();
        if header.attributes.is_control() {
            return Ok(Selected::All);
        }
        if self.terms.iter().any(|term| term.rules_out(header)) {
            return Ok(Selected::None);
        }
        let start = out.len();
        let selected = self.keep_records(header, chunk.records(decompressor)?, out);
        if selected.is_err() {
            out.truncate(start);
        }
        selected
    }

    /// Copies whole runs of matching records. A run ends at the first record that does not match.
    fn keep_records(
        &self,
        header: &ChunkHeader,
        mut records: Records<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Selected, ChunkError> {
        let bytes = records.rest();
        let start = out.len();
        let mut record_count = 0;
        let (mut run_start, mut run_end) = (0, 0);
        while let Some(record) = records.next() {
            let record_end = bytes.len() - records.rest().len();
            if self.matches(&record?) {
                record_count += 1;
            } else {
                put_run(out, start, &bytes[run_start..run_end]);
                run_start = record_end;
            }
            run_end = record_end;
        }
        if record_count == 0 {
            return Ok(Selected::None);
        }
        if record_count == header.record_count {
            return Ok(Selected::All);
        }
        put_run(out, start, &bytes[run_start..run_end]);
        finish(&mut out[start..], header, record_count)?;
        Ok(Selected::Some(record_count))
    }
}

/// Appends records, with room for the header before the first of them.
fn put_run(out: &mut Vec<u8>, start: usize, run: &[u8]) {
    if run.is_empty() {
        return;
    }
    if out.len() == start {
        out.resize(start + HEADER_BYTES, 0);
    }
    out.extend_from_slice(run);
}

/// Writes the header of a chunk with some records of another chunk.
fn finish(chunk: &mut [u8], of: &ChunkHeader, record_count: u32) -> Result<(), ChunkError> {
    if chunk.len() > CHUNK_BYTES_MAX {
        return Err(ChunkError::TooLarge {
            bytes: chunk.len(),
            max: CHUNK_BYTES_MAX,
        });
    }
    let header = ChunkHeader {
        total_bytes: chunk.len() as u32,
        attributes: of.attributes.uncompressed(),
        record_count,
        ..*of
    };
    if let Some(bytes) = chunk.first_chunk_mut() {
        header.write(bytes);
    }
    header::set_crc(chunk);
    Ok(())
}
