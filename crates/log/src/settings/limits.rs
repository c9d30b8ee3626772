//! Limits of a stream's chunks, segments and groups, which follow its settings.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use millstream_base::Timestamp;
use parking_lot::RwLock;

use crate::keys::expiry::{KEYED_CLOCK_MIN, KeyedClock};
use crate::keys::secondary::name::SecondaryName;
use crate::settings::intake::Intake;

/// The number for values without an end.
const NO_TTL: u64 = u64::MAX;

/// The number for the wall clock: below all numbers that a clock may have.
const WALL: i64 = KEYED_CLOCK_MIN.0 - 1;

/// The bounds of a stream's chunks and groups.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The largest chunk.
    pub chunk_bytes_max: usize,
    /// The largest segment.
    pub segment_bytes_max: usize,
    /// A group is closed before it grows beyond this, except by its first chunk.
    pub group_bytes_max: u64,
    /// Neighbouring chunks are joined up to this size on their way to the disk.
    pub run_bytes_max: usize,
    /// Whether records without a key are refused.
    pub needs_keys: bool,
    /// The lifetime of values of keys without an expiry of their own.
    pub ttl: Option<Duration>,
    /// The clock that the ends of values are compared with.
    pub keyed_clock: KeyedClock,
    /// The indexes of secondary keys.
    pub secondary: Arc<[SecondaryName]>,
    /// How chunks are changed and checked before they are stored, if they are.
    pub intake: Option<Intake>,
}

/// The limits that follow the stream's settings, as every append sees them. Stored when the settings
/// change; each counts from the next chunk, segment or group on.
#[derive(Debug)]
pub struct LiveLimits {
    chunk_bytes_max: AtomicUsize,
    segment_bytes_max: AtomicUsize,
    group_bytes_max: AtomicU64,
    needs_keys: AtomicBool,
    /// In milliseconds; [`NO_TTL`] for ever.
    ttl: AtomicU64,
    /// In milliseconds; [`WALL`] for the wall clock.
    keyed_clock: AtomicI64,
    secondary: RwLock<Arc<[SecondaryName]>>,
    /// Whether there is an intake, so that appends without one take no lock.
    has_intake: AtomicBool,
    intake: RwLock<Option<Intake>>,
}

impl LiveLimits {
    pub fn new(limits: Limits) -> LiveLimits {
        LiveLimits {
            chunk_bytes_max: AtomicUsize::new(limits.chunk_bytes_max),
            segment_bytes_max: AtomicUsize::new(limits.segment_bytes_max),
            group_bytes_max: AtomicU64::new(limits.group_bytes_max),
            needs_keys: AtomicBool::new(limits.needs_keys),
            ttl: AtomicU64::new(ttl_ms(limits.ttl)),
            keyed_clock: AtomicI64::new(clock_ms(limits.keyed_clock)),
            secondary: RwLock::new(limits.secondary),
            has_intake: AtomicBool::new(limits.intake.is_some()),
            intake: RwLock::new(limits.intake),
        }
    }

    pub fn set(&self, limits: Limits) {
        let relaxed = Ordering::Relaxed;
        self.chunk_bytes_max.store(limits.chunk_bytes_max, relaxed);
        self.segment_bytes_max
            .store(limits.segment_bytes_max, relaxed);
        self.group_bytes_max.store(limits.group_bytes_max, relaxed);
        self.needs_keys.store(limits.needs_keys, relaxed);
        self.ttl.store(ttl_ms(limits.ttl), relaxed);
        let clock = clock_ms(limits.keyed_clock);
        self.keyed_clock.store(clock, relaxed);
        *self.secondary.write() = limits.secondary;
        *self.intake.write() = limits.intake;
        self.has_intake.store(limits.intake.is_some(), relaxed);
    }

    pub fn intake(&self) -> Option<Intake> {
        match self.has_intake.load(Ordering::Relaxed) {
            true => *self.intake.read(),
            false => None,
        }
    }

    pub fn chunk_bytes_max(&self) -> usize {
        self.chunk_bytes_max.load(Ordering::Relaxed)
    }

    pub fn segment_bytes_max(&self) -> usize {
        self.segment_bytes_max.load(Ordering::Relaxed)
    }

    pub fn needs_keys(&self) -> bool {
        self.needs_keys.load(Ordering::Relaxed)
    }

    /// The lifetime of values of keys without an expiry of their own.
    pub fn ttl(&self) -> Option<Duration> {
        let ttl = self.ttl.load(Ordering::Relaxed);
        (ttl != NO_TTL).then_some(Duration::from_millis(ttl))
    }

    /// The clock that the ends of values are compared with.
    pub fn keyed_clock(&self) -> KeyedClock {
        match self.keyed_clock.load(Ordering::Relaxed) {
            WALL => KeyedClock::Wall,
            time => KeyedClock::At(Timestamp(time)),
        }
    }

    /// The indexes of secondary keys that the stream shall have.
    pub fn secondary(&self) -> Arc<[SecondaryName]> {
        Arc::clone(&self.secondary.read())
    }

    pub fn group_bytes_max(&self) -> u64 {
        self.group_bytes_max.load(Ordering::Relaxed)
    }
}

fn clock_ms(clock: KeyedClock) -> i64 {
    match clock {
        KeyedClock::Wall => WALL,
        KeyedClock::At(time) => time.0,
    }
}

fn ttl_ms(ttl: Option<Duration>) -> u64 {
    let ms = ttl.map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(NO_TTL));
    ms.unwrap_or(NO_TTL)
}
