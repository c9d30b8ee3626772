//! Watches of keys: the changes that they deliver, and the watches that the broker refuses.

use bytes::Bytes;
use millstream_base::{ByteSize, Offset};
use millstream_record::{Chunks, Decompressor};
use millstream_wire::native::*;
use millstream_wire::{ResponseError, Uuid};

use crate::client::{Broker, Client, answer, ask, settings};

const INVALID_CONFIG: i16 = ResponseError::InvalidConfig.code();
const INVALID_REQUEST: i16 = ResponseError::InvalidRequest.code();
const OUT_OF_RANGE: i16 = ResponseError::OffsetOutOfRange.code();
const QUOTA: i16 = ResponseError::ThrottlingQuotaExceeded.code();
const UNKNOWN: i16 = ResponseError::UnknownTopicOrPartition.code();
const UNKNOWN_ID: i16 = ResponseError::UnknownTopicId.code();

fn create(client: &mut Client, name: &'static str, policy: &'static str) {
    let request = CreateStreamRequest {
        name: name.into(),
        settings: StreamSettings {
            segment_bytes: ByteSize(4 << 20),
            further: vec![FurtherSetting {
                name: "cleanup.policy".into(),
                value: policy.into(),
            }],
            ..settings(1, 1)
        },
        or_existing: false,
    };
    assert_eq!(ask!(client, CreateStream, request).error_code, 0);
}

fn put(client: &mut Client, entries: &[(&'static str, Option<&'static str>)]) {
    let entries = entries.iter().map(|(key, value)| KeyToPut {
        key: (*key).into(),
        value: value.map(Into::into),
        ..KeyToPut::default()
    });
    let request = PutKeysRequest {
        stream: "t".into(),
        entries: entries.collect(),
        all_or_none: false,
    };
    assert_eq!(ask!(client, PutKeys, request).error_code, 0);
}

/// A watch of the keys from `b` on and before `d`.
fn watch() -> WatchKeysRequest {
    WatchKeysRequest {
        stream: "t".into(),
        stream_id: None,
        from: "b".into(),
        until: Some("d".into()),
        partitions: Vec::new(),
        bytes_max: 1 << 20,
        ahead_bytes: ByteSize(0),
        layout: 0,
    }
}

fn at(position: Option<u64>, epoch: i32) -> WatchedPartition {
    WatchedPartition {
        partition: 0,
        position: position.map(Offset),
        epoch,
    }
}

/// Returns the keys that the next answer delivers, and the offset behind them.
fn receive(client: &mut Client, subscription: u32) -> (Vec<String>, Offset) {
    let request = ReceiveRequest {
        subscription,
        source: 0,
        bytes_max: 1 << 20,
    };
    let answer = ask!(client, Receive, request);
    assert_eq!(answer.error_code, 0, "{answer:?}");
    let (mut keys, mut next) = (Vec::new(), Offset(0));
    let mut decompressor = Decompressor::default();
    for delivered in answer.delivered {
        assert_eq!(delivered.error_code, 0, "{delivered:?}");
        next = delivered.next;
        for piece in &delivered.chunks.0 {
            for chunk in Chunks::new(piece) {
                for record in chunk.unwrap().records(&mut decompressor).unwrap() {
                    let record = record.unwrap();
                    // The first chunk may begin before the position.
                    if record.offset >= delivered.from {
                        let key = record.key.unwrap().to_vec();
                        keys.push(String::from_utf8(key).unwrap());
                    }
                }
            }
        }
    }
    (keys, next)
}

#[test]
fn a_watch_delivers_its_range_and_goes_on_from_a_position() {
    let mut broker = Broker::start();
    let mut client = broker.client();
    create(&mut client, "t", "compact");
    put(&mut client, &[("b", Some("before"))]);
    let begun = ask!(client, WatchKeys, watch());
    assert_eq!(begun.error_code, 0, "{begun:?}");
    let [start] = &begun.lanes[..] else {
        panic!("{begun:?}");
    };
    assert_eq!((start.partition, start.position), (0, Offset(1)));
    put(
        &mut client,
        &[("a", Some("v")), ("b", None), ("c", Some("v")), ("d", None)],
    );
    let (keys, next) = receive(&mut client, begun.subscription);
    assert_eq!(
        (&keys[..], next),
        (&["b".to_owned(), "c".to_owned()][..], Offset(5))
    );

    // Also across a restart, and from anywhere.
    broker.restart();
    let mut client = broker.client();
    let again = ask!(
        client,
        WatchKeys,
        WatchKeysRequest {
            stream_id: Some(begun.stream_id),
            partitions: vec![at(Some(3), start.epoch)],
            ..watch()
        }
    );
    assert_eq!(again.error_code, 0, "{again:?}");
    assert_eq!(
        receive(&mut client, again.subscription),
        (vec!["c".to_owned()], Offset(5))
    );
    let ended = ask!(
        client,
        Unsubscribe,
        UnsubscribeRequest {
            subscription: again.subscription
        }
    );
    assert_eq!(ended.error_code, 0);
}

#[test]
fn bad_positions_and_ranges_are_refused() {
    let broker = Broker::start();
    let mut client = broker.client();
    create(&mut client, "t", "compact");
    create(&mut client, "plain", "delete");
    put(&mut client, &[("b", Some("v"))]);
    let id = ask!(client, WatchKeys, watch()).stream_id;
    let of = |stream_id: Option<Uuid>, partitions: Vec<WatchedPartition>| WatchKeysRequest {
        stream_id,
        partitions,
        ..watch()
    };
    let named = |stream: &'static str| WatchKeysRequest {
        stream: stream.into(),
        ..watch()
    };
    let other = WatchedPartition {
        partition: 1,
        ..at(None, -1)
    };
    let long = WatchKeysRequest {
        until: Some(Bytes::from(vec![b'c'; (16 << 10) + 1])),
        ..watch()
    };
    for (request, expected) in [
        (named("none"), UNKNOWN),
        (named("plain"), INVALID_CONFIG),
        (long, INVALID_REQUEST),
        (of(None, vec![at(Some(0), 0)]), INVALID_REQUEST),
        (
            of(Some(id), vec![at(None, -1), at(None, -1)]),
            INVALID_REQUEST,
        ),
        (of(Some(id), vec![other]), UNKNOWN),
        (of(Some(Uuid::nil()), Vec::new()), UNKNOWN_ID),
        // Behind the end, and of epochs that the partition has not had.
        (of(Some(id), vec![at(Some(2), 0)]), OUT_OF_RANGE),
        (of(Some(id), vec![at(Some(1), 1)]), OUT_OF_RANGE),
        (of(Some(id), vec![at(Some(1), -1)]), OUT_OF_RANGE),
    ] {
        let refused = ask!(client, WatchKeys, request.clone());
        assert_eq!(refused.error_code, expected, "{request:?} {refused:?}");
        assert!(refused.error_message.is_some());
    }
    let empty = WatchKeysRequest {
        until: Some("a".into()),
        ..watch()
    };
    assert_eq!(ask!(client, WatchKeys, empty).error_code, 0);
    // With the two that were begun.
    for _ in 2..64 {
        assert_eq!(ask!(client, WatchKeys, watch()).error_code, 0);
    }
    assert_eq!(ask!(client, WatchKeys, watch()).error_code, QUOTA);
}
