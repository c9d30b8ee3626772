//! Event time: its progress as seen by one instance of a stage.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::Timestamp;

use crate::error::BoxError;
use crate::time::alignment::Aligned;
use crate::time::control_event::ControlEvent;
use crate::time::gauge::TimeGauge;
use crate::time::partitions::{self, PartitionId, Partitions};
use crate::time::watermarks::{IDLE_AFTER, Watermarks, millis};

/// An idle source emits its idleness again after `idle_after`, but not more often than this.
const IDLE_EMIT_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// The event time at one instance of a stage.
pub struct StageTime {
    /// Only of sources that emit them.
    watermarks: Option<Watermarks>,
    /// The latest time of an item.
    latest: Cell<Timestamp>,
    /// The watermark that follows from `latest` and `floor`.
    watermark: Cell<Timestamp>,
    /// The partition of the source that the current items come from.
    partition: Cell<PartitionId>,
    /// The latest time of each other partition that this instance has seen.
    seen: RefCell<BTreeMap<PartitionId, Timestamp>>,
    /// The progress of the source in each partition, if it has several.
    partitions: Option<Partitions>,
    /// Whether an item's time was seen in the current slice.
    has_seen: Cell<bool>,
    /// Whether an item's time was seen since the current partition was entered, or the partitions were updated.
    has_seen_partition: Cell<bool>,
    /// The latest time that the clock allows.
    latest_allowed: Cell<Timestamp>,
    /// The watermark of the input, or how far time has advanced during a silence: less than the end of time, which
    /// the input's end alone emits.
    floor: Timestamp,
    /// The last event that this instance emitted.
    emitted: Option<ControlEvent>,
    silence: Option<Silence>,
    /// The input's place among those that it is aligned with, if any.
    aligned: Option<Aligned>,
    /// Shows the state to observers of the flow.
    gauge: Arc<TimeGauge>,
}

/// A stretch in which a source gives nothing.
struct Silence {
    since: Duration,
    /// When the idleness is emitted next. It is emitted repeatedly: readers may wait for the source again.
    emit_at: Duration,
    /// The watermark at its beginning: items after a silence may be as much out of order as before.
    from: Timestamp,
}

impl StageTime {
    /// Returns the time of a stage that reads a source; `partitions` are the source's partitions, if it has several.
    pub fn new(watermarks: Option<Watermarks>, partitions: Option<Partitions>) -> StageTime {
        let goes_by_clock = watermarks.is_some_and(|it| it.goes_by_clock_when_idle);
        StageTime {
            watermarks,
            latest: Cell::new(Timestamp(i64::MIN)),
            watermark: Cell::new(Timestamp(i64::MIN)),
            partition: Cell::new(PartitionId(0)),
            seen: RefCell::default(),
            partitions,
            has_seen: Cell::new(false),
            has_seen_partition: Cell::new(false),
            latest_allowed: Cell::new(Timestamp(i64::MAX)),
            floor: Timestamp(i64::MIN),
            emitted: None,
            silence: None,
            aligned: None,
            gauge: Arc::new(TimeGauge::new(goes_by_clock)),
        }
    }

    /// Aligns the input with the others that lead to the same windows.
    pub fn align(&mut self, aligned: Aligned) {
        self.aligned = Some(aligned);
    }

    pub fn skew_max_ms(&self) -> Option<i64> {
        Some(millis(self.watermarks?.skew_max?))
    }

    /// Whether the source is too far ahead of others to be read.
    pub fn is_held(&self) -> bool {
        let skew_max_ms = self.skew_max_ms();
        let aligned = self.aligned.as_ref().zip(skew_max_ms);
        aligned.is_some_and(|(aligned, skew_max_ms)| aligned.is_ahead(skew_max_ms))
    }

    /// Aligns the partitions of the source, if windows wait for them: before it is polled at `now`.
    pub fn align_partitions(&self, now: impl FnOnce() -> Duration) {
        if let (Some(partitions), Some(_)) = (&self.partitions, &self.aligned)
            && let Some(skew_max_ms) = self.skew_max_ms()
        {
            partitions.align(partitions::Alignment {
                skew_max_ms,
                idle_after: self.idle_after(),
                now: now(),
            });
        }
    }

    /// The input has ended.
    pub fn end(&self) {
        if let Some(aligned) = &self.aligned {
            aligned.leave();
        }
    }

    pub fn gauge(&self) -> &Arc<TimeGauge> {
        &self.gauge
    }

    /// The silence after which later stages do not wait for the source; `None` where it emits no watermarks.
    pub fn idle_after_if_emitting(&self) -> Option<Duration> {
        self.watermarks.map(|watermarks| watermarks.idle_after)
    }

    /// Saves the times that make items late, for a checkpoint.
    pub fn save(&self) -> Vec<u8> {
        self.note_latest();
        let seen = self.seen.borrow();
        let seen = seen
            .iter()
            .map(|(partition, latest)| (partition.0, *latest));
        let saved = (self.floor, seen.collect::<Vec<_>>());
        // Plain numbers are always encoded.
        postcard::to_stdvec(&saved).unwrap_or_default()
    }

