//! Records by key: put, found and scanned.

use std::time::{Duration, Instant};

use bytes::Bytes;
use millstream_base::{ByteSize, Offset, StreamId, Timestamp, partition_of_key};
use millstream_log::{Arena, BLOCK_BYTES_MIN, BufferWriter};
use millstream_record::{ChunkBuilder, Compression};
use millstream_wire::native::*;
use millstream_wire::{ApiKey, Response, ResponseError};

use crate::client::{Broker, Client, answer, ask, settings};

const INVALID_CONFIG: i16 = ResponseError::InvalidConfig.code();
const INVALID_REQUEST: i16 = ResponseError::InvalidRequest.code();
const UNKNOWN: i16 = ResponseError::UnknownTopicOrPartition.code();
const OTHER_VERSION: i16 = ResponseError::InvalidUpdateVersion.code();
const TOO_LARGE: i16 = ResponseError::MessageTooLarge.code();

const KEY_BYTES_MAX: usize = 1 << 20;

fn keyed(durability: Durability, streamlets: u32) -> StreamSettings {
    StreamSettings {
        durability,
        segment_bytes: ByteSize(4 << 20),
        further: vec![FurtherSetting {
            name: "cleanup.policy".into(),
            value: "compact".into(),
        }],
        ..settings(streamlets, 1)
    }
}

fn create(client: &mut Client, name: &'static str, settings: StreamSettings) {
    let request = CreateStreamRequest {
        name: name.into(),
        settings,
        or_existing: false,
    };
    assert_eq!(ask!(client, CreateStream, request).error_code, 0);
}

fn put_request(stream: &'static str, entries: &[(&str, Option<&str>)]) -> PutKeysRequest {
    let entries = entries.iter().map(|(key, value)| KeyToPut {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: value.map(|value| Bytes::copy_from_slice(value.as_bytes())),
        ..KeyToPut::default()
    });
    PutKeysRequest {
        stream: stream.into(),
        entries: entries.collect(),
        all_or_none: false,
    }
}

fn put(client: &mut Client, entries: &[(&str, Option<&str>)]) -> Vec<StoredKey> {
    let response = ask!(client, PutKeys, put_request("t", entries));
    assert_eq!(response.error_code, 0, "{response:?}");
    for entry in &response.entries {
        assert_eq!(entry.error_code, 0, "{entry:?}");
    }
    response.entries
}

fn get_request(stream: &'static str, keys: &[&str]) -> GetKeysRequest {
    let keys = keys
        .iter()
        .map(|key| Bytes::copy_from_slice(key.as_bytes()));
    GetKeysRequest {
        stream: stream.into(),
        keys: keys.collect(),
        at: Vec::new(),
        hold: None,
        with_headers: false,
    }
}

/// Returns the values of keys.
fn values(client: &mut Client, keys: &[&str]) -> Vec<Option<Bytes>> {
    let response = ask!(client, GetKeys, get_request("t", keys));
    assert_eq!(response.error_code, 0, "{response:?}");
    let values = response.keys.into_iter().map(|got| {
        assert_eq!(got.error_code, 0, "{got:?}");
        got.newest.map(|newest| newest.value)
    });
    values.collect()
}

fn scan_request(partition: u32, from: &'static str, keys_max: u32) -> ScanKeysRequest {
    ScanKeysRequest {
        stream: "t".into(),
        partition,
        from: from.into(),
        until: None,
        keys_max,
        bytes_max: 1 << 20,
    }
}

