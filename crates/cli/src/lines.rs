//! Lines of files and of stdin.

use memchr::memchr;
use millstream_base::ByteSize;
use millstream_log::LogError;

use crate::input::Input;

/// Bytes per read.
const READ_BYTES: usize = 256 << 10;

/// Takes lines.
pub trait LineTarget {
    /// Takes a line, without its `\n`.
    fn line(&mut self, line: &[u8]) -> Result<(), LineError>;

    /// Marks the end of the lines of one read. If no more input is available now, the target should send the lines
    /// that it buffers.
    fn end_block(&mut self, is_drained: bool) -> anyhow::Result<()>;
}

/// The reason why a target refuses a line.
pub enum LineError {
    /// It fits no chunk.
    TooLong {
        chunk_bytes_max: ByteSize,
    },
    Other(anyhow::Error),
}

impl From<LogError> for LineError {
    fn from(error: LogError) -> LineError {
        match error {
            LogError::ChunkTooLarge { bytes_max, .. } => LineError::TooLong {
                chunk_bytes_max: bytes_max,
            },
            error => LineError::Other(error.into()),
        }
    }
}

/// A line that fits no chunk.
#[derive(Debug, thiserror::Error)]
#[error(
    "{input}: line {number} is too long: the largest chunk is {chunk_bytes_max}, of which its header \
     and the record's fields take 74 bytes or more; the lines before it are stored"
)]
pub struct LineTooLong {
    pub input: String,
    pub number: u64,
    pub chunk_bytes_max: ByteSize,
}

/// Passes all lines to `target`, up to the end of the input or until a stop signal. Each line must fit into
/// `chunk_bytes_max`.
pub fn read_lines(
    mut input: Input,
    chunk_bytes_max: ByteSize,
    target: &mut impl LineTarget,
) -> anyhow::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    // The start of a line whose end is not read yet.
    let mut held = 0;
    let mut number = 0;
    while let Some(count) = input.read_some(&mut buffer[held..])? {
        let filled = held + count;
        let mut start = 0;
        let mut searched = held;
        while let Some(length) = memchr(b'\n', &buffer[searched..filled]) {
            let end = searched + length;
            number += 1;
            give(&input, number, &buffer[start..end], target)?;
            start = end + 1;
            searched = start;
        }
        held = filled - start;
        if count == 0 {
            if held > 0 {
                give(&input, number + 1, &buffer[..held], target)?;
            }
            break;
        }
        target.end_block(filled < buffer.len())?;
        buffer.copy_within(start..filled, 0);
        if held == buffer.len() {
            if held > chunk_bytes_max.as_usize() {
                return Err(too_long(&input, number + 1, chunk_bytes_max).into());
            }
            buffer.resize(2 * held, 0);
        }
    }
    target.end_block(true)
}

#[inline]
fn give(
    input: &Input,
    number: u64,
    line: &[u8],
    target: &mut impl LineTarget,
) -> anyhow::Result<()> {
    target.line(line).map_err(|error| match error {
        LineError::TooLong { chunk_bytes_max } => too_long(input, number, chunk_bytes_max).into(),
        LineError::Other(error) => error,
    })
}

fn too_long(input: &Input, number: u64, chunk_bytes_max: ByteSize) -> LineTooLong {
    LineTooLong {
        input: input.name().to_owned(),
        number,
        chunk_bytes_max,
    }
}
