//! The partitions of a source, such as a stream's partitions. Each partition has an order of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Offset, Timestamp};
use parking_lot::{Mutex, MutexGuard};

/// Names a partition among the partitions of its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(pub u64);

/// Describes the partitions of a source: see [`Source::partitions`](crate::Source::partitions).
#[derive(Debug)]
pub enum SourcePartitions<'a, T> {
    /// One: all items are in one order.
    One,
    /// Several, of which one may be far ahead of another.
    Many {
        /// The partition of an item.
        partition_of: fn(&T) -> PartitionId,
        /// The progress of the source in each partition.
        partitions: &'a Partitions,
    },
}

/// The progress of a source in each of its partitions, from which the source's watermark follows. If a partition held
/// records when the source found it, the watermark waits until the source has given all of those. If the partition was
/// empty, it is idle: the watermark waits for it from its first item on.
///
/// A partition is idle only while the source has given everything up to the partition's end, and knows that. A source
/// that learns of ends while it runs [notes](Partitions::note_end) them, and notes when it cannot learn them.
///
/// A source adds a partition that it finds while it runs, before it gives items that it read later. Before it gives
/// items of a partition, it checks whether the partition [is held](Partitions::is_held) for being too far ahead of the
/// others. A clone is another handle of the same partitions; sources that share the work on their partitions have one
/// each.
#[derive(Debug, Clone, Default)]
pub struct Partitions {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    partitions: BTreeMap<PartitionId, Partition>,
    /// The earliest time of an item of any partition. A partition without items so far counts as being at that time.
    beginning: Option<Timestamp>,
    /// The bound on the distance between partitions; `None` where there is no bound.
    alignment: Option<Alignment>,
    /// A partition beyond this time is held. `None` after each change, until the time is computed again.
    held_behind: Option<Timestamp>,
}

/// The settings of the alignment of a source's partitions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Alignment {
    /// The greatest distance by which a partition may be ahead of another.
    pub skew_max_ms: i64,
    /// A partition that was silent for this long holds no other.
    pub idle_after: Duration,
    /// The flow's monotonic clock, as of the last look.
    pub now: Duration,
}

#[derive(Debug)]
struct Partition {
    /// The source still has to give the items before this offset. `None` once it has.
    end: Option<Offset>,
    /// Behind the last item that the source has given.
    next: Offset,
    /// The source knows the end: `false` while the partition's server does not answer.
    is_end_known: bool,
    /// The end is known again. The silence before does not count. Cleared by the next look.
    is_known_again: bool,
    /// The source will never give anything more of it.
    has_ended: bool,
    /// The latest time of an item that the source's stage has processed.
    latest: Timestamp,
    /// When the stage last processed an item, or resumed with one processed, by the flow's monotonic clock.
    seen_at: Option<Duration>,
}

impl Default for Partition {
    fn default() -> Self {
        Partition {
            end: None,
            next: Offset(0),
            is_end_known: true,
            is_known_again: false,
            has_ended: false,
            latest: Timestamp(i64::MIN),
            seen_at: None,
        }
    }
}

impl Partition {
    fn is_waited_for(&self, now: Duration, idle_after: Duration) -> bool {
        let is_live = |seen_at| now.saturating_sub(seen_at) < idle_after;
        self.is_behind() || (!self.has_ended && self.seen_at.is_some_and(is_live))
    }

    /// Returns whether the partition has items that the source has yet to give, or may have some.
    fn is_behind(&self) -> bool {
        self.has_unread() || self.has_unknown_end()
    }

    fn has_unread(&self) -> bool {
        !self.has_ended && self.end.is_some()
    }

    fn has_unknown_end(&self) -> bool {
        !self.has_ended && !self.is_end_known
    }

    /// Notes that the source has given the items before `next`.
    fn pass(&mut self, next: Offset) {
        self.next = self.next.max(next);
        self.end.take_if(|end| *end <= next);
    }
}

impl Partitions {
    /// Adds a partition that the source reads from `next` on, and that ends at `end` now. If the partition is known, the
    /// source continues at another offset, or has found more in it.
    pub fn add(&self, partition: PartitionId, next: Offset, end: Offset) {
        let mut shared = self.change();
        let partition = shared.partitions.entry(partition).or_default();
        partition.end = (next < end).then_some(end);
        partition.next = next;
        partition.is_end_known = true;
        partition.has_ended = false;
    }