#[test]
fn puts_are_found_by_key_also_after_a_restart() {
    for durability in [Durability::Sync, Durability::Async, Durability::Written] {
        let mut broker = Broker::start();
        let mut client = broker.client();
        create(&mut client, "t", keyed(durability, 3));
        let before = broker.log().clock().now();
        let entries = [
            ("ann", Some("1")),
            ("bob", Some("2")),
            ("", Some("empty")),
            ("ann", Some("3")),
            ("cid", Some("")),
            ("bob", None),
        ];
        let stored = put(&mut client, &entries);
        for ((key, _), stored) in entries.iter().zip(&stored) {
            assert_eq!(
                stored.partition as usize,
                partition_of_key(key.as_bytes(), 3)
            );
        }
        assert!(stored[3].version > stored[0].version);
        let keys = ["ann", "bob", "", "cid", "dan"];
        let expected = [Some("3"), None, Some("empty"), Some(""), None]
            .map(|value| value.map(|value| Bytes::from_static(value.as_bytes())));
        assert_eq!(values(&mut client, &keys), expected);
        let mut found = ask!(client, GetKeys, get_request("t", &["ann"]));
        let newest = found.keys.pop().and_then(|key| key.newest).unwrap();
        assert_eq!(newest.version, stored[3].version);
        assert!((before..=broker.log().clock().now()).contains(&newest.timestamp));

        let lane = broker.log().stream("t").unwrap().partition(0).unwrap();
        lane.wait_durable(lane.next_offset()).unwrap();
        drop((client, lane));
        broker.restart();
        assert_eq!(values(&mut broker.client(), &keys), expected);
    }
}

#[test]
fn scans_return_a_partition_s_keys_in_order_page_by_page() {
    let broker = Broker::start();
    let mut client = broker.client();
    create(&mut client, "t", keyed(Durability::Async, 1));
    put(
        &mut client,
        &[("b", Some("2")), ("c", Some("3")), ("a", Some("1"))],
    );
    put(&mut client, &[("d", Some("4")), ("c", None)]);
    let page = ask!(client, ScanKeys, scan_request(0, "", 2));
    let keys = |page: &ScanKeysResponse| -> Vec<Bytes> {
        page.keys.iter().map(|key| key.key.clone()).collect()
    };
    assert_eq!(keys(&page), ["a", "b"]);
    assert_eq!(page.next, Some(Bytes::from_static(b"d")));
    let page = ask!(client, ScanKeys, scan_request(0, "d", 2));
    assert_eq!(
        (keys(&page), page.next),
        (vec![Bytes::from_static(b"d")], None)
    );
    assert_eq!(page.keys[0].newest.value, "4");
    let range = ScanKeysRequest {
        until: Some(Bytes::from_static(b"d")),
        // The bound is below any key: the answer still has the first one.
        bytes_max: 0,
        ..scan_request(0, "aa", u32::MAX)
    };
    let page = ask!(client, ScanKeys, range);
    assert_eq!(
        (keys(&page), page.next),
        (vec![Bytes::from_static(b"b")], None)
    );

    let none = ask!(client, ScanKeys, scan_request(0, "", 0));
    assert_eq!(none.error_code, INVALID_REQUEST, "{none:?}");
    let none = ask!(client, ScanKeys, scan_request(1, "", 1));
    assert_eq!(none.error_code, UNKNOWN, "{none:?}");
}

#[test]
fn streams_that_are_not_keyed_or_do_not_exist_are_refused_with_advice() {
    let broker = Broker::start();
    let mut client = broker.client();
    create(&mut client, "plain", settings(1, 1));
    for (stream, code) in [
        ("plain", INVALID_CONFIG),
        ("none", UNKNOWN),
        ("__groups", UNKNOWN),
    ] {
        let got = ask!(client, GetKeys, get_request(stream, &["a"]));
        let stored = ask!(client, PutKeys, put_request(stream, &[("a", None)]));
        let mut scan = scan_request(0, "", 1);
        scan.stream = stream.into();
        let scanned = ask!(client, ScanKeys, scan);
        let errors = [got.error_code, stored.error_code, scanned.error_code];
        assert_eq!(errors, [code; 3], "{stream}");
        if code == INVALID_CONFIG {
            for message in [
                got.error_message,
                stored.error_message,
                scanned.error_message,
            ] {
                let message = message.unwrap();
                assert!(message.contains("cleanup.policy=compact"), "{message}");
            }
        }
    }
}