    /// Continues from saved times at `now`. The silence of the partitions counts from here on: their producers may have been
    /// away with the flow.
    pub fn restore(&mut self, saved: &[u8], now: Duration) -> Result<(), BoxError> {
        let (floor, seen): (Timestamp, Vec<(u64, Timestamp)>) = postcard::from_bytes(saved)?;
        self.floor = floor;
        let seen = seen.into_iter();
        let seen: BTreeMap<_, _> = seen
            .map(|(partition, latest)| (PartitionId(partition), latest))
            .collect();
        for (partition, latest) in &seen {
            if let Some(partitions) = &self.partitions {
                partitions.see(*partition, *latest, now);
            }
        }
        self.seen.replace(seen);
        self.set_latest(self.latest_of(self.partition.get()));
        Ok(())
    }

    /// Notes that the next items are of this partition.
    #[inline]
    pub fn enter_partition(&self, partition: PartitionId, now: impl FnOnce() -> Duration) {
        if self.partition.get() != partition {
            self.change_partition(partition, now());
        }
    }

    #[cold]
    fn change_partition(&self, partition: PartitionId, now: Duration) {
        self.update_partitions(now);
        self.note_latest();
        self.partition.set(partition);
        self.set_latest(self.latest_of(partition));
    }

    fn latest_of(&self, partition: PartitionId) -> Timestamp {
        let latest = self.seen.borrow().get(&partition).copied();
        latest.unwrap_or(Timestamp(i64::MIN))
    }

    fn set_latest(&self, latest: Timestamp) {
        self.latest.set(latest);
        self.watermark.set(self.watermark_of(latest));
    }

    /// Notes how far the current partition is.
    fn note_latest(&self) {
        let latest = self.latest.get();
        if latest > Timestamp(i64::MIN) {
            self.seen.borrow_mut().insert(self.partition.get(), latest);
        }
    }

    /// Updates the progress of the current partition, if items of it were seen.
    fn update_partitions(&self, now: Duration) {
        if let Some(partitions) = &self.partitions
            && self.has_seen_partition.replace(false)
        {
            partitions.go_on(now, self.idle_after());
            partitions.see(self.partition.get(), self.latest.get(), now);
        }
    }

    /// Returns the latest time of the slowest partition that the watermark waits for at `now`.
    fn latest_of_all(&self, now: Duration) -> Timestamp {
        let Some(partitions) = &self.partitions else {
            return self.latest.get();
        };
        partitions.latest(now, self.idle_after())
    }

    fn idle_after(&self) -> Duration {
        (self.watermarks).map_or(IDLE_AFTER, |watermarks| watermarks.idle_after)
    }

    /// Shows observers the partitions that the watermark waits for.
    fn show_partitions(&self) {
        let behind = self.partitions.as_ref().map(Partitions::behind);
        let (unread, unknown) = behind.unwrap_or_default();
        self.gauge.set_unread_partitions(unread, unknown);
    }

    /// Counts an item of the current partition that came too late for its windows.
    pub fn count_late(&self) {
        self.gauge.count_late(self.current_partition());
    }

    /// Returns the partition of the current items, if the source has several.
    pub fn current_partition(&self) -> Option<PartitionId> {
        self.partitions.as_ref().map(|_| self.partition.get())
    }

    /// Returns whether the source has yet to give items of a partition, or does not know.
    fn is_behind(&self) -> bool {
        self.partitions.as_ref().is_some_and(Partitions::is_behind)
    }

    /// Begins a slice of items.
    pub fn begin(&self, now: impl FnOnce() -> Timestamp) {
        if let Some(ahead_max) = self.watermarks.and_then(|watermarks| watermarks.ahead_max) {
            let latest = now().0.saturating_add(millis(ahead_max));
            self.latest_allowed.set(Timestamp(latest));
        }
    }

    /// Notes an item's time; `false` if the clock forbids it.
    #[inline]
    pub fn see(&self, time: Timestamp) -> bool {
        let is_allowed = time <= self.latest_allowed.get();
        if is_allowed {
            if time > self.latest.get() {
                self.set_latest(time);
            }
            self.has_seen.set(true);
            self.has_seen_partition.set(true);
        }
        is_allowed
    }

    /// Sets the watermark before the next item.
    #[inline]
    pub fn stand_at(&self, watermark: Timestamp) {
        self.watermark.set(watermark);
    }

    /// Returns how far an item's time may lie ahead of the clock.
    pub fn ahead_max(&self) -> Duration {
        let ahead_max = self.watermarks.and_then(|watermarks| watermarks.ahead_max);
        ahead_max.unwrap_or(Duration::MAX)
    }

    /// Returns the watermark: no item of the current partition that is in time is earlier.
    #[inline]
    pub fn watermark(&self) -> Timestamp {
        self.watermark.get()
    }

