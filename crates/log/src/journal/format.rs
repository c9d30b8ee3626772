//! The bytes of the journal's files: names, file headers, block headers and directories.

use std::path::{Path, PathBuf};

use millstream_base::crc32c;

use crate::files::DataDir;
use crate::journal::run::{RecoveredRun, Run};

/// The smallest journal file: a few blocks of the smallest segments.
pub const FILE_BYTES_MIN: u64 = 256 << 10;

/// A file that is written to see whether a full disk has room again, and removed at once.
pub const PROBE: &str = "probe";

const FILE_MAGIC: [u8; 8] = *b"MSJRNAL2";

/// The header has a page of its own, so that it is never rewritten with a block.
pub const FILE_HEADER_BYTES: u64 = 4096;

/// The bytes of the header page that are written.
pub const FILE_HEADER_USED: usize = 28;

pub const BLOCK_MAGIC: [u8; 4] = *b"MSBK";

pub const BLOCK_HEADER_BYTES: usize = 40;

pub const RUN_BYTES: usize = 48;

/// More runs than this go into the next block: a bound for recovery's directory.
pub const RUNS_MAX: usize = 65_536;

/// The identity of a block, which its header holds: it shows that the block belongs to this file, in this order.
pub struct BlockId {
    /// The sequence of its file.
    pub file: u64,
    /// The secret in the file's name.
    pub secret: u64,
    /// Counts the file's blocks from 0.
    pub number: u64,
}

pub fn file_path(dir: &DataDir, sequence: u64, secret: u64) -> PathBuf {
    let name = format!("{sequence:016}-{secret:016x}.journal");
    dir.journal_dir().join(name)
}

/// Sequence and secret of the file of this name.
pub fn parse_name(dir: &DataDir, path: &Path) -> Option<(u64, u64)> {
    let (sequence, secret) = path.file_stem()?.to_str()?.split_once('-')?;
    let sequence = sequence.parse().ok()?;
    let secret = u64::from_str_radix(secret, 16).ok()?;
    (file_path(dir, sequence, secret) == path).then_some((sequence, secret))
}

/// Returns whether the file is of the first format, which has no secret in the name.
pub fn is_of_format_1(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    let is_number = stem.is_some_and(|stem| stem.bytes().all(|byte| byte.is_ascii_digit()));
    is_number && path.extension().is_some_and(|kind| kind == "journal")
}

pub fn encode_file_header(sequence: u64, previous_end: u64) -> Vec<u8> {
    let mut header = FILE_MAGIC.to_vec();
    header.extend_from_slice(&sequence.to_le_bytes());
    header.extend_from_slice(&previous_end.to_le_bytes());
    let crc = crc32c(&header);
    header.extend_from_slice(&crc.to_le_bytes());
    header
}

/// Encodes the directory entry of a run: its group, position, length and checksum.
pub fn encode_run(run: &RecoveredRun, data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&run.lane.stream.0.to_le_bytes());
    out.extend_from_slice(&run.group.0.to_le_bytes());
    out.extend_from_slice(&run.position.0.to_le_bytes());
    out.extend_from_slice(&run.group_first_offset.0.to_le_bytes());
    out.extend_from_slice(&run.lane.streamlet.0.to_le_bytes());
    out.extend_from_slice(&run.lane.lane.0.to_le_bytes());
    out.extend_from_slice(&(data.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32c(data).to_le_bytes());
}

/// The block's header and directory. The checksum in the header covers the rest of both; each run's
/// bytes have one of their own.
pub fn encode_head(id: &BlockId, runs: &[&Run], block_bytes: u64) -> Vec<u8> {
    let mut head = Vec::with_capacity(BLOCK_HEADER_BYTES + RUN_BYTES * runs.len());
    head.extend_from_slice(&BLOCK_MAGIC);
    head.extend_from_slice(&[0; 4]);
    head.extend_from_slice(&id.file.to_le_bytes());
    head.extend_from_slice(&id.secret.to_le_bytes());
    head.extend_from_slice(&id.number.to_le_bytes());
    head.extend_from_slice(&(block_bytes as u32).to_le_bytes());
    head.extend_from_slice(&(runs.len() as u32).to_le_bytes());
    for run in runs {
        let group = &run.group;
        let place = RecoveredRun {
            lane: group.lane,
            group: group.id,
            group_first_offset: group.first_offset,
            position: run.position,
        };
        encode_run(&place, &run.slice, &mut head);
    }
    let crc = crc32c(&head[8..]);
    head[4..8].copy_from_slice(&crc.to_le_bytes());
    head
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}
