//! Reads files of lines, and counts the bytes read so far.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use millstream_flow::sources::{LineBlock, LineFiles};
use millstream_flow::{BoxError, Output, Source, SourcePartitions, SourceStatus};
use serde::{Deserialize, Serialize};

/// The counts of read data. The stage that splits a block adds to them once per block.
#[derive(Default)]
pub struct ReadCounts {
    bytes: AtomicU64,
    words: AtomicU64,
    /// The bytes read before the checkpoint from which the flow resumes. Written before the flow starts.
    bytes_before: AtomicU64,
}

impl ReadCounts {
    pub fn add(&self, block: &LineBlock, words: u64) {
        let bytes = block.bytes.len() as u64;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.words.fetch_add(words, Ordering::Relaxed);
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn words(&self) -> u64 {
        self.words.load(Ordering::Relaxed)
    }

    pub fn bytes_before(&self) -> u64 {
        self.bytes_before.load(Ordering::Relaxed)
    }
}

/// Reads the lines of files, and stores the counts with its position: at a checkpoint all lines
/// that it has returned have been counted.
pub struct CountedLines {
    files: LineFiles,
    counts: Arc<ReadCounts>,
    /// The prefix of the counted words. A flow that resumed with another prefix would count other words.
    prefix: Arc<[u8]>,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    prefix: Vec<u8>,
    bytes: u64,
    words: u64,
    files: Vec<u8>,
}

impl CountedLines {
    /// Returns `instances` sources that share the work.
    pub fn split(
        files: LineFiles,
        instances: usize,
        counts: &Arc<ReadCounts>,
        prefix: &Arc<[u8]>,
    ) -> Vec<CountedLines> {
        let files = files.split(instances).into_iter();
        let sources = files.map(|files| CountedLines {
            files,
            counts: Arc::clone(counts),
            prefix: Arc::clone(prefix),
        });
        sources.collect()
    }
}

impl Source for CountedLines {
    type Item = LineBlock;

    fn partitions(&self) -> SourcePartitions<'_, LineBlock> {
        self.files.partitions()
    }

    fn records_of(&self, block: &LineBlock) -> u64 {
        self.files.records_of(block)
    }

    fn poll(
        &mut self,
        out: &mut Output<LineBlock>,
        budget: usize,
        waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        self.files.poll(out, budget, waker)
    }

    fn shares_position(&self) -> bool {
        self.files.shares_position()
    }

    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        Ok(postcard::to_stdvec(&Saved {
            prefix: self.prefix.to_vec(),
            bytes: self.counts.bytes(),
            words: self.counts.words(),
            files: self.files.save()?,
        })?)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let saved: Saved = postcard::from_bytes(saved)?;
        if *saved.prefix != *self.prefix {
            let [then, now] = [&saved.prefix, &*self.prefix].map(String::from_utf8_lossy);
            return Err(format!(
                "the checkpoint is of words that start with {then:?}, and this run counts those with {now:?}"
            )
            .into());
        }
        let Saved { bytes, words, .. } = saved;
        self.counts.bytes.store(bytes, Ordering::Relaxed);
        self.counts.words.store(words, Ordering::Relaxed);
        self.counts.bytes_before.store(bytes, Ordering::Relaxed);
        self.files.restore(&saved.files)
    }
}
