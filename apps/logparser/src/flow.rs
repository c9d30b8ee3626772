//! The flow: read, split, filter, count.

use std::sync::Arc;

use millstream_flow::sources::{LineBlock, LineFiles};
use millstream_flow::{
    Emit, Flow, FlowError, FlowSettings, Partial, PartialState, Running, gathered,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::read::{CountedLines, ReadCounts};
use crate::split::{for_each_word, starts_with};
use crate::words::{BlockWords, SomeWords};

/// The name of the flow.
pub const FLOW: &str = "logparser";

/// The division of the work into stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Staging {
    /// One stage: a loop passes each word from operator to operator.
    Fused,
    /// Four stages, `read`, `split`, `filter` and `count`. An item between them is a block and the
    /// positions of its words: of all words behind `split`, of the matching ones behind `filter`.
    /// Finding a word takes less time than handing it on by itself.
    Separate,
}

/// The running flow.
pub struct LogParser {
    running: Arc<Running>,
    count: Partial<u64>,
    read: Arc<ReadCounts>,
    settings: FlowSettings,
}

/// The results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Words that start with the prefix.
    pub count: u64,
    /// All words.
    pub words: u64,
    /// Bytes of the lines.
    pub bytes: u64,
    /// The part of `bytes` read before the checkpoint from which the flow resumed.
    pub bytes_before: u64,
}

impl PartialState for Totals {
    fn merge(&mut self, part: &Self) {
        self.count += part.count;
        self.words += part.words;
        self.bytes += part.bytes;
        self.bytes_before += part.bytes_before;
    }

    fn get(parts: &[&Self], key: &str) -> Option<Value> {
        let mut sum = Totals::default();
        parts.iter().for_each(|part| sum.merge(part));
        serde_json::to_value(sum).ok()?.get(key).cloned()
    }

    fn keys(_: &[&Self], limit: usize) -> Vec<String> {
        let keys = ["count", "words", "bytes", "bytes_before"]
            .into_iter()
            .take(limit);
        keys.map(str::to_owned).collect()
    }
}

impl LogParser {
    /// Starts to count the words of `files` that start with `prefix`.
    ///
    /// # Errors
    /// When the flow's threads cannot be started.
    pub fn start(
        files: LineFiles,
        prefix: &[u8],
        staging: Staging,
        settings: FlowSettings,
    ) -> Result<LogParser, FlowError> {
        let ranks = &settings.ranks;
        let files = files.of_rank(ranks.rank(), ranks.count());
        let prefix: Arc<[u8]> = prefix.into();
        let read = Arc::new(ReadCounts::default());
        let sources = CountedLines::split(files, settings.workers.get(), &read, &prefix);
        let counts = Arc::clone(&read);
        let flow = Flow::with_settings(FLOW, settings.clone());
        let count = flow.partial::<u64>("count");
        let flow = match staging {
            Staging::Fused => flow
                .sources("read", sources)
                .flat_map(move |block: &LineBlock, emit: &mut Emit<[u8]>| {
                    let mut found = 0;
                    for_each_word(&block.bytes, |word| {
                        found += 1;
                        emit(word);
                    });
                    counts.add(block, found);
                })
                .filter(move |word| starts_with(word, &prefix))
                .fold_local(&count, |count, _| *count += 1),
            Staging::Separate => flow
                .sources("read", sources)
                .boundary("split")
                .map(move |block: &LineBlock| {
                    let words = BlockWords::find(&block.bytes);
                    counts.add(block, words.len());
                    words
                })
                .boundary("filter")
                .flat_map(move |words: &BlockWords, emit: &mut Emit<SomeWords>| {
                    if let Some(matching) = words.filter(|word| starts_with(word, &prefix)) {
                        emit(&matching);
                    }
                })
                .boundary("count")
                .fold_local(&count, |count, words| *count += words.iter().len() as u64),
        };
        Ok(LogParser {
            running: Arc::new(flow.run()?),
            count,
            read,
            settings,
        })
    }

    /// Returns the results of all ranks, on the rank `at`; empty results on the others. All ranks
    /// call it, at the end of their flows.
    ///
    /// # Errors
    /// When a rank fails.
    pub fn gather(&self, at: u32) -> Result<Totals, FlowError> {
        let own = Totals {
            count: self.count(),
            words: self.words(),
            bytes: self.bytes(),
            bytes_before: self.bytes_before(),
        };
        if self.settings.ranks.count() == 1 {
            return Ok(own);
        }
        let settings = self.settings.clone();
        gathered("gathered counts", settings, vec![own], at, Totals::merge)
    }

    /// Returns the flow, for its metrics and its end.
    pub fn running(&self) -> &Arc<Running> {
        &self.running
    }

    /// Returns the number of words so far that start with the prefix.
    pub fn count(&self) -> u64 {
        self.count.merged()
    }

    /// Returns the number of all words so far.
    pub fn words(&self) -> u64 {
        self.read.words()
    }

    /// Returns the bytes of the lines so far.
    pub fn bytes(&self) -> u64 {
        self.read.bytes()
    }

    /// Returns the part of [`bytes`](Self::bytes) read before the checkpoint from which the flow
    /// resumes.
    pub fn bytes_before(&self) -> u64 {
        self.read.bytes_before()
    }
}