#[test]
fn too_many_keys_fail_the_request_and_an_oversized_entry_fails_alone() {
    let broker = Broker::start();
    let mut client = broker.client();
    let small_chunks = StreamSettings {
        chunk_bytes_max: Some(ByteSize(1000)),
        ..keyed(Durability::Sync, 1)
    };
    create(&mut client, "small", small_chunks);
    create(&mut client, "t", keyed(Durability::Sync, 2));
    let too_many: Vec<_> = (0..1025).map(|_| ("a", Some("b"))).collect();
    let stored = ask!(client, PutKeys, put_request("t", &too_many));
    assert_eq!(
        (stored.error_code, stored.entries.len()),
        (INVALID_REQUEST, 0)
    );
    let got = ask!(client, GetKeys, get_request("t", &["a"; 1025]));
    assert_eq!((got.error_code, got.keys.len()), (INVALID_REQUEST, 0));
    put(&mut client, &too_many[..1024]);

    let (long, longest) = ("k".repeat(KEY_BYTES_MAX + 1), "k".repeat(KEY_BYTES_MAX));
    let entries = [(&*long, Some("1")), (&longest, Some("2")), ("a", Some("3"))];
    let stored = ask!(client, PutKeys, put_request("t", &entries));
    let codes: Vec<i16> = stored
        .entries
        .iter()
        .map(|entry| entry.error_code)
        .collect();
    assert_eq!(codes, [INVALID_REQUEST, 0, 0]);
    let got = ask!(client, GetKeys, get_request("t", &[&long, &longest, "a"]));
    let codes: Vec<i16> = got.keys.iter().map(|key| key.error_code).collect();
    assert_eq!(codes, [INVALID_REQUEST, 0, 0]);
    let message = got.keys[0].error_message.clone().unwrap();
    assert!(message.contains("at most 1048576"), "{message}");
    assert_eq!(got.keys[1].newest.as_ref().unwrap().value, "2");

    let value = "v".repeat(2000);
    let entries = [("a", Some("1")), ("b", Some(&*value)), ("c", Some("3"))];
    let stored = ask!(client, PutKeys, put_request("small", &entries));
    let codes: Vec<i16> = stored
        .entries
        .iter()
        .map(|entry| entry.error_code)
        .collect();
    assert_eq!(codes, [0, TOO_LARGE, 0]);
    let versions: Vec<Offset> = stored.entries.iter().map(|entry| entry.version).collect();
    assert_eq!(versions, [Offset(0), Offset(0), Offset(1)]);
}

/// An entry for a key that changes under a condition.
fn entry(key: &str, value: Option<&str>, condition: KeyCondition, version: u64) -> KeyToPut {
    KeyToPut {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: value.map(|value| Bytes::copy_from_slice(value.as_bytes())),
        condition,
        version: Offset(version),
        ..KeyToPut::default()
    }
}

fn add(key: &str, number: i64) -> KeyToPut {
    KeyToPut {
        add: Some(number),
        ..entry(key, None, KeyCondition::None, 0)
    }
}

fn change(client: &mut Client, entries: Vec<KeyToPut>) -> Vec<StoredKey> {
    let request = PutKeysRequest {
        stream: "t".into(),
        entries,
        all_or_none: false,
    };
    let response = ask!(client, PutKeys, request);
    assert_eq!(response.error_code, 0, "{response:?}");
    response.entries
}

/// Returns the errors, and the newest version if a condition does not hold.
fn errors(stored: &[StoredKey]) -> Vec<(i16, Option<u64>)> {
    let errors = stored.iter();
    let errors = errors.map(|it| (it.error_code, it.newest.map(|newest| newest.0)));
    errors.collect()
}

#[test]
fn a_change_whose_condition_does_not_hold_is_refused_with_the_newest_version() {
    use KeyCondition::{Absent, None as Always, Version};
    for durability in [Durability::Sync, Durability::Async, Durability::Written] {
        let broker = Broker::start();
        let mut client = broker.client();
        create(&mut client, "t", keyed(durability, 1));
        let stored = change(
            &mut client,
            vec![
                entry("ann", Some("1"), Absent, 0),
                entry("ann", Some("2"), Absent, 0),
                entry("ann", Some("3"), Version, 0),
                entry("ann", Some("4"), Version, 0),
                entry("bob", Some("1"), Version, 7),
                entry("bob", None, Absent, 0),
                entry("cid", Some("1"), Always, 0),
            ],
        );
        let expected = [
            (0, None),
            (OTHER_VERSION, Some(0)),
            (0, None),
            (OTHER_VERSION, Some(1)),
            (OTHER_VERSION, None),
            (0, None),
            (0, None),
        ];
        assert_eq!(errors(&stored), expected, "{stored:?}");
        let versions: Vec<u64> = stored.iter().map(|stored| stored.version.0).collect();
        assert_eq!(versions, [0, 0, 1, 0, 0, 2, 3]);
        assert!(stored[1].error_message.is_some(), "{stored:?}");
        let values = values(&mut client, &["ann", "bob", "cid"]);
        assert_eq!(values, [Some("3".into()), None, Some("1".into())]);
        // A deleted key has no value, and no version of it is expected any more.
        let stored = change(
            &mut client,
            vec![
                entry("ann", None, Version, 1),
                entry("ann", Some("5"), Version, 4),
                entry("ann", Some("6"), Absent, 0),
            ],
        );
        assert_eq!(
            errors(&stored),
            [(0, None), (OTHER_VERSION, None), (0, None)]
        );
    }
}

