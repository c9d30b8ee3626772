//! Records by key.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_base::{Clock, SystemClock, Timestamp};
use millstream_client::{
    ClientError, Expected, Header, KeyChange, KeyRange, NewValue, Producer, ProducerConfig,
    ProducerRecord, ResponseError, StoredVersion,
};
use millstream_log::{CLEANUP_POLICY, COMPACT, SECONDARY, StreamConfig};

use crate::support::{Node, produce};

fn create(node: &Node, name: &str, partitions: u32) {
    let policy = (CLEANUP_POLICY.to_owned(), COMPACT.to_owned());
    let config = StreamConfig {
        streamlets: partitions,
        settings: [policy].into(),
        ..StreamConfig::default()
    };
    node.log().create_stream(name, config).unwrap();
}

#[tokio::test]
async fn keys_are_put_found_and_deleted() {
    let node = Node::start();
    let client = node.client();
    create(&node, "t", 3);
    let table = client.keyed("t");
    assert_eq!(table.get("ann").await.unwrap(), None);
    let stored = table.put("ann", "1").await.unwrap();
    let found = table.get("ann").await.unwrap().unwrap();
    assert_eq!(
        (&found.value[..], found.version),
        (&b"1"[..], stored.version)
    );
    assert_eq!(found.partition, stored.partition);
    table.delete("ann").await.unwrap();
    table.delete("none").await.unwrap();
    assert_eq!(table.get("ann").await.unwrap(), None);
    // Keys and values are any bytes.
    table.put(b"\xff\x00", b"\xfe").await.unwrap();
    table.put("", "").await.unwrap();
    assert_eq!(
        table.get(b"\xff\x00").await.unwrap().unwrap().value,
        &b"\xfe"[..]
    );
    assert!(table.get("").await.unwrap().unwrap().value.is_empty());
}

#[tokio::test]
async fn records_of_keys_are_found_with_their_headers_in_one_request() {
    const KEYS: u32 = 1_000;
    let node = Node::start();
    let client = node.client();
    create(&node, "t", 3);
    // Larger than a value that is sent from its place.
    let large = vec![7; 2_000];
    let headers = |key: u32| {
        let name: &[u8] = if key.is_multiple_of(2) { b"even" } else { b"" };
        let value = (!key.is_multiple_of(3)).then_some(&large[..2 * key as usize]);
        let last = Header {
            name: b"last",
            value: Some(b"1"),
        };
        [Header { name, value }, last]
    };
    let producer = Producer::new(&client, ProducerConfig::default());
    let mut sent = Vec::new();
    for key in 0..KEYS {
        let record = ProducerRecord {
            topic: "t",
            key: Some(&key.to_be_bytes()),
            value: Some(b"v"),
            headers: &headers(key),
            ..ProducerRecord::default()
        };
        sent.push(producer.send(record).await.unwrap());
    }
    for delivery in sent {
        delivery.wait().await.unwrap();
    }
    let keys: Vec<_> = (0..KEYS + 1).map(u32::to_be_bytes).collect();
    let table = client.keyed("t");
    let found = table.get_many_records(&keys).await.unwrap();
    let plain = table.get_many(&keys).await.unwrap();
    assert_eq!(found.len(), keys.len());
    assert_eq!(
        (&found[KEYS as usize], &plain[KEYS as usize]),
        (&None, &None)
    );
    for (key, (found, plain)) in (0..KEYS).zip(found.into_iter().zip(plain)) {
        let found = found.unwrap();
        assert_eq!(Some(found.newest), plain);
        let found = found.headers.iter();
        let found: Vec<_> = found
            .map(|it| (&it.name[..], it.value.as_deref()))
            .collect();
        assert_eq!(
            found,
            headers(key).map(|it| (it.name, it.value)),
            "key {key}"
        );
    }
}

