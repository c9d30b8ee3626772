//! Lines of files and of stdin.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::Context;
use memchr::memchr;
use millstream_base::ByteSize;
use millstream_log::LogError;

use crate::stop::Stop;

/// How much is read at a time.
const READ_BYTES: usize = 256 << 10;

/// What lines are read from.
#[derive(Debug)]
pub struct LineInput {
    name: String,
    file: File,
}

/// Takes lines.
pub trait LineTarget {
    /// Takes a line, without its `\n`.
    fn line(&mut self, line: &[u8]) -> Result<(), LogError>;

    /// All lines of what was read at once were given. If that was all there is for now, what was
    /// held back should be sent on.
    fn end_block(&mut self, is_drained: bool) -> Result<(), LogError>;
}

/// A line that fits no chunk.
#[derive(Debug, thiserror::Error)]
#[error(
    "{input}: line {number} is longer than a record can be, which is {bytes_max}; the lines before it are stored"
)]
pub struct LineTooLong {
    pub input: String,
    pub number: u64,
    pub bytes_max: ByteSize,
}

impl LineInput {
    /// Opens a file, or stdin for `-`.
    pub fn open(path: &Path) -> anyhow::Result<LineInput> {
        if path == Path::new("-") {
            let stdin = io::stdin().as_fd().try_clone_to_owned();
            return Ok(LineInput {
                name: "stdin".to_owned(),
                file: File::from(stdin.context("cannot read stdin")?),
            });
        }
        let name = path.display().to_string();
        let opened = File::open(path).and_then(|file| Ok((file.metadata()?.is_dir(), file)));
        match opened {
            Ok((false, file)) => Ok(LineInput { name, file }),
            Ok((true, _)) => anyhow::bail!("{name} is a folder; name files in it"),
            Err(error) => Err(error).with_context(|| format!("cannot open {name}")),
        }
    }

    /// Opens several, before anything is read of the first.
    pub fn open_all(paths: &[PathBuf]) -> anyhow::Result<Vec<LineInput>> {
        paths.iter().map(|path| LineInput::open(path)).collect()
    }

    /// Gives all lines to `target`, up to the end of the input or until it is time to stop; lines of
    /// at most `bytes_max`.
    pub fn read(
        mut self,
        bytes_max: ByteSize,
        stop: &Stop,
        target: &mut impl LineTarget,
    ) -> anyhow::Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        // The start of a line whose end was not read yet.
        let mut held = 0;
        let mut number = 0;
        while let Some(count) = self.read_some(stop, &mut buffer[held..])? {
            let filled = held + count;
            let mut start = 0;
            let mut searched = held;
            while let Some(length) = memchr(b'\n', &buffer[searched..filled]) {
                let end = searched + length;
                number += 1;
                self.give(number, &buffer[start..end], target)?;
                start = end + 1;
                searched = start;
            }
            held = filled - start;
            if count == 0 {
                if held > 0 {
                    self.give(number + 1, &buffer[..held], target)?;
                }
                break;
            }
            target.end_block(filled < buffer.len())?;
            buffer.copy_within(start..filled, 0);
            if held == buffer.len() {
                if held > bytes_max.as_usize() {
                    return Err(self.too_long(number + 1, bytes_max).into());
                }
                buffer.resize(2 * held, 0);
            }
        }
        target.end_block(true)?;
        Ok(())
    }

    /// Reads what there is, 0 bytes at the end; `None` when it is time to stop.
    fn read_some(&mut self, stop: &Stop, buffer: &mut [u8]) -> anyhow::Result<Option<usize>> {
        let mut read = || {
            while stop.wait_readable(self.file.as_fd())? {
                match self.file.read(buffer) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    result => return result.map(Some),
                }
            }
            Ok(None)
        };
        read().with_context(|| format!("cannot read {}", self.name))
    }

    #[inline]
    fn give(&self, number: u64, line: &[u8], target: &mut impl LineTarget) -> anyhow::Result<()> {
        target.line(line).map_err(|error| match error {
            LogError::ChunkTooLarge { bytes_max, .. } => self.too_long(number, bytes_max).into(),
            error => error.into(),
        })
    }

    fn too_long(&self, number: u64, bytes_max: ByteSize) -> LineTooLong {
        LineTooLong {
            input: self.name.clone(),
            number,
            bytes_max,
        }
    }
}
