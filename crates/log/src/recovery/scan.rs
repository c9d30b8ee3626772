//! Reading a group's file chunk by chunk, each checked.

use std::path::PathBuf;

use millstream_base::disk::Access;
use millstream_base::{DiskFile, Position};
use millstream_record::{Chunk, ChunkHeader, Chunks, HEADER_BYTES};

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::ids::GroupName;

/// The bytes of a file that one read fetches when it is checked.
pub const SCAN_BYTES: usize = 1 << 20;

pub fn open(dir: &DataDir, name: &GroupName, access: Access) -> Result<Box<dyn DiskFile>> {
    dir.open_group(name, access)
        .map_err(|error| LogError::io("open", dir.group_path(name), error))
}

/// Reads chunks of a group's file from `from` to `to`, checks each, and gives it to `each`, which
/// returns whether it fits. Returns the fault if it stopped early.
pub fn scan(
    file: &dyn DiskFile,
    path: &PathBuf,
    from: Position,
    to: Position,
    mut each: impl FnMut(&Chunk<'_>) -> Result<bool>,
) -> Result<Option<String>> {
    let mut window = Vec::new();
    let mut at = from;
    let mut wanted = SCAN_BYTES;
    while at < to {
        let len = usize::try_from(to.0 - at.0)
            .unwrap_or(usize::MAX)
            .min(wanted);
        window.resize(len, 0);
        let count = file
            .read_full_at(&mut window, at.0)
            .map_err(|error| LogError::io("read", path, error))?;
        let mut chunks = Chunks::new(&window[..count]);
        let mut end = 0;
        while let Some(chunk) = chunks.next() {
            match chunk {
                Ok(chunk) => {
                    if !each(&chunk)? {
                        let found = chunk.header().base_offset;
                        return Ok(Some(format!("offset {found} does not come here")));
                    }
                    end = chunks.position();
                }
                // The window ends within this chunk: read on from its start, all of it.
                Err(millstream_record::ChunkError::Truncated { needed, .. })
                    if at.0 + ((end + needed) as u64) <= to.0 && needed <= i32::MAX as usize =>
                {
                    wanted = needed.max(SCAN_BYTES);
                    break;
                }
                Err(error) => return Ok(Some(error.to_string())),
            }
        }
        if end > 0 {
            wanted = SCAN_BYTES;
        }
        at = at.plus(end as u64);
    }
    Ok(None)
}

pub fn first_crc(file: &dyn DiskFile, path: &PathBuf) -> Result<u32> {
    Ok(read_header(file, path, 0)?.map_or(0, |header| header.crc))
}

pub fn read_header(file: &dyn DiskFile, path: &PathBuf, at: u64) -> Result<Option<ChunkHeader>> {
    let mut header = [0; HEADER_BYTES];
    let count = file
        .read_full_at(&mut header, at)
        .map_err(|error| LogError::io("read", path, error))?;
    Ok(ChunkHeader::parse(&header[..count]).ok())
}