#[test]
fn a_time_to_live_must_be_positive_and_a_deletion_must_not_have_one() {
    use KeyCondition::{Absent, None as Always};
    let broker = Broker::start();
    let mut client = broker.client();
    create(&mut client, "t", keyed(Durability::Sync, 1));
    for condition in [Always, Absent] {
        let lives = |key, value, ttl_ms| KeyToPut {
            ttl_ms: Some(ttl_ms),
            ..entry(key, value, condition, 0)
        };
        let entries = vec![
            lives("a", Some("1"), 0),
            lives("a", Some("1"), i64::MIN),
            lives("a", None, 5),
            lives("b", Some("1"), i64::MAX),
        ];
        let stored = change(&mut client, entries);
        let refused = (INVALID_REQUEST, None);
        assert_eq!(errors(&stored), [refused, refused, refused, (0, None)]);
        let got = ask!(client, GetKeys, get_request("t", &["a", "b"]));
        assert_eq!(got.keys[0].newest, None);
        let newest = got.keys[1].newest.as_ref().unwrap();
        assert_eq!(newest.expires_at, Some(Timestamp(i64::MAX)));
        change(&mut client, vec![entry("b", None, Always, 0)]);
    }
}

#[test]
fn lifetimes_count_from_the_clock_of_the_stream() {
    use KeyCondition::{Absent, None as Always};
    let broker = Broker::start();
    let mut client = broker.client();
    let mut settings = keyed(Durability::Sync, 1);
    settings.further.push(FurtherSetting {
        name: "millstream.keyed.clock".into(),
        value: "5000".into(),
    });
    create(&mut client, "t", settings);
    for (key, condition) in [("a", Always), ("b", Absent)] {
        let lives = KeyToPut {
            ttl_ms: Some(1_000),
            ..entry(key, Some("1"), condition, 0)
        };
        assert_eq!(errors(&change(&mut client, vec![lives])), [(0, None)]);
        let got = ask!(client, GetKeys, get_request("t", &[key]));
        let newest = got.keys[0].newest.as_ref().unwrap();
        assert_eq!(newest.expires_at, Some(Timestamp(6_000)));
    }
}

#[test]
fn add_changes_numeric_values() {
    let broker = Broker::start();
    let mut client = broker.client();
    create(&mut client, "t", keyed(Durability::Sync, 3));
    put(
        &mut client,
        &[("word", Some("x")), ("max", Some("9223372036854775807"))],
    );
    let both = KeyToPut {
        value: Some("1".into()),
        ..add("n", 1)
    };
    let stored = change(
        &mut client,
        vec![
            add("n", 5),
            add("n", -12),
            add("word", 1),
            add("max", 1),
            both,
        ],
    );
    let sums: Vec<Option<i64>> = stored.iter().map(|stored| stored.sum).collect();
    assert_eq!(sums, [Some(5), Some(-7), None, None, None]);
    let codes: Vec<i16> = stored.iter().map(|stored| stored.error_code).collect();
    assert_eq!(
        codes,
        [0, 0, INVALID_REQUEST, INVALID_REQUEST, INVALID_REQUEST]
    );
    assert_eq!(
        values(&mut client, &["n", "word"]),
        [Some("-7".into()), Some("x".into())]
    );
}

