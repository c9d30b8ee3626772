//! The progress of event time at one instance of a source's stage, for observers of the flow.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use millstream_base::Timestamp;

use crate::time::control_event::ControlEvent;

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
    /// Partitions of which the source has yet to give records that they held when it found them.
    unread_partitions: AtomicU64,
}

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
    /// Partitions of which the source has yet to give records that they held when it found them.
    pub unread_partitions: u64,
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

    pub fn set_unread_partitions(&self, partitions: usize) {
        self.unread_partitions
            .store(partitions as u64, Ordering::Relaxed);
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
        })
    }
}
