//! The records of groups in the log, byte for byte.

use bytes::Bytes;
use millstream_base::ProducerId;
use millstream_broker::groups::*;
use proptest::prelude::*;

use crate::support::*;

const CLASSIC_GROUP: u8 = 1;
const CLASSIC_MEMBER: u8 = 2;
const OFFSET: u8 = 3;
const PENDING_OFFSET: u8 = 4;
const CONSUMER_GROUP: u8 = 5;
const CONSUMER_MEMBER: u8 = 6;
const TARGET: u8 = 7;
const CURRENT: u8 = 8;
const SHARE_GROUP: u8 = 9;
const SHARE_MEMBER: u8 = 10;

const SOME: &[u8] = &[1];
const NONE: &[u8] = &[0];
/// The time on the clock of a new world, 1,700,000,000,000.
const BEGIN: &[u8] = b"\x00\x00\x01\x8b\xcf\xe5\x68\x00";

fn restore(records: Vec<Record>) -> Result<Coordinator, RecordError> {
    let world = World::new();
    Coordinator::restore(Config::default(), world.now, records)
}

fn record(key: &[u8], value: &[u8]) -> Record {
    Record {
        key: Bytes::copy_from_slice(key),
        value: Some(Bytes::copy_from_slice(value)),
    }
}

/// The last record of a kind that was persisted.
fn last(world: &World, kind: u8) -> Record {
    let mut records = world.records.iter().rev();
    records
        .find(|record| record.key[0] == kind)
        .unwrap()
        .clone()
}

/// A text of at most 255 bytes, with its length before it.
fn text(text: &str) -> Vec<u8> {
    [&[0, 0, 0, text.len() as u8], text.as_bytes()].concat()
}

/// Checks a record against the parts of its key behind the kind, and of its value behind the version.
fn check(record: &Record, key: &[&[u8]], value: &[&[u8]]) {
    let key = [&record.key[..1], &text(GROUP), &key.concat()].concat();
    assert_eq!(record.key, key);
    let value = [&[1], value.concat().as_slice()].concat();
    assert_eq!(record.value.as_ref().unwrap(), &value);
}

#[test]
fn a_classic_group_and_its_member() {
    let mut world = World::new();
    let join = JoinGroup {
        instance: Some("one".into()),
        protocols: vec![Protocol {
            name: "range".into(),
            metadata: "said".into(),
        }],
        ..join("app")
    };
    let id = world.send(Request::JoinGroup(join));
    check(
        &last(&world, CLASSIC_GROUP),
        &[],
        &[&[0, 0, 0, 0], NONE, NONE, NONE, BEGIN],
    );
    world.settle();
    let joined = world.joined(id);
    let begin = world.now.timestamp.0.to_be_bytes();
    world.sync_all(&[joined]);

    let member = "one-00000000-0000-4000-8000-000000000007";
    check(
        &last(&world, CLASSIC_GROUP),
        &[],
        &[
            &[0, 0, 0, 1],
            SOME,
            &text("consumer"),
            SOME,
            &text("range"),
            SOME,
            &text(member),
            &begin,
        ],
    );
    check(
        &last(&world, CLASSIC_MEMBER),
        &[&text(member)],
        &[
            &[0, 0, 0, 1],
            SOME,
            &text("one"),
            &text("app"),
            &text("127.0.0.1"),
            b"\x00\x00\x00\x00\x00\x00\xea\x60",
            b"\x00\x00\x00\x00\x00\x00\x27\x10",
            &text("said"),
            &text(member),
        ],
    );
}