/// Requests of one connection take effect in their order, also changes that look up keys.
#[test]
fn a_later_request_of_a_connection_sees_the_earlier_change() {
    let broker = Broker::start();
    let mut client = broker.client();
    create(&mut client, "t", keyed(Durability::Sync, 1));
    for round in 0..20 {
        let expected = if round == 0 {
            KeyCondition::Absent
        } else {
            KeyCondition::Version
        };
        let newest = 2 * round - u64::from(round > 0);
        let request = PutKeysRequest {
            stream: "t".into(),
            entries: vec![entry("a", Some("changed"), expected, newest)],
            all_or_none: false,
        };
        client.send(request);
        client.send(put_request("t", &[("a", Some("put"))]));
        for version in [2 * round, 2 * round + 1] {
            let Response::PutKeys(stored) = client.receive(ApiKey::PutKeys) else {
                panic!("an answer of another kind");
            };
            assert_eq!(stored.entries[0].error_code, 0, "{stored:?}");
            assert_eq!(stored.entries[0].version, Offset(version));
        }
    }
}

#[test]
fn large_values_fill_several_answers() {
    let broker = Broker::start();
    let mut client = broker.client();
    create(&mut client, "t", keyed(Durability::Async, 1));
    let keys: Vec<String> = (0..10).map(|number| format!("key {number}")).collect();
    for key in &keys {
        put(&mut client, &[(key, Some(&key.repeat(200_000)))]);
    }
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut found = Vec::new();
    let mut answers = 0;
    while found.len() < keys.len() {
        let values = values(&mut client, &keys[found.len()..]);
        assert!(!values.is_empty());
        found.extend(values.into_iter().map(Option::unwrap));
        answers += 1;
    }
    assert!((3..=5).contains(&answers), "{answers}");
    for (key, value) in keys.iter().zip(found) {
        assert_eq!(value, key.repeat(200_000));
    }
    let page = ask!(
        client,
        ScanKeys,
        ScanKeysRequest {
            bytes_max: u32::MAX,
            ..scan_request(0, "", 100)
        }
    );
    assert_eq!((page.keys.len(), page.error_code), (4, 0));
    assert_eq!(page.next, Some(Bytes::from_static(b"key 4")));
}

#[test]
fn records_of_plain_producers_are_found_unless_they_are_in_a_foreign_partition() {
    let broker = Broker::start();
    let mut client = broker.client();
    create(&mut client, "t", keyed(Durability::Sync, 2));
    let stream = broker.log().stream("t").unwrap();
    let mut builder = ChunkBuilder::new(Compression::Lz4);
    let value = Some(&b"v"[..]);
    builder
        .push(Timestamp(7), Some(b"ann"), value, &[])
        .unwrap();
    for partition in 0..2 {
        let partition = stream.partition(partition).unwrap();
        let appended = partition.append(builder.finish(None).unwrap()).unwrap();
        partition.acknowledge(&appended).unwrap();
    }
    let got = ask!(client, GetKeys, get_request("t", &["ann"]))
        .keys
        .pop()
        .unwrap();
    assert_eq!(got.partition as usize, partition_of_key(b"ann", 2));
    assert_eq!(got.newest.unwrap().timestamp, Timestamp(7));
    let scanned = ask!(client, ScanKeys, scan_request(1 - got.partition, "", 10));
    assert_eq!(scanned.keys, []);
}

#[test]
fn the_first_look_up_of_a_large_stream_holds_up_no_other_client() {
    let mut broker = Broker::start();
    let mut client = broker.client();
    create(&mut client, "t", keyed(Durability::Async, 1));
    create(&mut client, "small", keyed(Durability::Async, 1));
    assert_eq!(
        ask!(client, PutKeys, put_request("small", &[("a", Some("b"))])).error_code,
        0
    );
    let partition = broker.log().stream("t").unwrap().partition(0).unwrap();
    let mut builder = ChunkBuilder::new(Compression::None);
    for number in 0..10_000 {
        let key = format!("key {number}");
        builder
            .push(Timestamp(1), Some(key.as_bytes()), Some(b"v"), &[])
            .unwrap();
    }
    let chunk = builder.finish(None).unwrap();
    for _ in 0..50 {
        partition.append(chunk).unwrap();
    }
    partition.wait_durable(partition.next_offset()).unwrap();
    drop((client, partition));
    broker.restart();
    // More look-ups than there are threads for them.
    let mut waiting: Vec<Client> = (0..100).map(|_| broker.client()).collect();
    for client in &mut waiting {
        client.send(get_request("t", &["key 7"]));
    }
    let mut other = broker.client();
    let began = Instant::now();
    let got = ask!(other, GetKeys, get_request("small", &["a"]));
    assert_eq!(got.keys[0].newest.as_ref().unwrap().value, "b");
    assert!(began.elapsed() < Duration::from_secs(30));
    for client in &mut waiting {
        let got = answer!(client, GetKeys);
        assert_eq!(
            got.keys[0].newest.as_ref().unwrap().version,
            Offset(490_007)
        );
    }
}

