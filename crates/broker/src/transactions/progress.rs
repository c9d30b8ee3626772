//! The participants that lack the outcome of a transaction.

use std::collections::BTreeSet;
use std::time::Duration;

use super::TopicPartition;
use super::config::{RETRY_BACKOFF_MAX, RETRY_BACKOFF_MIN};
use super::participants::Participants;
use crate::groups::GroupName;

/// The participants without the outcome, and those of them without an attempt under way.
#[derive(Debug, Default)]
pub(super) struct Progress {
    partitions: Waiting<TopicPartition>,
    groups: Waiting<GroupName>,
    /// The failed attempts so far.
    retries: u32,
}

#[derive(Debug)]
struct Waiting<T> {
    /// The participants without the outcome.
    open: BTreeSet<T>,
    /// The participants without an attempt in flight.
    untold: BTreeSet<T>,
}

impl Progress {
    /// No participant has the outcome yet.
    pub fn new(participants: &Participants) -> Self {
        Progress {
            partitions: Waiting::new(participants.partitions().collect()),
            groups: Waiting::new(participants.groups().clone()),
            retries: 0,
        }
    }

    /// Partitions whose markers are missing.
    pub fn partitions(&self) -> Vec<TopicPartition> {
        self.partitions.open.iter().cloned().collect()
    }

    /// Whether partitions of a stream lack their markers.
    pub fn lacks(&self, stream: &str) -> bool {
        let mut open = self.partitions.open.iter();
        open.any(|partition| *partition.topic == *stream)
    }

    /// Groups that do not know the outcome.
    pub fn groups(&self) -> Vec<GroupName> {
        self.groups.open.iter().cloned().collect()
    }

    pub fn is_done(&self) -> bool {
        self.partitions.open.is_empty() && self.groups.open.is_empty()
    }

    pub fn has_untold(&self) -> bool {
        !self.partitions.untold.is_empty() || !self.groups.untold.is_empty()
    }

    /// Takes the participants that need a marker now.
    pub fn take_untold(&mut self) -> (Vec<TopicPartition>, Vec<GroupName>) {
        (self.partitions.take_untold(), self.groups.take_untold())
    }

    pub fn partitions_done(&mut self, done: &[TopicPartition]) {
        self.partitions.done(done);
    }

    pub fn groups_done(&mut self, done: &[GroupName]) {
        self.groups.done(done);
    }

    pub fn partitions_failed(&mut self, failed: Vec<TopicPartition>) {
        self.partitions.failed(failed);
    }

    pub fn groups_failed(&mut self, failed: Vec<GroupName>) {
        self.groups.failed(failed);
    }

    /// How long to wait before the next attempt, which is counted.
    pub fn backoff(&mut self) -> Duration {
        let factor = 1_u32.checked_shl(self.retries).unwrap_or(u32::MAX);
        self.retries = self.retries.saturating_add(1);
        RETRY_BACKOFF_MIN
            .saturating_mul(factor)
            .min(RETRY_BACKOFF_MAX)
    }
}

impl<T: Ord + Clone> Waiting<T> {
    fn new(open: BTreeSet<T>) -> Self {
        let untold = open.clone();
        Waiting { open, untold }
    }

    fn take_untold(&mut self) -> Vec<T> {
        std::mem::take(&mut self.untold).into_iter().collect()
    }

    fn done(&mut self, done: &[T]) {
        for one in done {
            self.open.remove(one);
            self.untold.remove(one);
        }
    }

    fn failed(&mut self, failed: Vec<T>) {
        let open = failed.into_iter().filter(|one| self.open.contains(one));
        self.untold.extend(open);
    }
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Waiting {
            open: BTreeSet::new(),
            untold: BTreeSet::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rarer_up_to_a_bound() {
        let mut progress = Progress::default();
        let waits: Vec<_> = (0..100).map(|_| progress.backoff()).collect();
        assert_eq!(
            waits[..3],
            [1, 2, 4].map(|factor| RETRY_BACKOFF_MIN * factor)
        );
        assert_eq!(waits[99], RETRY_BACKOFF_MAX);
    }

    #[test]
    fn a_participant_that_fails_and_then_confirms_gets_no_second_marker() {
        let mut participants = Participants::default();
        participants.add_group("a".into());
        participants.add_group("b".into());
        let mut progress = Progress::new(&participants);
        assert_eq!(progress.take_untold().1, ["a".into(), "b".into()]);
        assert!(!progress.has_untold());
        progress.groups_failed(vec!["a".into(), "b".into()]);
        progress.groups_done(&["a".into()]);
        assert_eq!(progress.take_untold().1, ["b".into()]);
        assert_eq!(progress.groups(), ["b".into()]);
    }
}
