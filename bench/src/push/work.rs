//! The work of consumers on records.

use std::collections::HashMap;
use std::hint::black_box;
use std::ops::ControlFlow;
use std::vec::Drain;

use anyhow::Result;
use millstream_base::{Offset, Timestamp};
use millstream_client::{Fetched, Pushed};
use millstream_logparser::for_each_word;
use millstream_record::{Chunks, Decompressor, Filter, Record};
use serde::{Deserialize, Serialize};

use crate::clock::monotonic_ns;

/// The work on each record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordWork {
    /// It is counted.
    Count,
    /// It is counted if it passes this filter.
    Filter(String),
    /// Its words are counted, each by itself.
    Words,
    /// The same in windows of event time, which a flow of the engine keeps. Its records are found here; the flow counts
    /// its words, this many of each partition.
    WindowedWords { words: u64 },
    /// Its age is measured.
    Latency,
}

/// Records that lie in memory, or came out of a consumer.
pub trait Records {
    /// Gives each record to `take`.
    fn each(&self, decompressor: &mut Decompressor, take: impl FnMut(&Record<'_>)) -> Result<()>;

    /// The partition that all of them are of.
    fn partition(&self) -> u32;
}

/// Whole chunks; records before an offset were not asked for.
pub struct InPlace<'a> {
    pub bytes: &'a [u8],
    pub from: u64,
    pub partition: u32,
}

impl Records for InPlace<'_> {
    fn each(
        &self,
        decompressor: &mut Decompressor,
        mut take: impl FnMut(&Record<'_>),
    ) -> Result<()> {
        // Checksums were checked when the chunks came in.
        for chunk in Chunks::trusted(self.bytes) {
            for record in chunk?.records(decompressor)? {
                let record = record?;
                if record.offset.0 >= self.from {
                    take(&record);
                }
            }
        }
        Ok(())
    }

    fn partition(&self) -> u32 {
        self.partition
    }
}

impl Records for Fetched {
    fn each(
        &self,
        decompressor: &mut Decompressor,
        mut take: impl FnMut(&Record<'_>),
    ) -> Result<()> {
        Ok(Fetched::each(self, decompressor, |record| {
            take(record);
            ControlFlow::Continue(())
        })?)
    }

    fn partition(&self) -> u32 {
        self.place().partition as u32
    }
}

impl Records for Pushed {
    fn each(
        &self,
        decompressor: &mut Decompressor,
        mut take: impl FnMut(&Record<'_>),
    ) -> Result<()> {
        Ok(Pushed::each(self, decompressor, |record| {
            take(record);
            ControlFlow::Continue(())
        })?)
    }

    fn partition(&self) -> u32 {
        self.place().partition as u32
    }
}

/// A record as the flow gets it: the consumer's memory is given back when the next chunks are asked for.
#[derive(Debug, Clone)]
pub struct Text {
    pub partition: u32,
    pub offset: Offset,
    pub time: Timestamp,
    pub value: Box<[u8]>,
}

/// The work of one source.
pub struct Worker {
    doing: Doing,
    decompressor: Decompressor,
    /// How many records it was given.
    pub records: u64,
    found: u64,
}

enum Doing {
    Count,
    Filter(Filter),
    Words(Words),
    Texts(Vec<Text>),
    Latency(Vec<u64>),
}

/// How often each word was seen.
type Words = HashMap<Vec<u8>, u64>;

impl Worker {
    pub fn new(work: &RecordWork) -> Result<Worker> {
        Ok(Worker {
            doing: match work {
                RecordWork::Count => Doing::Count,
                RecordWork::Filter(filter) => Doing::Filter(Filter::parse(filter)?),
                RecordWork::Words => Doing::Words(Words::new()),
                RecordWork::WindowedWords { .. } => Doing::Texts(Vec::new()),
                RecordWork::Latency => Doing::Latency(Vec::new()),
            },
            decompressor: Decompressor::default(),
            records: 0,
            found: 0,
        })
    }

    /// Works on records.
    pub fn take(&mut self, records: &impl Records) -> Result<()> {
        let (seen, found) = (&mut self.records, &mut self.found);
        let decompressor = &mut self.decompressor;
        match &mut self.doing {
            Doing::Count => records.each(decompressor, |record| {
                black_box(record.value);
                *seen += 1;
                *found += 1;
            }),
            Doing::Filter(filter) => records.each(decompressor, |record| {
                *seen += 1;
                *found += u64::from(filter.matches(record));
            }),
            Doing::Words(words) => records.each(decompressor, |record| {
                *seen += 1;
                *found += count_words(words, record);
            }),
            Doing::Texts(texts) => {
                let partition = records.partition();
                records.each(decompressor, |record| {
                    *seen += 1;
                    *found += 1;
                    texts.push(Text {
                        partition,
                        offset: record.offset,
                        // The same chunks are sent over and over: events are a millisecond apart by their places.
                        time: Timestamp(record.timestamp.0 + record.offset.0 as i64),
                        value: record.value.unwrap_or_default().into(),
                    });
                })
            }
            Doing::Latency(took) => {
                let now = monotonic_ns();
                records.each(decompressor, |record| {
                    *seen += 1;
                    *found += 1;
                    took.push(now.saturating_sub(made_at(record)));
                })
            }
        }
    }

    /// The records that were taken for windows, in their order.
    pub fn texts(&mut self) -> Drain<'_, Text> {
        match &mut self.doing {
            Doing::Texts(texts) => texts.drain(..),
            _ => unreachable!("only work in windows asks for texts"),
        }
    }

    /// Returns how many records or words were counted.
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

/// Returns how many words a record has.
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