/// Takes all free memory of segments.
fn all_memory(broker: &Broker) -> Vec<BufferWriter> {
    let pool = broker.log().pool();
    let allocate = || pool.allocate(Arena::Segments, BLOCK_BYTES_MIN);
    std::iter::from_fn(allocate).collect()
}

/// Lets clients change keys of the stream "large", which has no segment yet. Small blocks that come free do not suffice.
fn send_large(broker: &Broker, clients: usize) -> Vec<Client> {
    let value: &str = &"v".repeat(600_000);
    let sent = (0..clients).map(|number| {
        let key = format!("key {number}");
        let mut client = broker.client();
        client.send(PutKeysRequest {
            stream: "large".into(),
            entries: vec![entry(&key, Some(value), KeyCondition::Absent, 0)],
            all_or_none: false,
        });
        client
    });
    sent.collect()
}

#[test]
fn conditional_changes_that_wait_for_memory_hold_up_no_look_ups() {
    let broker = Broker::start();
    let mut client = broker.client();
    create(&mut client, "t", keyed(Durability::Sync, 1));
    create(&mut client, "large", keyed(Durability::Sync, 1));
    put(&mut client, &[("a", Some("1"))]);
    let held = all_memory(&broker);
    // More changes than there are threads for look-ups.
    let mut waiting = send_large(&broker, 40);
    for client in &mut waiting {
        assert!(client.is_silent_for(Duration::from_millis(10)));
    }
    let began = Instant::now();
    let page = ask!(client, ScanKeys, scan_request(0, "", 10));
    assert_eq!((page.error_code, page.keys.len()), (0, 1));
    // The changes wait up to 30 seconds.
    assert!(began.elapsed() < Duration::from_secs(20));
    drop(held);
    for client in &mut waiting {
        let stored = answer!(client, PutKeys);
        assert_eq!(errors(&stored.entries), [(0, None)], "{stored:?}");
    }
}

#[test]
fn partitions_of_keyed_streams_report_their_compaction() {
    let broker = Broker::start();
    let mut client = broker.client();
    create(&mut client, "t", keyed(Durability::Sync, 1));
    put(&mut client, &[("a", Some("1"))]);
    let request = || DescribeStreamRequest {
        name: Some("t".into()),
        stream: StreamId(0),
        with_lanes: true,
    };
    let started = Instant::now();
    let compaction = loop {
        let described = ask!(client, DescribeStream, request());
        match described.lanes[0].compaction.clone() {
            Some(compaction) => break compaction,
            None => assert!(started.elapsed() < Duration::from_secs(60)),
        }
    };
    // Its only group is open.
    assert_eq!((compaction.passes, compaction.failed), (0, 0));
    assert_eq!(
        (compaction.compacted_to, compaction.compacted_at),
        (Offset(0), Timestamp(-1))
    );
    assert_eq!(compaction.fault, None);
}

/// A stream with an index of cities.
fn with_cities() -> StreamSettings {
    let mut settings = keyed(Durability::Async, 1);
    settings.further.push(FurtherSetting {
        name: "millstream.keyed.secondary".into(),
        value: "city".into(),
    });
    settings
}

fn find_request(ranges: &[(&'static str, Option<&'static str>)], keys_max: u32) -> FindKeysRequest {
    let ranges = ranges.iter().map(|(from, until)| SecondaryRange {
        from: (*from).into(),
        until: until.map(Bytes::from),
    });
    FindKeysRequest {
        stream: "t".into(),
        partition: 0,
        index: "city".into(),
        ranges: ranges.collect(),
        from: None,
        keys_max,
        bytes_max: 1 << 20,
    }
}