#[test]
fn offsets() {
    let mut world = World::new();
    let mut topics = topic_commits("orders", 0x0102_0304_0506);
    topics[0].partitions[0].partition = Partition(9);
    topics[0].partitions[0].metadata = "note".into();
    let mut with_epoch = topics.clone();
    with_epoch[0].partitions[0].leader_epoch = Some(LeaderEpoch(3));
    let commit = CommitOffsets {
        retention: Some(SECOND),
        topics: with_epoch,
        ..commit("orders", 0)
    };
    assert_eq!(world.commit(commit), Ok(()));
    let in_transaction = CommitTransactionOffsets {
        group: GROUP.into(),
        producer: ProducerId(0x0a0b),
        member: MemberId::default(),
        instance: None,
        generation: Generation::NONE,
        topics,
    };
    world.ask(Request::CommitTransactionOffsets(in_transaction));

    let offset = b"\x00\x00\x01\x02\x03\x04\x05\x06";
    check(
        &last(&world, OFFSET),
        &[&text("orders"), &[0, 0, 0, 9]],
        &[
            offset,
            SOME,
            &[0, 0, 0, 3],
            &text("note"),
            BEGIN,
            SOME,
            b"\x00\x00\x01\x8b\xcf\xe5\x6b\xe8",
            &[0; 8],
            &TOPIC_ID.0.to_be_bytes(),
        ],
    );
    check(
        &last(&world, PENDING_OFFSET),
        &[b"\0\0\0\0\0\0\x0a\x0b", &text("orders"), &[0, 0, 0, 9]],
        &[
            offset,
            NONE,
            &text("note"),
            BEGIN,
            NONE,
            &[0, 0, 0, 0, 0, 0, 0, 1],
            &TOPIC_ID.0.to_be_bytes(),
        ],
    );
}

#[test]
fn offsets_of_earlier_programs_belong_to_no_topic() {
    let mut world = World::new();
    assert_eq!(world.commit(commit("orders", 7)), Ok(()));
    let Record { key, value } = last(&world, OFFSET);
    let value = value.unwrap();
    let older = record(&key, &value[..value.len() - 16]);
    world.coordinator = restore(vec![older.clone()]).unwrap();
    assert_eq!(world.coordinator.snapshot(), [older]);
    let topics = vec![("orders".into(), vec![Partition(0)])];
    let fetch = FetchOffsets {
        group: GROUP.into(),
        member: None,
        member_epoch: Generation::NONE,
        topics: Some(topics),
        require_stable: false,
    };
    let actions = world
        .coordinator
        .handle(world.now, RequestId(1), Request::FetchOffsets(fetch));
    let Action::Answer(_, Answer::FetchOffsets(Ok(topics))) = &actions[0] else {
        panic!("no offsets: {actions:?}");
    };
    let offset = topics[0].partitions[0].1.as_ref().unwrap();
    let offset = offset.as_ref().unwrap();
    assert_eq!((offset.offset.0, offset.topic), (7, None));
}

#[test]
fn a_group_of_the_next_generation_and_its_member() {
    let mut world = World::new();
    world.put_topic("orders", 0x0102, 2);
    let heartbeat = ConsumerHeartbeat {
        group: GROUP.into(),
        member: "a".into(),
        gets_member_id: false,
        epoch: Epoch::JOIN,
        instance: Some("one".into()),
        rack: Some("here".into()),
        client: client_of("app"),
        principal: "User:app".into(),
        rebalance_timeout: Some(SECOND),
        topics: Some(vec!["orders".into()]),
        regex: Some("x+".into()),
        assignor: Some("range".into()),
        owned: Some(Vec::new()),
        random: RandomBytes(7),
    };
    world.ask(Request::ConsumerHeartbeat(heartbeat));
    let partitions = [
        b"\0\0\0\x01".as_slice(),
        b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x02",
        b"\0\0\0\x02\0\0\0\0\0\0\0\x01",
    ];
    let partitions = partitions.concat();
    check(
        &last(&world, CONSUMER_GROUP),
        &[],
        &[&[0, 0, 0, 1], &[0, 0, 0, 1], &hash_of_topics()],
    );
    check(
        &last(&world, CONSUMER_MEMBER),
        &[&text("a")],
        &[
            SOME,
            &text("one"),
            SOME,
            &text("here"),
            &text("app"),
            &text("127.0.0.1"),
            b"\0\0\0\0\0\0\x03\xe8",
            &[0, 0, 0, 1],
            &text("orders"),
            SOME,
            &text("x+"),
            SOME,
            &text("range"),
            &text("User:app"),
        ],
    );
    check(&last(&world, TARGET), &[&text("a")], &[&partitions]);
    let current: &[&[u8]] = &[
        &[0, 0, 0, 1],
        &[0, 0, 0, 0],
        &[0],
        &partitions,
        &[0, 0, 0, 0],
        &[0, 0, 0, 1, 0, 0, 0, 1],
    ];
    check(&last(&world, CURRENT), &[&text("a")], current);
}

