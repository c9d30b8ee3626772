//! The bound on the runs of all share-partitions, the storing of deliveries, restarts, and reads without memory.

use millstream_base::{ByteSize, ProducerId, SystemRandom};
use millstream_log::{Arena, AtLeast, BLOCK_BYTES_MIN, Durability, LogConfig, StreamConfig};
use millstream_record::{ChunkBuilder, Compression};
use tempfile::TempDir;

use super::read::{Read, Wanted};
use super::*;
use crate::security::SecurityConfig;
use crate::security::service::SecurityService;
use crate::shares::partition::{StoredRun, StoredState};
use crate::shares::{Receipt, checked};
use crate::transactions::service::TransactionService;

/// A share service on a log of its own, and a partition that a member of the group `g` reads.
struct World {
    service: Arc<ShareService>,
    partition: StreamPartition,
    key: Key,
    member: MemberId,
    settings: ShareSettings,
    log: Log,
    dir: TempDir,
}

impl World {
    fn new() -> World {
        World::with(Durability::Sync)
    }

    fn with(durability: Durability) -> World {
        let dir = tempfile::tempdir().unwrap();
        let log = log_in(&dir);
        let config = StreamConfig {
            durability,
            ..StreamConfig::default()
        };
        log.create_stream("t", config).unwrap();
        World::on(dir, log)
    }

    fn on(dir: TempDir, log: Log) -> World {
        let stream = log.stream("t").unwrap();
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
        let service = ShareService::open(&log, Arc::new(groups), BTreeMap::new(), clock).unwrap();
        World {
            service: Arc::new(service),
            partition: stream.partition(0).unwrap(),
            key: Key {
                group: "g".into(),
                topic: TopicId(stream.uuid().as_u128()),
                partition: Partition(0),
            },
            member: MemberId::from("m"),
            settings: ShareSettings {
                offset_reset: OffsetReset::Earliest,
                ..ShareSettings::default()
            },
            log,
            dir,
        }
    }

    /// Closes the log, and opens it and the services again.
    fn restart(self) -> World {
        let World {
            service,
            partition,
            log,
            dir,
            ..
        } = self;
        drop((service, partition));
        log.close().unwrap();
        let log = log_in(&dir);
        World::on(dir, log)
    }

    /// Creates the group, so that its positions outlast a restart.
    async fn create_group(&self) {
        let create = Request::CreateShareGroup(self.key.group.clone());
        let created = self.service.groups().ask(create).await;
        assert!(matches!(created, Ok(Answer::CreateShareGroup(Ok(())))));
    }

    /// Accepts the records from the first one to the last one.
    fn accept(&self, first: i64, last: i64) {
        let accepted = checked([(first, last, vec![1])], false).unwrap();
        let (service, member) = (&self.service, &self.member);
        let stored = service.acknowledge(&self.key, &self.partition, member, &accepted);
        let lane = service.ledger.lane();
        lane.wait_durable(stored.unwrap()).unwrap();
    }

    /// Returns the group's position, and its lag.
    fn position(&self) -> (i64, i64) {
        let described = self.service.describe_partition(&self.key, &self.partition);
        (described.start_offset, described.lag)
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

fn log_in(dir: &TempDir) -> Log {
    Log::open(LogConfig::with_pool(dir.path(), ByteSize(16 << 20))).unwrap()
}

/// Returns the first offset, the last one and the delivery count of each run that a member got.
fn runs(read: &Read) -> Vec<(u64, u64, u16)> {
    let runs = read.acquired.iter();
    runs.map(|run| (run.first.0, run.last.0, run.deliveries))
        .collect()
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

#[tokio::test]
async fn a_group_goes_back_to_the_first_record_of_a_memory_topic_after_a_restart() {
    let world = World::with(Durability::Memory);
    world.create_group().await;
    (0..10).for_each(|_| world.append());
    assert_eq!(world.read(10).records, 10);
    world.accept(0, 9);
    assert_eq!(world.position(), (10, 0));
    let world = world.restart();
    (0..3).for_each(|_| world.append());
    assert_eq!(world.position(), (0, 3));
    assert_eq!(runs(&world.read(10)), [(0, 2, 1)]);
}

#[tokio::test]
async fn records_at_the_offsets_of_lost_ones_are_delivered() {
    let world = World::with(Durability::Async);
    world.create_group().await;
    (0..7).for_each(|_| world.append());
    // The group held record 5 and had finished 6 to 9 when a crash took 7 to 9.
    let lost = [
        (1, StoredState::Unfinished { deliveries: 1 }),
        (4, StoredState::Finished),
    ];
    let lost = lost.map(|(records, state)| StoredRun { records, state });
    let lost = SharePartition::restore(Offset(5), lost);
    world.service.store(&world.key, Some(&lost)).unwrap();
    let world = world.restart();
    assert_eq!(world.position(), (5, 1));
    (0..3).for_each(|_| world.append());
    // The ledger has forgotten the lost records, too.
    let world = world.restart();
    assert_eq!(world.position(), (5, 4));
    assert_eq!(runs(&world.read(10)), [(5, 5, 2), (7, 9, 1)]);
}

#[test]
fn a_read_without_memory_for_old_records_is_repeated_soon() {
    let world = World::new();
    world.append();
    // From now on only the disk has the record.
    let world = world.restart();
    let pool = world.log.pool();
    let allocate = || pool.allocate(Arena::Windows, BLOCK_BYTES_MIN);
    let held: Vec<_> = std::iter::from_fn(allocate).collect();
    let read = world.read(10);
    assert_eq!(runs(&read), []);
    let soon = world.service.now() + Duration::from_secs(1);
    assert!(read.deadline.is_some_and(|deadline| deadline < soon));
    drop(held);
    assert_eq!(runs(&world.read(10)), [(0, 0, 1)]);
}

#[tokio::test]
async fn a_group_that_is_created_again_has_its_own_positions() {
    let world = World::new();
    let service = &world.service;
    world.create_group().await;
    world.append();
    assert_eq!(world.read(10).records, 1);
    let held = service.find(&world.key).unwrap();
    // The connection ends before the answer.
    drop(service.delete_groups(vec!["none".into(), world.key.group.clone()]));
    assert!(held.lock().is_gone);
    world.create_group().await;
    assert_eq!(world.position().0, NO_OFFSET);
    let altered = service.alter(&world.key, Offset(1)).unwrap();
    service.durable(Some(altered)).await.unwrap();
    assert_eq!(world.restart().position(), (1, 0));
}

#[tokio::test]
async fn records_in_a_transaction_that_does_not_exist_are_delivered_again() {
    let world = World::new();
    world.create_group().await;
    (0..3).for_each(|_| world.append());
    assert_eq!(world.read(2).records, 2);
    {
        let entry = world.service.find(&world.key).unwrap();
        let mut kept = entry.lock();
        let mut draft = kept.shares.draft();
        let receipt = Receipt {
            first: Offset(1),
            last: Offset(1),
            deliveries: 1,
            is_accepted: true,
        };
        draft.prepare(ProducerId(7), &[receipt]);
        world.service.put(&world.key, &mut kept, draft).unwrap();
    }
    let world = world.restart();
    assert_eq!(runs(&world.read(10)), [(0, 0, 2), (2, 2, 1)]);
    let (groups, shares) = (&world.service.groups, &world.service);
    let clock = Arc::clone(world.log.clock());
    TransactionService::open(&world.log, Arc::clone(groups), Arc::clone(shares), clock).unwrap();
    assert_eq!(runs(&world.read(10)), [(1, 1, 2)]);
}