    /// Notes the present end of a partition that was [added](Self::add), behind its last item that can be read; `None`
    /// when it cannot be learned, since the partition's server does not answer. While the source has not given all
    /// items before the end, or does not know the end, the partition is not idle, however long it gives nothing.
    /// Returns whether the partition has come to be behind, or is no longer: the source is then to be polled.
    pub fn note_end(&self, partition: PartitionId, end: Option<Offset>) -> bool {
        let mut shared = self.change();
        let partition = shared.partitions.get_mut(&partition);
        let Some(partition) = partition.filter(|partition| !partition.has_ended) else {
            return false;
        };
        let was_behind = partition.is_behind();
        let was_known = std::mem::replace(&mut partition.is_end_known, end.is_some());
        partition.is_known_again |= !was_known && end.is_some();
        if end > Some(partition.next) {
            partition.end = partition.end.max(end);
        }
        was_behind != partition.is_behind()
    }

    /// Notes that the source has given all items of a partition before `next`.
    pub fn pass(&self, partition: PartitionId, next: Offset) {
        if let Some(partition) = self.change().partitions.get_mut(&partition) {
            partition.pass(next);
        }
    }

    /// Notes that the source has given all items of all partitions that are not held. Returns whether this is new for
    /// some of them: if so, other partitions may be held no longer.
    pub fn pass_all(&self) -> bool {
        self.change_unheld(|partition| {
            let end = partition.end;
            partition.pass(end.unwrap_or_default());
            end.is_some()
        })
    }

    /// Notes that the source will give nothing more, except of partitions that are held. Returns whether this is new for
    /// some, as [`pass_all`](Self::pass_all) does.
    pub fn end_all(&self) -> bool {
        self.change_unheld(|partition| {
            partition.end = None;
            !std::mem::replace(&mut partition.has_ended, true)
        })
    }

    /// Notes that the source will give nothing more of a partition: no other partition waits for it.
    pub fn end(&self, partition: PartitionId) {
        if let Some(partition) = self.change().partitions.get_mut(&partition) {
            partition.end = None;
            partition.has_ended = true;
        }
    }

    /// Returns whether a partition is further ahead in event time than [`skew_max`](crate::Watermarks::skew_max) of
    /// another that the watermark waits for. The source then gives none of the partition's items, and checks
    /// again whenever it is polled. If it has only items of held partitions, it is idle; the flow polls it again when
    /// others have caught up.
    pub fn is_held(&self, partition: PartitionId) -> bool {
        let mut shared = self.shared.lock();
        let held_behind = shared.held_behind();
        shared
            .partitions
            .get(&partition)
            .is_some_and(|partition| partition.latest > held_behind)
    }

    /// Notes that the source holds items before `next` of a partition that [is held](Self::is_held). The source gives
    /// them once the others have caught up, so the partition is not idle meanwhile.
    pub fn keep(&self, partition: PartitionId, next: Offset) {
        let mut shared = self.change();
        let partition = shared.partitions.entry(partition).or_default();
        partition.end = partition.end.max(Some(next));
    }

    /// Applies `change` to all partitions that are not held; returns whether it returned `true` for one.
    fn change_unheld(&self, mut change: impl FnMut(&mut Partition) -> bool) -> bool {
        let mut shared = self.shared.lock();
        let held_behind = shared.held_behind();
        let mut has_changed = false;
        for partition in shared.partitions.values_mut() {
            has_changed |= partition.latest <= held_behind && change(partition);
        }
        shared.held_behind = None;
        has_changed
    }

