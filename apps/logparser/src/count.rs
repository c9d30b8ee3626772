//! A second flow, which counts how often each word occurs.

use std::sync::Arc;

use millstream_flow::sources::{LineBlock, LineFiles};
use millstream_flow::{Counts, Emit, Flow, FlowError, FlowSettings, Partial, Running, gathered};

use crate::read::CountedLines;
use crate::split::{for_each_word, starts_with};

/// The name of the flow.
const FLOW: &str = "words";

/// Counts the words that start with a prefix. Each rank reads its share of the files.
pub struct WordCount {
    running: Arc<Running>,
    counts: Partial<Counts>,
    settings: FlowSettings,
}

impl WordCount {
    /// Starts this rank's share of the flow. `files` are the same on all ranks.
    ///
    /// # Errors
    /// When the ranks' files differ, or the flow's threads cannot be started.
    pub fn start(
        files: LineFiles,
        prefix: &[u8],
        settings: FlowSettings,
    ) -> Result<WordCount, FlowError> {
        let ranks = &settings.ranks;
        let files = files.of_rank(ranks.rank(), ranks.count());
        let prefix: Arc<[u8]> = prefix.into();
        let read = Arc::default();
        let sources = CountedLines::split(files, settings.workers.get(), &read, &prefix);
        let flow = Flow::with_settings(FLOW, settings.clone());
        let counts = flow.partial::<Counts>("counts");
        flow.sources("read", sources)
            .flat_map(move |block: &LineBlock, emit: &mut Emit<[u8]>| {
                for_each_word(&block.bytes, emit);
            })
            .filter(move |word| starts_with(word, &prefix))
            .fold_local(&counts, |counts, word| counts.add(word, 1));
        Ok(WordCount {
            running: Arc::new(flow.run()?),
            counts,
            settings,
        })
    }

    /// Returns this rank's flow, for its metrics and its end.
    pub fn running(&self) -> &Arc<Running> {
        &self.running
    }

    /// Returns the counts of all ranks, on the rank `at`; no counts on the others. All ranks call
    /// it, at the end of their flows.
    ///
    /// # Errors
    /// When a rank fails.
    pub fn gather(&self, at: u32) -> Result<Counts, FlowError> {
        let counts = self.counts.merged();
        if self.settings.ranks.count() == 1 {
            return Ok(counts);
        }
        let own = counts.iter().map(|(word, count)| (word.to_vec(), count));
        let settings = self.settings.clone();
        gathered::<(Vec<u8>, u64), Counts>(
            "gathered words",
            settings,
            own.collect(),
            at,
            |counts, (word, count)| counts.add(word, *count),
        )
    }
}
