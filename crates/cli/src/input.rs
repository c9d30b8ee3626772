//! Reads of files and stdin that a signal interrupts.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use rustix::fs::OFlags;

use crate::stop::Stop;

/// An input, read to its end or until a stop signal.
#[derive(Debug)]
pub struct Input {
    name: String,
    file: File,
    stop: Stop,
}

impl Input {
    /// Opens a file, or stdin for `-`.
    pub fn open(path: &Path, stop: &Stop) -> anyhow::Result<Input> {
        if path == Path::new("-") {
            let stdin = io::stdin().as_fd().try_clone_to_owned();
            return Ok(Input {
                name: "stdin".to_owned(),
                file: File::from(stdin.context("cannot read stdin")?),
                stop: stop.clone(),
            });
        }
        let name = path.display().to_string();
        let cannot_open = || format!("cannot open {name}");
        // Non-blocking: the open of a FIFO without a writer would block here, where no signal ends it. Reads wait for
        // the first writer, and end when the last one closes the FIFO.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32)
            .open(path)
            .with_context(cannot_open)?;
        if file.metadata().with_context(cannot_open)?.is_dir() {
            anyhow::bail!("{name} is a folder; name files in it");
        }
        Ok(Input {
            name,
            file,
            stop: stop.clone(),
        })
    }

    /// A file's path, or `stdin`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Waits for data and reads it. Returns 0 bytes at the end, `None` after a stop signal.
    pub fn read_some(&mut self, buffer: &mut [u8]) -> anyhow::Result<Option<usize>> {
        self.wait_and_read(buffer)
            .with_context(|| format!("cannot read {}", self.name))
    }

    fn wait_and_read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        // These errors mean that another reader has taken the data first.
        let is_gone = |error: &io::Error| {
            matches!(
                error.kind(),
                io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock
            )
        };
        while self.stop.wait_readable(self.file.as_fd())? {
            match self.file.read(buffer) {
                Err(error) if is_gone(&error) => {}
                result => return result.map(Some),
            }
        }
        Ok(None)
    }
}

/// A reader for inputs that must be complete: a stop signal is an error.
impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait_and_read(buffer)?
            .ok_or_else(|| io::Error::other("ended by a signal"))
    }
}