#[test]
fn a_share_group_and_its_member() {
    let mut world = World::new();
    world.put_topic("orders", 1, 2);
    world.ask(Request::ShareHeartbeat(ShareHeartbeat {
        group: GROUP.into(),
        member: "a".into(),
        epoch: Epoch::JOIN,
        rack: None,
        client: client_of("a"),
        topics: Some(vec!["orders".into()]),
    }));
    check(&last(&world, SHARE_GROUP), &[], &[&[0, 0, 0, 1]]);
    let client = client_of("a");
    let member: &[&[u8]] = &[
        // Its epoch, and the one before.
        &[0, 0, 0, 1],
        &[0; 4],
        // Instance, rack.
        NONE,
        NONE,
        &text(&client.id),
        &text(&client.host),
        // Rebalance timeout.
        &[0; 8],
        &[0, 0, 0, 1],
        &text("orders"),
        // Regular expression, assignor.
        NONE,
        NONE,
        // Principal.
        &text(""),
    ];
    check(&last(&world, SHARE_MEMBER), &[&text("a")], member);
}

/// FNV-1a of the only topic's id and number of partitions, and of the place of the only member.
fn hash_of_topics() -> [u8; 8] {
    let mut bytes = [0; 28];
    bytes[14..16].copy_from_slice(&[1, 2]);
    bytes[19] = 2;
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step).to_be_bytes()
}

#[test]
fn truncated_longer_and_later_records_are_refused() {
    let mut world = World::new();
    world.put_topic("orders", 1, 2);
    world.stable_group(&["a"]);
    assert!(restore(world.records.clone()).is_ok());
    for Record { key, value } in &world.records {
        let Some(value) = value else { continue };
        for end in 0..value.len() {
            assert!(restore(vec![record(key, &value[..end])]).is_err());
        }
        for end in 0..key.len() {
            assert!(restore(vec![record(&key[..end], value)]).is_err());
        }
        let longer = [value, b"x".as_slice()].concat();
        let error = restore(vec![record(key, &longer)]).unwrap_err();
        assert_eq!(error, RecordError::TooLong { bytes: 1 });
        let mut later = value.to_vec();
        later[0] = 2;
        let error = restore(vec![record(key, &later)]).unwrap_err();
        let (field, value) = ("version", 2);
        assert_eq!(error, RecordError::Unknown { field, value });
    }
    let error = restore(vec![record(b"\x0b\0\0\0\0", b"\x01")]).unwrap_err();
    let (field, value) = ("kind", 11);
    assert_eq!(error, RecordError::Unknown { field, value });
}

#[test]
fn every_prefix_of_the_log_can_be_restored() {
    let mut world = World::new();
    world.put_topic("orders", 1, 4);
    let members = world.stable_group(&["a", "b"]);
    world.commit(commit_by(&members[0], "orders", 1)).unwrap();
    world.ask(leave(&[(&members[0].member, None)]));
    world.pass(SESSION * 2);
    for end in 0..world.records.len() {
        let coordinator = restore(world.records[..end].to_vec()).unwrap();
        let again = restore(coordinator.snapshot()).unwrap();
        assert_eq!(coordinator.snapshot(), again.snapshot());
    }
}

proptest! {
    #[test]
    fn random_bytes_are_decoded_or_refused(
        kind in 0..24_u8,
        key in prop::collection::vec(any::<u8>(), 0..24),
        value in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let key = [&[kind], key.as_slice()].concat();
        let _ = restore(vec![record(&key, &value)]);
        let _ = restore(vec![record(&key, &[&[1], value.as_slice()].concat())]);
    }
}