    #[inline]
    fn watermark_of(&self, latest: Timestamp) -> Timestamp {
        let disorder_max_ms = self
            .watermarks
            .map_or(0, |watermarks| watermarks.disorder_max_ms);
        // The end of time is the end of the input: no item can have it.
        let latest = latest.0.saturating_sub(disorder_max_ms).min(i64::MAX - 1);
        self.floor.max(Timestamp(latest))
    }

    /// After items were processed: returns the event to emit, `observed` being the event behind them. A source
    /// whose items have no times counts as silent.
    pub fn after_items(
        &mut self,
        observed: Option<ControlEvent>,
        now: impl FnOnce() -> Duration,
    ) -> Option<ControlEvent> {
        self.observe(observed);
        if self.watermarks.is_none() {
            return observed;
        }
        let now = now();
        self.update_partitions(now);
        self.show_partitions();
        if self.has_seen.replace(false) {
            if self.silence.take().is_some() {
                self.gauge.set_silent(None);
            }
            let latest = self.watermark_of(self.latest_of_all(now));
            let time = latest.max(self.time_emitted());
            // From here on it decides for all partitions, also for those that it has not waited for.
            self.reach(time);
            if let Some(aligned) = &self.aligned {
                aligned.reach(time);
            }
            return self.emit_if_new(ControlEvent::Watermark(time));
        }
        self.silent(now);
        self.emit_idle(now)
    }

    /// Observes an event of the input.
    pub fn observe(&mut self, observed: Option<ControlEvent>) {
        if let Some(ControlEvent::Watermark(time) | ControlEvent::Idle(time)) = observed {
            self.reach(time);
        }
        if let Some(aligned) = &self.aligned {
            match observed {
                Some(ControlEvent::Watermark(time)) => aligned.reach(time),
                Some(ControlEvent::Idle(_) | ControlEvent::End) => aligned.leave(),
                None => {}
            }
        }
    }

    /// Advances event time to `time`.
    pub fn reach(&mut self, time: Timestamp) {
        self.floor = self.floor.max(time);
        self.watermark.set(self.watermark_of(self.latest.get()));
    }

    /// The source has nothing at `now`: returns when to look again at the latest. A source that has not given the
    /// items that it found in its partitions is not silent; partitions that it holds may continue when another is idle.
    pub fn silent(&mut self, now: Duration) -> Option<Duration> {
        let watermarks = self.watermarks?;
        if self.is_behind() {
            self.silence = None;
            self.gauge.set_silent(None);
            self.show_partitions();
            let partitions = self.partitions.as_ref()?;
            return partitions.idle_at(now, watermarks.idle_after);
        }
        let from = self.watermark_of(self.latest_of_all(now));
        self.show_partitions();
        if self.silence.is_none() {
            self.gauge.set_silent(Some(now));
        }
        // A source without partitions has nothing to wait for.
        let has_partitions = self
            .partitions
            .as_ref()
            .is_none_or(|partitions| !partitions.is_empty());
        let idle_after = if has_partitions {
            watermarks.idle_after
        } else {
            Duration::ZERO
        };
        let silence = self.silence.get_or_insert_with(|| Silence {
            since: now,
            emit_at: now.saturating_add(idle_after),
            from,
        });
        Some(silence.emit_at)
    }

    /// Returns the event to emit about the silence at `now`, if any.
    pub fn emit_idle(&mut self, now: Duration) -> Option<ControlEvent> {
        let Watermarks {
            idle_after,
            goes_by_clock_when_idle,
            ..
        } = self.watermarks?;
        if let Some(ControlEvent::Idle(time)) = self.emitted
            && self.is_behind()
        {
            if let Some(aligned) = &self.aligned {
                aligned.reach(time);
            }
            return self.emit_if_new(ControlEvent::Watermark(time));
        }
        let silence = self
            .silence
            .as_mut()
            .filter(|silence| now >= silence.emit_at)?;
        let lasted = now.saturating_sub(silence.since);
        silence.emit_at = now.saturating_add(idle_after.max(IDLE_EMIT_INTERVAL_MIN));
        let time = match silence.from {
            // There is no watermark to advance from.
            Timestamp(i64::MIN) => silence.from,
            from if !goes_by_clock_when_idle => from,
            Timestamp(from) => Timestamp(from.saturating_add(millis(lasted)).min(i64::MAX - 1)),
        };
        self.reach(time);
        self.end();
        let event = ControlEvent::Idle(self.floor);
        self.gauge.set_event(event);
        Some(*self.emitted.insert(event))
    }

    fn time_emitted(&self) -> Timestamp {
        match self.emitted {
            Some(ControlEvent::Watermark(time) | ControlEvent::Idle(time)) => time,
            Some(ControlEvent::End) | None => Timestamp(i64::MIN),
        }
    }

    fn emit_if_new(&mut self, event: ControlEvent) -> Option<ControlEvent> {
        let is_empty =
            self.emitted.is_none() && event == ControlEvent::Watermark(Timestamp(i64::MIN));
        let is_new = self.emitted != Some(event) && !is_empty;
        is_new.then(|| {
            self.gauge.set_event(event);
            *self.emitted.insert(event)
        })
    }
}
