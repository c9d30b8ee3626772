//! What consumers do with records.

use std::collections::HashMap;
use std::hint::black_box;
use std::ops::ControlFlow;

use anyhow::Result;
use millstream_client::{Fetched, Pushed};
use millstream_logparser::for_each_word;
use millstream_record::{Chunks, Filter, Record, Scratch};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Records of one window of the windowed word count.
const WINDOW_RECORDS: u64 = 1000;

/// What is done with each record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// It is counted.
    Count,
    /// It is counted if it passes this filter.
    Filter(String),
    /// Its words are counted, each by itself.
    Words,
    /// The same in windows.
    WindowedWords,
    /// How long ago was it made?
    Latency,
}

/// Records that lie in memory, or came out of a consumer.
pub trait Records {
    /// Gives each record to `take`.
    fn each(&self, scratch: &mut Scratch, take: impl FnMut(&Record<'_>)) -> Result<()>;
}

/// Whole chunks; records before an offset were not asked for.
pub struct InPlace<'a> {
    pub bytes: &'a [u8],
    pub from: u64,
}

impl Records for InPlace<'_> {
    fn each(&self, scratch: &mut Scratch, mut take: impl FnMut(&Record<'_>)) -> Result<()> {
        // Checksums were checked when the chunks came in.
        for chunk in Chunks::trusted(self.bytes) {
            for record in chunk?.records(scratch)? {
                let record = record?;
                if record.offset.0 >= self.from {
                    take(&record);
                }
            }
        }
        Ok(())
    }
}

impl Records for Fetched {
    fn each(&self, scratch: &mut Scratch, mut take: impl FnMut(&Record<'_>)) -> Result<()> {
        Ok(Fetched::each(self, scratch, |record| {
            take(record);
            ControlFlow::Continue(())
        })?)
    }
}

impl Records for Pushed {
    fn each(&self, scratch: &mut Scratch, mut take: impl FnMut(&Record<'_>)) -> Result<()> {
        Ok(Pushed::each(self, scratch, |record| {
            take(record);
            ControlFlow::Continue(())
        })?)
    }
}

/// The work of one source.
pub struct Worker {
    doing: Doing,
    scratch: Scratch,
    /// How many records it was given.
    pub records: u64,
    found: u64,
}

enum Doing {
    Count,
    Filter(Filter),
    Words(Words),
    Windows(Words),
    Latency(Vec<u64>),
}

/// How often each word was seen.
type Words = HashMap<Vec<u8>, u64>;

impl Worker {
    pub fn new(work: &Work) -> Result<Worker> {
        Ok(Worker {
            doing: match work {
                Work::Count => Doing::Count,
                Work::Filter(filter) => Doing::Filter(Filter::parse(filter)?),
                Work::Words => Doing::Words(Words::new()),
                Work::WindowedWords => Doing::Windows(Words::new()),
                Work::Latency => Doing::Latency(Vec::new()),
            },
            scratch: Scratch::default(),
            records: 0,
            found: 0,
        })
    }

    /// Works on records.
    pub fn take(&mut self, records: &impl Records) -> Result<()> {
        let (seen, found) = (&mut self.records, &mut self.found);
        let scratch = &mut self.scratch;
        match &mut self.doing {
            Doing::Count => records.each(scratch, |record| {
                black_box(record.value);
                *seen += 1;
                *found += 1;
            }),
            Doing::Filter(filter) => records.each(scratch, |record| {
                *seen += 1;
                *found += u64::from(filter.matches(record));
            }),
            Doing::Words(words) => records.each(scratch, |record| {
                *seen += 1;
                *found += count_words(words, record);
            }),
            Doing::Windows(words) => records.each(scratch, |record| {
                *seen += 1;
                *found += count_words(words, record);
                if seen.is_multiple_of(WINDOW_RECORDS) {
                    // The result of a window: its most frequent word.
                    black_box(words.iter().max_by_key(|(_, count)| **count));
                    words.clear();
                }
            }),
            Doing::Latency(took) => {
                let now = monotonic_ns();
                records.each(scratch, |record| {
                    *seen += 1;
                    *found += 1;
                    took.push(now.saturating_sub(made_at(record)));
                })
            }
        }
    }

    /// How many records or words were counted.
    pub fn found(&self) -> u64 {
        self.found
    }

    /// How old each record was, in nanoseconds and in their order.
    pub fn latencies(self) -> Vec<u64> {
        match self.doing {
            Doing::Latency(took) => took,
            _ => Vec::new(),
        }
    }
}

/// How many words a record has.
fn count_words(words: &mut Words, record: &Record<'_>) -> u64 {
    let mut counted = 0;
    for_each_word(record.value.unwrap_or_default(), |word| {
        counted += 1;
        match words.get_mut(word) {
            Some(count) => *count += 1,
            None => {
                words.insert(word.to_vec(), 1);
            }
        }
    });
    counted
}

/// When a record was made that has its time at its beginning.
fn made_at(record: &Record<'_>) -> u64 {
    let first = record.value.and_then(|value| value.first_chunk());
    first.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Nanoseconds that all processes count from the same moment on.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
