//! Files of events, in blocks that several sources share.
//!
//! A block is its length as four bytes, the lowest first, and events in postcard's format.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::task::Waker;

use millstream::flow::{BoxError, Output, Source, SourcePartitions, SourceStatus};
use millstream::log::Share;

use crate::event::Event;
use crate::generator::EventGenerator;

/// The length at which a block ends, and the most that a source reads at once.
const BLOCK_BYTES: usize = 64 << 10;
const BLOCK_BYTES_MAX: usize = 1 << 20;

/// Writes a number of events to a file.
///
/// # Errors
/// When the file cannot be written.
pub fn write_events(path: &Path, generator: &EventGenerator, events: u64) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut block = Vec::new();
    for number in 0..events {
        block = postcard::to_extend(&generator.event(number), block).map_err(io::Error::other)?;
        if block.len() >= BLOCK_BYTES || number + 1 == events {
            let length = u32::try_from(block.len()).map_err(io::Error::other)?;
            file.write_all(&length.to_le_bytes())?;
            file.write_all(&block)?;
            block.clear();
        }
    }
    file.flush()
}

/// Reads a share of the blocks of a file of events.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    share: Share,
    /// Open after the first poll.
    file: Option<File>,
    position: Position,
    /// The present block, from the first event on that was not given yet.
    block: Vec<u8>,
    /// The bytes of the block that were given.
    given: usize,
}

/// A position in a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Position {
    /// The begin of the next block.
    next: u64,
    /// The number of that block.
    number: u64,
}

impl EventFile {
    /// Returns a source of a share of the blocks.
    pub fn new(path: PathBuf, share: Share) -> EventFile {
        EventFile {
            path,
            share,
            file: None,
            position: Position::default(),
            block: Vec::new(),
            given: 0,
        }
    }

    /// Reads the next block of this share; returns whether there is one.
    fn read_block(&mut self) -> Result<bool, BoxError> {
        let path = &self.path;
        let fail = |error: io::Error| format!("cannot read events of {}: {error}", path.display());
        let file = match self.file.take() {
            Some(file) => file,
            None => File::open(path).map_err(fail)?,
        };
        let file = self.file.insert(file);
        let file_bytes = file.metadata().map_err(fail)?.len();
        while self.position.next < file_bytes {
            let Position { next, number } = self.position;
            let mut length = [0; 4];
            file.read_exact_at(&mut length, next).map_err(fail)?;
            let length = u32::from_le_bytes(length) as usize;
            if length > BLOCK_BYTES_MAX {
                let path = path.display();
                return Err(format!("{path} is no file of events: a block of {length} bytes is at {next}; write it anew").into());
            }
            self.position = Position {
                next: next + 4 + length as u64,
                number: number + 1,
            };
            if number % u64::from(self.share.of) == u64::from(self.share.index) {
                self.block.resize(length, 0);
                self.given = 0;
                file.read_exact_at(&mut self.block, next + 4)
                    .map_err(fail)?;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Source for EventFile {
    type Item = Event;

    fn partitions(&self) -> SourcePartitions<'_, Event> {
        SourcePartitions::One
    }

    fn poll(
        &mut self,
        out: &mut Output<Event>,
        budget: usize,
        _waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        if self.given == self.block.len() && !self.read_block()? {
            return Ok(SourceStatus::End);
        }
        let mut rest = &self.block[self.given..];
        for _ in 0..budget {
            if rest.is_empty() {
                break;
            }
            let (event, behind) = postcard::take_from_bytes::<Event>(rest)?;
            out.push(event);
            rest = behind;
        }
        self.given = self.block.len() - rest.len();
        Ok(SourceStatus::Ready)
    }

    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        let Position { next, number } = self.position;
        let rest = (self.block.len() - self.given) as u64;
        Ok([next, number, rest].map(u64::to_le_bytes).concat())
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let fields: Vec<u64> = saved
            .chunks_exact(8)
            .filter_map(|field| Some(u64::from_le_bytes(field.try_into().ok()?)))
            .collect();
        let &[next, number, rest] = &fields[..] else {
            return Err("a position in a file of events has 24 bytes".into());
        };
        self.position = Position { next, number };
        self.block.clear();
        self.given = 0;
        // The last block, of which some events were not given yet.
        if rest > 0 {
            let file = self.file.insert(File::open(&self.path)?);
            let begin = next
                .checked_sub(rest)
                .filter(|_| rest <= BLOCK_BYTES_MAX as u64);
            let begin = begin.ok_or("a position in a file of events is out of bounds")?;
            self.block.resize(rest as usize, 0);
            file.read_exact_at(&mut self.block, begin)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::num::NonZeroU64;

    use millstream::Timestamp;

    use super::*;

    const GENERATOR: EventGenerator = EventGenerator {
        seed: 7,
        start: Timestamp(1_000_000),
        rate: NonZeroU64::new(500).unwrap(),
    };

    /// Events of several blocks.
    const EVENTS: u64 = 3_000;

    /// Polls until a source has given this number of events, or all.
    fn poll(source: &mut EventFile, count: usize) -> Vec<Event> {
        let mut events = Vec::new();
        while events.len() < count {
            let mut out = Output::default();
            let budget = (count - events.len()).min(7);
            let status = source.poll(&mut out, budget, Waker::noop()).unwrap();
            events.extend(out.drain());
            if status == SourceStatus::End {
                break;
            }
        }
        events
    }

    fn written(folder: &Path) -> PathBuf {
        let path = folder.join("events");
        write_events(&path, &GENERATOR, EVENTS).unwrap();
        path
    }

    fn source(path: &Path, index: u32, of: u32) -> EventFile {
        EventFile::new(path.to_owned(), Share { index, of })
    }

    #[test]
    fn shares_give_each_event_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        let shares = (0..3).map(|index| poll(&mut source(&path, index, 3), usize::MAX));
        let shares: Vec<_> = shares.collect();
        assert!(shares.iter().all(|share| !share.is_empty()));
        let mut events = shares.concat();
        // Times increase with the numbers.
        events.sort_by_key(Event::time);
        let expected: Vec<_> = (0..EVENTS).map(|number| GENERATOR.event(number)).collect();
        assert_eq!(events, expected);
    }

    #[test]
    fn a_source_resumes_with_the_event_after_the_saved_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        let all = poll(&mut source(&path, 1, 2), usize::MAX);
        for given in (0..=all.len()).step_by(61).chain([all.len()]) {
            let mut first = source(&path, 1, 2);
            assert_eq!(poll(&mut first, given), all[..given]);
            let mut second = source(&path, 1, 2);
            second.restore(&first.save().unwrap()).unwrap();
            assert_eq!(poll(&mut second, usize::MAX), all[given..], "{given}");
        }
    }

    #[test]
    fn another_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        fs::write(&path, "no events at all").unwrap();
        let refused = source(&path, 0, 1).poll(&mut Output::default(), 1, Waker::noop());
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("is no file of events"), "{message}");
    }
}
