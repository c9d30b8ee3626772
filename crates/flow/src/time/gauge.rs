//! The progress of event time at one instance of a source's stage, for observers of the flow.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use millstream_base::Timestamp;
use parking_lot::Mutex;

use crate::time::control_event::ControlEvent;
use crate::time::partitions::PartitionId;

/// Event time at one instance. The worker in the instance writes the figures, at most once per slice; any thread reads
/// them. They may be of different moments.
pub struct TimeGauge {
    /// The watermark advances by the clock while the source is idle.
    goes_by_clock: bool,
    /// The last watermark, `i64::MIN` before the first.
    watermark: AtomicI64,
    /// Later stages do not wait for the instance.
    is_idle: AtomicBool,
    has_ended: AtomicBool,
    /// 1 + when the instance found nothing after its last item, in nanoseconds of the flow's clock; 0 while items come.
    silent_since_ns: AtomicU64,
    /// Partitions of which the source has yet to give records.
    unread_partitions: AtomicU64,
    /// Partitions whose end is not known, since their server does not answer.
    unknown_partitions: AtomicU64,
    /// Items that came too late for their windows, by partition; `None` for a source that has but one. Locked by the
    /// worker for each late item, and by readers.
    late: Mutex<LateByPartition>,
}

/// Items that came too late for their windows, by partition; `None` for a source that has but one.
pub type LateByPartition = BTreeMap<Option<PartitionId>, u64>;

/// The figures of a [`TimeGauge`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceTime {
    /// The watermark advances by the clock while the source is idle.
    pub goes_by_clock: bool,
    /// No item that is in time is earlier; `None` before the first watermark.
    pub watermark: Option<Timestamp>,
    /// Later stages do not wait for the source.
    pub is_idle: bool,
    /// Since when the source has given nothing, by the flow's clock.
    pub silent_since: Option<Duration>,
    /// Partitions of which the source has yet to give records.
    pub unread_partitions: u64,
    /// Partitions whose end is not known, since their server does not answer.
    pub unknown_partitions: u64,
}

impl TimeGauge {
    /// Makes the gauge of an instance whose watermark advances by the clock while its source is idle, or does not.
    pub fn new(goes_by_clock: bool) -> Self {
        TimeGauge {
            goes_by_clock,
            watermark: AtomicI64::new(i64::MIN),
            is_idle: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            silent_since_ns: AtomicU64::new(0),
            unread_partitions: AtomicU64::new(0),
            unknown_partitions: AtomicU64::new(0),
            late: Mutex::default(),
        }
    }

    pub fn set_event(&self, event: ControlEvent) {
        let time = match event {
            ControlEvent::Watermark(time) | ControlEvent::Idle(time) => time,
            ControlEvent::End => return,
        };
        self.watermark.store(time.0, Ordering::Relaxed);
        let is_idle = matches!(event, ControlEvent::Idle(_));
        self.is_idle.store(is_idle, Ordering::Relaxed);
    }

    pub fn set_ended(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    pub fn set_silent(&self, since: Option<Duration>) {
        let since_ns = since.map_or(0, |since| 1 + since.as_nanos() as u64);
        self.silent_since_ns.store(since_ns, Ordering::Relaxed);
    }

    pub fn set_unread_partitions(&self, unread: usize, unknown: usize) {
        self.unread_partitions
            .store(unread as u64, Ordering::Relaxed);
        self.unknown_partitions
            .store(unknown as u64, Ordering::Relaxed);
    }

    pub fn count_late(&self, partition: Option<PartitionId>) {
        *self.late.lock().entry(partition).or_default() += 1;
    }

    pub fn late(&self) -> LateByPartition {
        self.late.lock().clone()
    }

    /// Returns the figures; `None` when the instance has ended.
    pub fn read(&self) -> Option<SourceTime> {
        if self.has_ended.load(Ordering::Relaxed) {
            return None;
        }
        let watermark = Timestamp(self.watermark.load(Ordering::Relaxed));
        let since_ns = self.silent_since_ns.load(Ordering::Relaxed);
        Some(SourceTime {
            goes_by_clock: self.goes_by_clock,
            watermark: (watermark > Timestamp(i64::MIN)).then_some(watermark),
            is_idle: self.is_idle.load(Ordering::Relaxed),
            silent_since: since_ns.checked_sub(1).map(Duration::from_nanos),
            unread_partitions: self.unread_partitions.load(Ordering::Relaxed),
            unknown_partitions: self.unknown_partitions.load(Ordering::Relaxed),
        })
    }
}
