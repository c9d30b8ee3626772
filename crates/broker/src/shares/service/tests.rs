//! The bound on the runs of all share-partitions, and the storing of deliveries.

use millstream_base::{ByteSize, SystemRandom};
use millstream_log::{AtLeast, LogConfig, StreamConfig};
use millstream_record::{ChunkBuilder, Compression};

use super::read::{Read, Wanted};
use super::*;
use crate::security::SecurityConfig;
use crate::security::service::SecurityService;
use crate::shares::checked;

/// A share service on a log of its own, and a partition that a member of a group reads.
struct World {
    service: ShareService,
    partition: StreamPartition,
    key: Key,
    member: MemberId,
    settings: ShareSettings,
    _dir: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(16 << 20))).unwrap();
        let stream = log.create_stream("t", StreamConfig::default()).unwrap();
        let clock = Arc::clone(log.clock());
        let settings = SecurityConfig::default();
        let random = Arc::new(SystemRandom);
        let security = SecurityService::open(&log, &settings, Arc::clone(&clock), random).unwrap();
        let groups = GroupService::open(
            &log,
            Default::default(),
            Arc::clone(&clock),
            Arc::new(security),
            |_, _| Ok(()),
        )
        .unwrap();
        World {
            service: ShareService::open(&log, Arc::new(groups), BTreeMap::new(), clock).unwrap(),
            partition: stream.partition(0).unwrap(),
            key: Key {
                group: "g".into(),
                topic: TopicId(1),
                partition: Partition(0),
            },
            member: MemberId::from("m"),
            settings: ShareSettings {
                offset_reset: OffsetReset::Earliest,
                ..ShareSettings::default()
            },
            _dir: dir,
        }
    }

    /// Lets the member get at most this number of records.
    fn read(&self, records_left: u64) -> Read {
        let wanted = Wanted {
            member: &self.member,
            settings: &self.settings,
            records_left,
            excess_max: 0,
            bytes_left: 1 << 20,
            at_least: AtLeast::OneChunk,
        };
        let read = self
            .service
            .read(&self.key, &self.partition, &wanted, || true);
        read.ok().unwrap()
    }

    /// Appends one record.
    fn append(&self) {
        let mut builder = ChunkBuilder::new(Compression::None);
        builder.push(Timestamp(1), None, Some(b"x"), &[]).unwrap();
        let chunk = builder.finish(None).unwrap().to_vec();
        let appended = self.partition.append(&chunk).unwrap();
        self.partition.wait_durable(appended.next_offset).unwrap();
    }
}

#[test]
fn a_full_table_of_runs_stops_first_deliveries_but_not_redeliveries() {
    let world = World::new();
    let service = &world.service;
    // Returns the offset and the delivery count of each run that the member got.
    let read = || {
        let acquired = world.read(10).acquired.into_iter();
        acquired
            .map(|run| (run.first.0, run.deliveries))
            .collect::<Vec<_>>()
    };
    world.append();
    assert_eq!(read(), [(0, 1)]);
    world.append();
    // The runs of all other share-partitions.
    service.runs.fetch_add(RUNS_MAX - 1, Ordering::Relaxed);
    assert_eq!(read(), [], "the table is full");
    let entry = service.find(&world.key).unwrap();
    let has_released = entry.lock().shares.release(&world.member, &world.settings);
    assert!(has_released);
    assert_eq!(read(), [(0, 2)], "a redelivery needs no further run");
    // One finished run makes room for one.
    service.runs.fetch_sub(1, Ordering::Relaxed);
    assert_eq!(read(), [(1, 1)]);
}

#[test]
fn a_delivery_is_stored_once_with_the_next_acknowledgement_or_by_itself() {
    let world = World::new();
    let service = &world.service;
    let read = |records_left| world.read(records_left).records;
    let lane = service.ledger.lane();
    let stored = || {
        lane.wait_durable(lane.next_offset()).unwrap();
        let record = service.ledger.read().unwrap().pop().unwrap();
        decode(record).unwrap().1.unwrap().to_store()
    };
    (0..3).for_each(|_| world.append());
    assert_eq!(read(1), 1);
    let begun = lane.next_offset().0;
    assert_eq!(stored(), []);
    // By itself.
    service.store_deliveries();
    assert_eq!(lane.next_offset().0, begun + 1);
    let entry = service.find(&world.key).unwrap();
    assert_eq!(stored(), entry.lock().shares.to_store());
    service.store_deliveries();
    assert_eq!(lane.next_offset().0, begun + 1, "nothing more to store");
    // With an acknowledgement.
    assert_eq!(read(2), 2);
    let mut kept = entry.lock();
    let mut draft = kept.shares.draft();
    let accepted = checked([(0, 0, vec![1])], false).unwrap();
    draft.apply(&world.member, &accepted, Duration::ZERO, &world.settings);
    service.put(&world.key, &mut kept, draft).unwrap();
    drop(kept);
    assert_eq!(stored(), entry.lock().shares.to_store());
    service.store_deliveries();
    assert_eq!(lane.next_offset().0, begun + 2, "nothing more to store");
}
