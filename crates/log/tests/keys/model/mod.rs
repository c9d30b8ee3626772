//! Random histories of a keyed stream on a simulated machine that crashes and whose disk gets full, beside a plain map.

mod changes;
mod checks;
mod history;
mod holds;
mod lives;
mod partition;
mod secondary;
mod steps;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use millstream_base::{ByteSize, Clock};
use millstream_log::{
    DELETE_RETENTION, DIRTY_RATIO_MIN, Durability, FILE_DELETE_DELAY, KEYED_CLOCK, Log, LogError,
    SECONDARY, Stream, StreamPartition, TTL,
};
use millstream_sim::{Notes, for_each_seed};

use self::holds::ModelHolds;
use self::partition::ModelPartition;
use super::machine::Machine;
use super::small_groups;

const CASES: u64 = 60;
const STEPS: usize = 800;
const PARTITIONS_MAX: u32 = 3;

/// Producers with these ids send transactions; the others are idempotent only. Id 0 stands for none.
const TRANSACTIONAL: std::ops::RangeInclusive<i64> = 1..=3;
const PRODUCERS: i64 = 4;

/// More steps of background work than any moment has.
const REST_STEPS_MAX: usize = 10_000;

/// Counts of all cases together, so that the cases are known to be rich enough.
#[derive(Debug, Default)]
struct Seen {
    lookups: AtomicU64,
    tags: AtomicU64,
    changes: AtomicU64,
    refused_changes: AtomicU64,
    together: AtomicU64,
    refused_together: AtomicU64,
    removed_groups: AtomicU64,
    rebuilt_key_files: AtomicU64,
    compacted_groups: AtomicU64,
    crashes_in_passes: AtomicU64,
    full_disks_in_passes: AtomicU64,
    lost_records: AtomicU64,
    duplicates: AtomicU64,
    refused_chunks: AtomicU64,
    dropped_tombstones: AtomicU64,
    dropped_markers: AtomicU64,
    ended_values: AtomicU64,
    dropped_values: AtomicU64,
    values_dropped_by_clock: AtomicU64,
    versions_at: AtomicU64,
    versions_not_kept: AtomicU64,
    whole_histories: AtomicU64,
    histories_with_gaps: AtomicU64,
    held_versions: AtomicU64,
    held_absences: AtomicU64,
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

struct World<'a> {
    rng: Rng,
    machine: Machine,
    keys: Vec<Vec<u8>>,
    partitions: Vec<ModelPartition>,
    holds: ModelHolds,
    durability: Durability,
    /// How long tombstones and markers stay.
    delete_retention: Duration,
    /// How long values live that name no end, in milliseconds.
    ttl: Option<i64>,
    /// The stream's own clock, if it has one, in milliseconds.
    keyed_clock: Option<i64>,
    /// The clocks that the stream may have after the next start, since setting them has failed.
    maybe_keyed_clocks: Vec<i64>,
    is_disk_full: bool,
    /// Whether the machine crashes some time.
    will_crash: bool,
    seen: &'a Seen,
    notes: Notes,
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.notes.print(&self.machine.disk);
        }
    }
}

#[test]
fn a_keyed_stream_equals_a_plain_map_over_random_histories() {
    let seen = Seen::default();
    let cases = for_each_seed(CASES, |seed| {
        let mut world = World::new(seed, &seen);
        for _ in 0..STEPS {
            let done = world.step();
            world.survive(done);
        }
        world.finish();
    });
    // The least counts of ten cases.
    let counts = [
        (&seen.lookups, 1_000),
        (&seen.tags, 1_000),
        (&seen.changes, 200),
        (&seen.refused_changes, 300),
        (&seen.together, 60),
        (&seen.refused_together, 100),
        (&seen.removed_groups, 10),
        (&seen.rebuilt_key_files, 20),
        (&seen.compacted_groups, 80),
        (&seen.crashes_in_passes, 10),
        (&seen.full_disks_in_passes, 3),
        (&seen.lost_records, 500),
        (&seen.duplicates, 100),
        (&seen.refused_chunks, 100),
        (&seen.dropped_tombstones, 100),
        (&seen.dropped_markers, 300),
        (&seen.ended_values, 300),
        (&seen.dropped_values, 100),
        (&seen.values_dropped_by_clock, 10),
        (&seen.versions_at, 20),
        (&seen.versions_not_kept, 100),
        (&seen.whole_histories, 5),
        (&seen.histories_with_gaps, 30),
        (&seen.held_versions, 1),
        (&seen.held_absences, 1),
    ];
    for (count, of_ten) in counts {
        let is_enough = count.load(Ordering::Relaxed) * 10 >= cases * of_ten;
        assert!(is_enough || cases < CASES, "{cases} cases: {seen:?}");
    }
}

