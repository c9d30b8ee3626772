//! Another flow: how often does each word occur?

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millstream_flow::sources::{LineBlock, LineFiles};
use millstream_flow::{Counts, Emit, Flow, FlowError, FlowSettings, Partial, Running, gathered};

use crate::words::{for_each_word, starts_with};

/// The name of the flow.
const FLOW: &str = "words";

/// Counts the words of files that start with a prefix, each rank those of its part of the files.
pub struct WordCount {
    running: Arc<Running>,
    counts: Partial<Counts>,
    bytes: Arc<AtomicU64>,
    settings: FlowSettings,
}

impl WordCount {
    /// Starts this rank's part. `files` are the same on all ranks.
    ///
    /// # Errors
    /// When not all ranks run the same, or there are no threads for the flow.
    pub fn start(
        files: LineFiles,
        prefix: &[u8],
        settings: FlowSettings,
    ) -> Result<WordCount, FlowError> {
        let ranks = &settings.ranks;
        let files = files.of_rank(ranks.rank(), ranks.count());
        let sources = files.split(settings.workers.get());
        let prefix: Box<[u8]> = prefix.into();
        let bytes = Arc::new(AtomicU64::new(0));
        let read = Arc::clone(&bytes);
        let mut flow = Flow::with_settings(FLOW, settings.clone());
        let counts = flow.partial::<Counts>("counts");
        flow.sources("read", sources)
            .flat_map(move |block: &LineBlock, emit: &mut Emit<[u8]>| {
                for_each_word(&block.bytes, emit);
                read.fetch_add(block.bytes.len() as u64, Ordering::Relaxed);
            })
            .filter(move |word| starts_with(word, &prefix))
            .fold_local(&counts, |counts, word| counts.add(word, 1));
        Ok(WordCount {
            running: Arc::new(flow.run()?),
            counts,
            bytes,
            settings,
        })
    }

    /// This rank's flow, for its metrics and its end.
    pub fn running(&self) -> &Arc<Running> {
        &self.running
    }

    /// Bytes of the lines that this rank has read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What all ranks have counted, on the rank `at`; nothing on the others. All of them call it, at the
    /// end of their flows.
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