#[tokio::test]
async fn older_versions_of_a_key_are_found_while_retained() {
    let node = Node::start();
    let client = node.client();
    create(&node, "t", 2);
    let table = client.keyed("t");
    let mut stored = Vec::new();
    for n in 0..5 {
        table.put("other", n.to_string()).await.unwrap();
        stored.push(table.put("ann", n.to_string()).await.unwrap());
    }
    let deleted = table.delete("ann").await.unwrap();
    for (n, stored) in stored.iter().enumerate() {
        let found = table.get_at("ann", stored.version).await.unwrap().unwrap();
        assert_eq!(
            (found.version, &found.value[..]),
            (stored.version, n.to_string().as_bytes())
        );
    }
    assert_eq!(table.get_at("ann", deleted.version).await.unwrap(), None);
    assert_eq!(table.get_at("none", deleted.version).await.unwrap(), None);
    let mut history = table.history("ann");
    let mut listed = Vec::new();
    while let Some(found) = history.next().await.unwrap() {
        assert_eq!(found.partition, deleted.partition);
        listed.push((found.version, found.value));
    }
    let mut expected = vec![(deleted.version, None)];
    let values = (0..5)
        .rev()
        .map(|n: usize| (stored[n].version, Some(n.to_string().into())));
    expected.extend(values);
    assert_eq!(listed, expected);
    assert!(!history.lacks_older());
    assert!(table.history("none").next().await.unwrap().is_none());
    assert!(client.keyed("none").history("a").next().await.is_err());
}

#[tokio::test]
async fn a_key_changes_only_from_the_expected_version() {
    let node = Node::start();
    let client = node.client();
    create(&node, "t", 3);
    let table = client.keyed("t");
    let absent = Expected::Absent;
    let first = table.put_if("ann", "1", absent).await.unwrap();
    let newest = |outcome: Result<StoredVersion, ClientError>| match outcome {
        Err(ClientError::OtherVersion { stream, newest }) if stream == "t" => newest,
        outcome => panic!("{outcome:?}"),
    };
    let taken = table.put_if("ann", "2", absent).await;
    assert_eq!(newest(taken), Some(first.version));
    let first_version = Expected::Version(first.version);
    let second = table.put_if("ann", "2", first_version).await.unwrap();
    assert_eq!(second.partition, first.partition);
    let late = table.put_if("ann", "3", first_version).await;
    assert_eq!(newest(late), Some(second.version));
    let late = table.delete_if("ann", first.version).await;
    assert_eq!(newest(late), Some(second.version));
    assert_eq!(table.get("ann").await.unwrap().unwrap().value, "2");
    table.delete_if("ann", second.version).await.unwrap();
    let late = table.delete_if("ann", second.version).await;
    assert_eq!(newest(late), None);
    let error = table.put_if("ann", "3", first_version).await.unwrap_err();
    assert!(error.to_string().ends_with("it has no value"), "{error}");
}

#[tokio::test]
async fn a_value_expires_after_its_time_to_live() {
    let node = Node::start();
    let client = node.client();
    create(&node, "t", 3);
    let table = client.keyed("t");
    let clock = SystemClock::default();
    let before = clock.now();
    let hour = Duration::from_secs(3_600);
    table.put_for("long", "1", hour).await.unwrap();
    table.put_for("ever", "1", Duration::MAX).await.unwrap();
    table.put("ever and ever", "1").await.unwrap();
    let short = Duration::from_micros(1);
    table.put_for("short", "1", short).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(table.get("short").await.unwrap(), None);
    let end = async |key| table.get(key).await.unwrap().unwrap().expires_at;
    let from = Timestamp(before.0 + 3_600_000);
    let until = Timestamp(clock.now().0 + 3_600_000);
    assert!((from..=until).contains(&end("long").await.unwrap()));
    assert_eq!(end("ever").await, Some(Timestamp(i64::MAX)));
    assert_eq!(end("ever and ever").await, None);
    let mut scan = table.scan(KeyRange::all());
    let mut found = BTreeMap::new();
    while let Some(entry) = scan.next().await.unwrap() {
        found.insert(entry.key, entry.newest.expires_at.is_some());
    }
    let expected = [("ever", true), ("ever and ever", false), ("long", true)];
    assert_eq!(found, expected.map(|(key, ends)| (key.into(), ends)).into());
    let refused = table.put_for("a", "1", Duration::ZERO).await.unwrap_err();
    assert!(refused.to_string().contains("1 ms or more"), "{refused}");
}