fn in_city(key: &'static str, cities: &[&'static str], condition: KeyCondition) -> KeyToPut {
    let secondary = cities.iter().map(|city| SecondaryKey {
        name: "city".into(),
        key: (*city).into(),
    });
    KeyToPut {
        key: key.into(),
        value: Some(Bytes::from_static(b"v")),
        condition,
        secondary: secondary.collect(),
        ..KeyToPut::default()
    }
}

#[test]
fn look_ups_by_secondary_key_find_only_current_entries() {
    let broker = Broker::start();
    let mut client = broker.client();
    create(&mut client, "t", with_cities());
    // Also a conditional change stores them.
    let (any, absent) = (KeyCondition::None, KeyCondition::Absent);
    let request = PutKeysRequest {
        stream: "t".into(),
        entries: vec![
            in_city("ann", &["Namur"], any),
            in_city("bob", &["Namur", "Turin"], absent),
            in_city("cid", &["Turin"], any),
            in_city("ann", &["Turin"], any),
            in_city("dan", &["Accra"], any),
        ],
        all_or_none: false,
    };
    let response = ask!(client, PutKeys, request);
    assert!(
        response.entries.iter().all(|entry| entry.error_code == 0),
        "{response:?}"
    );

    let pairs = |response: &FindKeysResponse| -> String {
        assert_eq!(response.error_code, 0, "{response:?}");
        let keys = response.keys.iter();
        let pairs = keys.map(|found| {
            let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
            format!("{} {}", text(&found.secondary), text(&found.key))
        });
        pairs.collect::<Vec<_>>().join(", ")
    };
    let all = ask!(client, FindKeys, find_request(&[("", None)], 100));
    assert_eq!(
        pairs(&all),
        "Accra dan, Namur bob, Turin ann, Turin bob, Turin cid"
    );
    assert_eq!(all.next, None);
    let ranges = [("Accra", Some("Accra\0")), ("Turin", Some("Turin\0"))];
    let page = ask!(client, FindKeys, find_request(&ranges, 2));
    assert_eq!(pairs(&page), "Accra dan, Turin ann");
    let mut rest = find_request(&ranges, 2);
    rest.from = page.next;
    let rest = ask!(client, FindKeys, rest);
    assert_eq!(
        (pairs(&rest).as_str(), rest.next),
        ("Turin bob, Turin cid", None)
    );
}

#[test]
fn wrong_secondary_keys_are_refused_with_a_reason() {
    let broker = Broker::start();
    let mut client = broker.client();
    create(&mut client, "t", with_cities());
    let mut many = in_city("many", &["x"; 1_000], KeyCondition::None);
    let refusal = |client: &mut Client, entry: KeyToPut| {
        let good = in_city("good", &["Namur"], KeyCondition::None);
        let request = PutKeysRequest {
            stream: "t".into(),
            entries: vec![entry, good],
            all_or_none: false,
        };
        let entries = ask!(client, PutKeys, request).entries;
        assert_eq!(
            (entries[0].error_code, entries[1].error_code),
            (INVALID_REQUEST, 0)
        );
        entries[0].error_message.as_ref().unwrap().to_string()
    };
    let told = refusal(&mut client, many.clone());
    assert_eq!(
        told,
        "the entry has 1000 secondary keys, and may have at most 64"
    );
    many.secondary.truncate(1);
    many.secondary[0].key = vec![b'x'; 4097].into();
    assert!(refusal(&mut client, many.clone()).contains("4097 bytes"));
    many.secondary[0].name = "a b".into();
    assert!(refusal(&mut client, many.clone()).contains("no name"));
    many.secondary[0].name = "city".into();
    many.secondary[0].key = Bytes::new();
    many.value = None;
    assert!(refusal(&mut client, many).contains("deletes its key"));

    let mut error = |request: FindKeysRequest| ask!(client, FindKeys, request).error_code;
    let mut other = find_request(&[], 1);
    other.index = "zip".into();
    assert_eq!(error(other), INVALID_CONFIG);
    assert_eq!(error(find_request(&[], 0)), INVALID_REQUEST);
    assert_eq!(
        error(find_request(&[("b", None), ("c", None)], 1)),
        INVALID_REQUEST
    );
    assert_eq!(
        error(find_request(&[("a", Some("b")); 300], 1)),
        INVALID_REQUEST
    );
    assert_eq!(error(find_request(&[], 1)), 0);
}