impl World<'_> {
    fn new(seed: u64, seen: &Seen) -> World<'_> {
        let mut rng = Rng::with_seed(seed);
        let machine = Machine::new();
        machine.disk.start_trace();
        machine.clock.advance(Duration::from_secs(1_000));
        let policy = ["compact", "compact,delete", "delete, compact"][rng.usize(..3)];
        let mut config = small_groups(policy);
        config.lanes = rng.u32(1..=PARTITIONS_MAX);
        config.durability = match rng.bool() {
            true => Durability::Async,
            false => Durability::Sync,
        };
        config.retention = rng.bool().then(|| ByteSize(rng.u64(50_000..400_000)));
        let delete_retention = [0, 5_000, 86_400_000][rng.usize(..3)];
        let mut set =
            |name: &str, value: &str| config.settings.insert(name.to_owned(), value.to_owned());
        set(DELETE_RETENTION, &delete_retention.to_string());
        set(FILE_DELETE_DELAY, ["0", "60000"][rng.usize(..2)]);
        set(DIRTY_RATIO_MIN, ["0", "0.5"][rng.usize(..2)]);
        let ttl = [None, None, Some(20_000)][rng.usize(..3)];
        if let Some(ttl) = ttl {
            set(TTL, &ttl.to_string());
        }
        let keyed_clock = (rng.u8(..4) == 0).then(|| machine.clock.now().0);
        if let Some(clock) = keyed_clock {
            set(KEYED_CLOCK, &clock.to_string());
        }
        set(SECONDARY, "tag");
        machine.log().create_stream("s", config.clone()).unwrap();
        let keys = (0..30).map(|n: u8| match n {
            0 => Vec::new(),
            1 => vec![0],
            2 => vec![255; 3],
            3 => vec![b'x'; 2_000],
            n => vec![b'k'; usize::from(n % 4)]
                .into_iter()
                .chain([n])
                .collect(),
        });
        World {
            keys: keys.collect(),
            rng,
            machine,
            durability: config.durability,
            delete_retention: Duration::from_millis(delete_retention),
            ttl,
            keyed_clock,
            maybe_keyed_clocks: Vec::new(),
            is_disk_full: false,
            will_crash: false,
            partitions: (0..config.lanes)
                .map(|_| ModelPartition::default())
                .collect(),
            holds: ModelHolds::default(),
            seen,
            notes: Notes::default(),
        }
    }

    fn note(&mut self, note: String) {
        self.notes.add(&self.machine.disk, note);
    }

    fn log(&self) -> &Log {
        self.machine.log()
    }

    fn stream(&self) -> Result<Stream, LogError> {
        self.log().stream("s")
    }

    fn partition(&self, n: usize) -> Result<StreamPartition, LogError> {
        self.stream()?.partition(n as u32)
    }

    fn now_ms(&self) -> i64 {
        self.machine.clock.now().0
    }

    /// The time that the ends of values are compared with.
    fn keyed_now_ms(&self) -> i64 {
        self.keyed_clock.unwrap_or_else(|| self.now_ms())
    }

    /// Does all background work but compaction.
    fn rest(&self) {
        let has_rest = (0..REST_STEPS_MAX).any(|_| !self.log().step());
        assert!(has_rest || self.is_disk_full || self.machine.disk.has_crashed());
    }
}