#[tokio::test]
async fn each_of_several_clients_adds_its_numbers() {
    const CLIENTS: i64 = 4;
    const NUMBERS: i64 = 50;
    let node = Node::start();
    create(&node, "t", 3);
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let table = node.client().keyed("t");
        tasks.push(tokio::spawn(async move {
            for number in 1..=NUMBERS {
                table.add("n", number).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let table = node.client().keyed("t");
    let sum = CLIENTS * NUMBERS * (NUMBERS + 1) / 2;
    let (stored, found) = table.add("n", 0).await.unwrap();
    assert_eq!(found, sum);
    let newest = table.get("n").await.unwrap().unwrap();
    assert_eq!(newest.version, stored.version);
    assert_eq!(newest.value, sum.to_string());
    table.put("n", "1.5").await.unwrap();
    let error = table.add("n", 1).await.unwrap_err();
    assert_eq!(error.response_error(), Some(ResponseError::InvalidRequest));
}

#[tokio::test]
async fn many_changes_each_have_an_outcome() {
    let node = Node::start();
    create(&node, "t", 3);
    let table = node.client().keyed("t");
    // More than one request takes.
    let changes = |expected: Option<Expected>, change: fn(u64) -> NewValue| -> Vec<KeyChange> {
        let keys = (0..3_000).map(|number| KeyChange {
            key: number.to_string().into(),
            expected: expected.filter(|_| number % 3 == 0),
            change: change(number),
            ttl: None,
            secondary: Vec::new(),
        });
        keys.collect()
    };
    let put = |number: u64| NewValue::Put(number.to_string().into());
    let stored = table.change_many(&changes(None, put)).await.unwrap();
    assert!(stored.iter().all(Result::is_ok));
    let add = |_| NewValue::Add(1);
    let changed = changes(Some(Expected::Absent), add);
    let changed = table.change_many(&changed).await.unwrap();
    for (number, outcome) in (0..).zip(changed) {
        match outcome {
            Ok(changed) => assert_eq!((number % 3 != 0, changed.sum), (true, Some(number + 1))),
            Err(ClientError::OtherVersion { newest, .. }) => {
                assert_eq!(number % 3, 0);
                let place = usize::try_from(number).unwrap();
                let stored = stored[place].as_ref().unwrap().stored;
                assert_eq!(newest, Some(stored.version));
            }
            Err(error) => panic!("{error}"),
        }
    }
    let delete = |_| NewValue::Delete;
    let deleted = table.change_many(&changes(None, delete)).await.unwrap();
    assert!(deleted.iter().all(Result::is_ok));
    let left = table.scan(KeyRange::all()).next().await.unwrap();
    assert_eq!(left, None);
}

/// The longest key.
const KEY_BYTES_MAX: usize = 1 << 20;

#[tokio::test]
async fn the_longest_keys_are_put_found_and_deleted() {
    let node = Node::start();
    let client = node.client();
    create(&node, "t", 3);
    let table = client.keyed("t");
    // They differ in their last byte.
    let keys = [1, 2, 3].map(|last| {
        let mut key = vec![7; KEY_BYTES_MAX];
        key[KEY_BYTES_MAX - 1] = last;
        key
    });
    table.put(&keys[0], "first").await.unwrap();
    let others = [
        (keys[1].clone(), Some("second")),
        (keys[2].clone(), Some("third")),
    ];
    for outcome in table.put_many(&others).await.unwrap() {
        outcome.unwrap();
    }
    let values = ["first", "second", "third"];
    for (key, value) in keys.iter().zip(values) {
        assert_eq!(table.get(key).await.unwrap().unwrap().value, value);
    }
    let found = table.get_many(&keys).await.unwrap();
    let found = found.into_iter().map(|found| found.unwrap().value);
    assert!(found.eq(values));
    table.delete(&keys[1]).await.unwrap();
    assert_eq!(table.get(&keys[1]).await.unwrap(), None);
    let mut scan = table.scan(KeyRange::prefix([7]));
    for (key, value) in [(&keys[0], "first"), (&keys[2], "third")] {
        let entry = scan.next().await.unwrap().unwrap();
        assert!(entry.key == *key, "{value}");
        assert_eq!(entry.newest.value, value);
    }
    assert_eq!(scan.next().await.unwrap(), None);
}

#[tokio::test]
async fn a_longer_key_is_refused_with_the_limit_and_others_are_put() {
    let node = Node::start();
    let client = node.client();
    create(&node, "t", 3);
    let table = client.keyed("t");
    let longer = vec![7; KEY_BYTES_MAX + 1];
    let entries = [
        (b"ann".to_vec(), Some("1")),
        (longer.clone(), Some("2")),
        (b"bob".to_vec(), Some("3")),
    ];
    let outcomes = table.put_many(&entries).await.unwrap();
    let are_put: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
    assert_eq!(are_put, [true, false, true]);
    for error in [
        table.put(&longer, "2").await.unwrap_err(),
        table.delete(&longer).await.unwrap_err(),
        table.get(&longer).await.unwrap_err(),
        table.get_many(&[b"ann", &longer[..]]).await.unwrap_err(),
    ] {
        let expected = format!(
            "stream t: the key has {} bytes, and may have at most {KEY_BYTES_MAX}",
            longer.len()
        );
        assert!(error.to_string().contains(&expected), "{error}");
        assert_eq!(error.response_error(), Some(ResponseError::InvalidRequest));
    }
    let found = table.get_many(&["ann", "bob"]).await.unwrap();
    assert!(found.iter().all(Option::is_some));
}

#[tokio::test]
async fn many_keys_and_scans_equal_a_map() {
    let node = Node::start();
    let client = node.client();
    create(&node, "t", 5);
    let table = client.keyed("t");
    let mut expected = BTreeMap::new();
    let entries: Vec<(String, Option<String>)> = (0..5000)
        .map(|number: u32| {
            let key = format!("{:03}", number * 7919 % 3001);
            let value = (!number.is_multiple_of(5))
                .then(|| format!("{number}").repeat(1 + number as usize % 300));
            (key, value)
        })
        .collect();
    for outcome in table.put_many(&entries).await.unwrap() {
        outcome.unwrap();
    }
    for (key, value) in &entries {
        match value {
            Some(value) => expected.insert(key.clone(), value.clone()),
            None => expected.remove(key),
        };
    }
    let keys: Vec<String> = (0..3001).map(|number| format!("{number:03}")).collect();
    let found = table.get_many(&keys).await.unwrap();
    for (key, found) in keys.iter().zip(&found) {
        let value = found.as_ref().map(|found| found.value.as_ref());
        assert_eq!(value, expected.get(key).map(String::as_bytes), "{key}");
    }
    for range in [
        KeyRange::all(),
        KeyRange::prefix("12"),
        KeyRange::new("2", Some(b"25".to_vec())),
        KeyRange::new("5", Some(b"4".to_vec())),
    ] {
        let mut scan = table.scan(range.clone());
        let mut scanned = Vec::new();
        while let Some(entry) = scan.next().await.unwrap() {
            scanned.push((entry.key.to_vec(), entry.newest.value.to_vec()));
        }
        let in_range = expected
            .iter()
            .filter(|(key, _)| range.contains(key.as_bytes()));
        let in_range =
            in_range.map(|(key, value)| (key.clone().into_bytes(), value.clone().into_bytes()));
        assert!(scanned == in_range.collect::<Vec<_>>(), "{range:?}");
        assert_eq!(scan.next().await.unwrap(), None);
    }
}

#[tokio::test]
async fn records_of_a_producer_are_found_by_key_and_other_streams_are_refused() {
    let node = Node::start();
    let client = node.client();
    node.create("plain", 1);
    produce(&client, "plain", ["x".to_owned()]).await;
    let refused = client.keyed("plain").get("a").await.unwrap_err();
    assert!(
        refused.to_string().contains("cleanup.policy=compact"),
        "{refused}"
    );
    let error = |error: ClientError| error.response_error();
    assert_eq!(error(refused), Some(ResponseError::InvalidConfig));
    let mut scan = client.keyed("plain").scan(KeyRange::all());
    assert_eq!(
        scan.next().await.map_err(error),
        Err(Some(ResponseError::InvalidConfig))
    );
    let unknown = client.keyed("none").put("a", "b").await;
    assert_eq!(
        unknown.map_err(error),
        Err(Some(ResponseError::UnknownTopicOrPartition))
    );
    let unknown = client.keyed("none").scan(KeyRange::all()).next().await;
    assert_eq!(
        unknown.map_err(error),
        Err(Some(ResponseError::UnknownTopicOrPartition))
    );

    create(&node, "t", 4);
    let long = "k".repeat((1 << 20) + 1);
    let entries = [(&*long, Some("v")), ("a", Some("v"))];
    let outcomes = client.keyed("t").put_many(&entries).await.unwrap();
    assert!(outcomes[0].is_err() && outcomes[1].is_ok());
}

#[tokio::test]
async fn keys_are_found_by_secondary_keys_over_all_partitions() {
    let node = Node::start();
    let client = node.client();
    create(&node, "t", 3);
    let table = client.keyed("t");
    let found = table.find("city", &["Namur"]).next().await;
    assert_eq!(
        found.unwrap_err().response_error(),
        Some(ResponseError::InvalidConfig)
    );

    // The index is built from stored data.
    table
        .put_with("ann", "1", &[("city", b"Namur"), ("zip", b"5000")])
        .await
        .unwrap();
    let changes = (0..2_500).map(|number: u32| KeyChange {
        key: format!("{number:04}").into(),
        expected: None,
        change: NewValue::Put("v".into()),
        ttl: None,
        secondary: vec![("city".to_owned(), format!("city {}", number % 2).into())],
    });
    let changes: Vec<KeyChange> = changes.collect();
    let stored = table.change_many(&changes).await.unwrap();
    assert!(stored.iter().all(Result::is_ok));
    let names = |config: &mut StreamConfig| {
        config
            .settings
            .insert(SECONDARY.to_owned(), "city".to_owned());
    };
    node.log().alter_stream("t", names).unwrap();

    let mut scan = table.scan_by("city", KeyRange::prefix("city "));
    for city in 0..2 {
        for number in (0..2_500).filter(|number| number % 2 == city) {
            let found = scan.next().await.unwrap().unwrap();
            assert_eq!(found.secondary, format!("city {city}"));
            assert_eq!(found.key, format!("{number:04}"));
        }
    }
    assert_eq!(scan.next().await.unwrap(), None);
    let mut found = table.find("city", &["none", "Namur", "Namur"]);
    let ann = found.next().await.unwrap().unwrap();
    assert_eq!(
        (&ann.key[..], &ann.newest.value[..]),
        (&b"ann"[..], &b"1"[..])
    );
    assert_eq!(found.next().await.unwrap(), None);

    table.put("ann", "2").await.unwrap();
    assert_eq!(table.find("city", &["Namur"]).next().await.unwrap(), None);
    let none: [&str; 0] = [];
    assert_eq!(table.find("city", &none).next().await.unwrap(), None);
    let many: Vec<String> = (0..700).map(|n| format!("city {n}")).collect();
    let mut found = table.find("city", &many);
    let mut count = 0;
    while found.next().await.unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 2_500);
}
