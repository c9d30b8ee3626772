//! The windowed word count: a flow of the engine, whose source is a consumer.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use anyhow::{Result, ensure};
use millstream_base::{Offset, Timestamp};
use millstream_flow::windows::{Count, WindowResult, Windows};
use millstream_flow::{
    BoxError, Emit, Flow, FlowSettings, Output, PartialState, PartitionId, Partitions, Source,
    SourcePartitions, SourceStatus, Watermarks,
};
use millstream_logparser::for_each_word;
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::feed::Feed;
use super::work::{Text, Worker};
use crate::clock::cpu_s;
use crate::measure::ended;

/// Records of a streamlet are a millisecond apart: a window has 1,000 of each streamlet that the consumer reads.
const WINDOW_MS: i64 = 1000;

/// The counts of the flow.
pub struct Counted {
    /// How many records the consumer was given.
    pub records: u64,
    /// Processor time of the flow's worker.
    pub cpu_s: f64,
}

/// Reads `records` records of each partition from the feed, and counts the words of each window; each partition must
/// have `words` words.
pub fn run(
    feed: Box<dyn Feed>,
    worker: Worker,
    partitions: &[u32],
    records: u64,
    words: u64,
) -> Result<Counted> {
    let progress = Partitions::default();
    for partition in partitions {
        progress.add(partition_id(*partition), Offset(0), Offset(records));
    }
    let records = records * partitions.len() as u64;
    let words = words * partitions.len() as u64;
    let settings = FlowSettings {
        workers: NonZeroUsize::MIN,
        ..FlowSettings::default()
    };
    let cpu_ns = Arc::new(AtomicU64::new(0));
    let source = Texts {
        feed,
        worker,
        partitions: progress,
        records,
        cpu_ns: Arc::clone(&cpu_ns),
    };
    let flow = Flow::with_settings("windowed words", settings);
    let counts = flow.windowed::<Word, _>("counts", Windows::tumbling(WINDOW_MS), Count);
    let most = flow.partial::<MostFrequent>("most frequent");
    flow.source("texts", source)
        .watermarks(|text: &Text| text.time, Watermarks::bounded(Duration::ZERO))
        .flat_map(|text: &Text, emit: &mut Emit<(Word, Timestamp)>| {
            for_each_word(&text.value, |word| emit(&(Word::from(word), text.time)));
        })
        .key_by(|(word, _): &(Word, Timestamp)| word.clone())
        .aggregate("count", &counts, |(_, time)| *time)
        .fold_local(&most, MostFrequent::add);
    ended(&flow.run()?)?;
    let counted = most.merged().words;
    ensure!(
        counted == words && counts.late_events() == 0,
        "windows have {counted} of {words} words, {} came too late",
        counts.late_events()
    );
    Ok(Counted {
        records,
        cpu_s: cpu_ns.load(Ordering::Relaxed) as f64 / 1e9,
    })
}

/// Records of a consumer. While it waits for them it keeps the flow's only worker: there is nothing else to do.
struct Texts {
    feed: Box<dyn Feed>,
    worker: Worker,
    partitions: Partitions,
    records: u64,
    /// Of the worker's thread, at the end.
    cpu_ns: Arc<AtomicU64>,
}

impl Source for Texts {
    type Item = Text;

    fn poll(
        &mut self,
        out: &mut Output<Text>,
        _: usize,
        _: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        if self.worker.found() >= self.records {
            return Ok(SourceStatus::End);
        }
        self.feed.next(&mut self.worker)?;
        for text in self.worker.texts() {
            let next = Offset(text.offset.0 + 1);
            self.partitions.pass(partition_id(text.partition), next);
            out.push(text);
        }
        Ok(SourceStatus::Ready)
    }

    fn partitions(&self) -> SourcePartitions<'_, Text> {
        SourcePartitions::Many {
            partition_of: |text| partition_id(text.partition),
            partitions: &self.partitions,
        }
    }

    fn close(&mut self) {
        let cpu_ns = cpu_s(ClockId::ThreadCPUTime) * 1e9;
        self.cpu_ns.store(cpu_ns as u64, Ordering::Relaxed);
    }
}

fn partition_id(partition: u32) -> PartitionId {
    PartitionId(partition.into())
}

/// A word. Most are short, and take no memory of their own.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(from = "Vec<u8>", into = "Vec<u8>")]
enum Word {
    Short { bytes: [u8; SHORT_BYTES], len: u8 },
    Long(Box<[u8]>),
}

const SHORT_BYTES: usize = 22;

impl Word {
    fn bytes(&self) -> &[u8] {
        match self {
            Word::Short { bytes, len } => &bytes[..usize::from(*len)],
            Word::Long(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for Word {
    fn from(word: &[u8]) -> Word {
        if word.len() > SHORT_BYTES {
            return Word::Long(word.into());
        }
        let mut bytes = [0; SHORT_BYTES];
        bytes[..word.len()].copy_from_slice(word);
        Word::Short {
            bytes,
            len: word.len() as u8,
        }
    }
}

impl From<Vec<u8>> for Word {
    fn from(word: Vec<u8>) -> Word {
        Word::from(&word[..])
    }
}

impl From<Word> for Vec<u8> {
    fn from(word: Word) -> Vec<u8> {
        word.bytes().to_vec()
    }
}

impl PartialEq for Word {
    fn eq(&self, other: &Word) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Word {}

impl Hash for Word {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.bytes().hash(hasher);
    }
}

/// The most frequent word of each window, and how many words there were in all of them.
#[derive(Default)]
struct MostFrequent {
    words: u64,
    by_window: HashMap<Timestamp, (Word, u64)>,
}

impl MostFrequent {
    fn add(&mut self, result: &WindowResult<Word, u64>) {
        self.words += result.value;
        self.see(result.start, &result.key, result.value);
    }

    fn see(&mut self, window: Timestamp, word: &Word, count: u64) {
        let most = self.by_window.entry(window);
        let most = most.or_insert_with(|| (word.clone(), count));
        if count > most.1 {
            *most = (word.clone(), count);
        }
    }
}

impl PartialState for MostFrequent {
    fn merge(&mut self, part: &Self) {
        self.words += part.words;
        for (window, (word, count)) in &part.by_window {
            self.see(*window, word, *count);
        }
    }

    fn get(_: &[&Self], _: &str) -> Option<Value> {
        None
    }

    fn keys(_: &[&Self], _: usize) -> Vec<String> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_compare_by_bytes_for_every_length() {
        for word in [
            "",
            "mill",
            "as long as can be, here",
            "longer than a short one is",
        ] {
            let one = Word::from(word.as_bytes());
            assert_eq!(one, Word::from(word.as_bytes().to_vec()));
            assert_eq!(Vec::from(one), word.as_bytes());
        }
        assert_ne!(Word::from(&b"a"[..]), Word::from(&b"a\0"[..]));
    }
}