    /// Locks the partitions for a change of their progress.
    fn change(&self) -> MutexGuard<'_, Shared> {
        let mut shared = self.shared.lock();
        shared.held_behind = None;
        shared
    }

    /// Sets the alignment of the partitions, before the source is polled.
    pub(crate) fn align(&self, alignment: Alignment) {
        let mut shared = self.change();
        shared.settle(alignment.now, alignment.idle_after);
        shared.alignment = Some(alignment);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shared.lock().partitions.is_empty()
    }

    /// Returns whether the source has yet to give items of a partition, or does not know.
    pub(crate) fn is_behind(&self) -> bool {
        let shared = self.shared.lock();
        shared.partitions.values().any(Partition::is_behind)
    }

    /// Returns when the next partition will have been silent for `idle_after`: then it holds no other.
    pub(crate) fn idle_at(&self, now: Duration, idle_after: Duration) -> Option<Duration> {
        let mut shared = self.shared.lock();
        shared.settle(now, idle_after);
        let partitions = shared
            .partitions
            .values()
            .filter(|partition| !partition.is_behind());
        let idle_at =
            partitions.filter_map(|partition| Some(partition.seen_at?.saturating_add(idle_after)));
        idle_at.filter(|at| *at > now).min()
    }

    /// Notes that the source gives items at `now`. After a stall it may give the items of one partition long before those
    /// of another. So a silence of all partitions counts as at most half of `idle_after`.
    pub(crate) fn go_on(&self, now: Duration, idle_after: Duration) {
        self.change().go_on(now, idle_after);
    }

    /// Returns the numbers of partitions of which the source has yet to give items, and of those whose end it does not
    /// know.
    pub(crate) fn behind(&self) -> (usize, usize) {
        let shared = self.shared.lock();
        let count = |is_counted: fn(&Partition) -> bool| {
            let partitions = shared.partitions.values();
            partitions.filter(|partition| is_counted(partition)).count()
        };
        (
            count(|partition| partition.has_unread() && !partition.has_unknown_end()),
            count(Partition::has_unknown_end),
        )
    }

    /// Notes that the stage has processed an item of this time, at `seen_at` or in a run before that.
    pub(crate) fn see(&self, partition: PartitionId, latest: Timestamp, seen_at: Duration) {
        let mut shared = self.change();
        let beginning = shared.beginning.unwrap_or(latest).min(latest);
        shared.beginning = Some(beginning);
        let partition = shared.partitions.entry(partition).or_default();
        partition.latest = partition.latest.max(latest);
        partition.seen_at = partition.seen_at.max(Some(seen_at));
    }

    /// Returns the time of the slowest partition that the watermark waits for; if it waits for none, the time of the
    /// fastest partition.
    pub(crate) fn latest(&self, now: Duration, idle_after: Duration) -> Timestamp {
        let mut shared = self.shared.lock();
        shared.settle(now, idle_after);
        let waited_for = shared.waited_for(now, idle_after);
        let least = waited_for.map(|partition| partition.latest).min();
        let furthest = || {
            shared
                .partitions
                .values()
                .map(|partition| partition.latest)
                .max()
        };
        least.or_else(furthest).unwrap_or(Timestamp(i64::MIN))
    }
}

impl Shared {
    /// Counts the silence of partitions whose end is known again from `now` on: producers may have waited for the server,
    /// too.
    fn settle(&mut self, now: Duration, idle_after: Duration) {
        if !self.partitions.values().any(|it| it.is_known_again) {
            return;
        }
        self.held_behind = None;
        self.go_on(now, idle_after);
        for partition in self.partitions.values_mut() {
            let is_known_again = std::mem::take(&mut partition.is_known_again);
            // A partition without items is idle until its first.
            if is_known_again && partition.latest > Timestamp(i64::MIN) {
                partition.seen_at = partition.seen_at.max(Some(now));
            }
        }
    }

    /// As [`Partitions::go_on`].
    fn go_on(&mut self, now: Duration, idle_after: Duration) {
        let partitions = &mut self.partitions;
        let last = partitions
            .values()
            .filter_map(|partition| partition.seen_at)
            .max();
        let silence = last.map_or(Duration::ZERO, |last| now.saturating_sub(last));
        let uncounted = silence.saturating_sub(idle_after / 2);
        for seen_at in partitions
            .values_mut()
            .filter_map(|partition| partition.seen_at.as_mut())
        {
            *seen_at += uncounted;
        }
    }

    fn waited_for(&self, now: Duration, idle_after: Duration) -> impl Iterator<Item = &Partition> {
        let partitions = self.partitions.values();
        partitions.filter(move |partition| partition.is_waited_for(now, idle_after))
    }

    /// Returns the time beyond which a partition is held. The slowest partition is never held, so none waits for ever.
    fn held_behind(&mut self) -> Timestamp {
        const NONE: Timestamp = Timestamp(i64::MAX);
        let (Some(alignment), Some(beginning)) = (self.alignment, self.beginning) else {
            return NONE;
        };
        if let Some(held_behind) = self.held_behind {
            return held_behind;
        }
        let waited_for = self.waited_for(alignment.now, alignment.idle_after);
        let least = waited_for
            .map(|partition| partition.latest.max(beginning))
            .min();
        let held_behind = least.map_or(NONE, |Timestamp(least)| {
            Timestamp(least.saturating_add(alignment.skew_max_ms))
        });
        *self.held_behind.insert(held_behind)
    }
}
