//! The records of transactions, byte for byte.

use std::time::Duration;

use millstream_base::Timestamp;
use proptest::prelude::*;

use super::*;

fn producer(id: i64, epoch: i16) -> Producer {
    Producer {
        id: ProducerId(id),
        epoch: ProducerEpoch(epoch),
    }
}

fn participants() -> Participants {
    let mut participants = Participants::default();
    for (topic, partition) in [("b", 0), ("a", 2), ("a", 1)] {
        participants.add_partition(TopicPartition {
            topic: topic.into(),
            partition: Partition(partition),
        });
    }
    participants.add_group("g".into());
    participants
}

fn ending() -> Transaction {
    Transaction {
        producer: producer(1, i16::MAX),
        last: Some(producer(1, i16::MAX - 1)),
        timeout: Some(Duration::from_millis(60_000)),
        updated: Timestamp(3),
        phase: Phase::Ending {
            started: Timestamp(2),
            participants: participants(),
            end: End {
                outcome: Outcome::Committed,
                bumps_epoch: true,
            },
            next: Some(ProducerId(7)),
        },
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[track_caller]
fn check(record: Record, key: &[&str], value: &[&str]) {
    assert_eq!(hex(&record.key), key.concat());
    assert_eq!(hex(&record.value.unwrap()), value.concat());
}

#[test]
fn a_reservation_of_producer_ids_has_golden_bytes() {
    let record = super::producer_ids(ProducerId(1000));
    check(record, &["01"], &["01", "00000000000003e8"]);
}

#[test]
fn a_transaction_has_golden_bytes() {
    let record = super::transaction(&"tx".into(), &ending());
    let key = ["02", "00000002", "7478"];
    let producer = ["0000000000000001", "7fff", "01", "0000000000000001", "7ffe"];
    let times = [
        "000000000000ea60",
        "0000000000000003",
        "02",
        "0000000000000002",
    ];
    let topic_a = [
        "00000002", "00000001", "61", "00000002", "00000001", "00000002",
    ];
    let topic_b = ["00000001", "62", "00000001", "00000000"];
    let groups = ["00000001", "00000001", "67"];
    let end = ["01", "01", "01", "0000000000000007"];
    let value = [
        &["01"][..],
        &producer,
        &times,
        &topic_a,
        &topic_b,
        &groups,
        &end,
    ];
    check(record, &key, &value.concat());
}

#[test]
fn a_transactional_id_without_transaction_has_golden_bytes() {
    let transaction = Transaction {
        last: None,
        phase: Phase::Empty,
        ..ending()
    };
    let record = super::transaction(&"tx".into(), &transaction);
    let value = ["01", "0000000000000001", "7fff", "00", "000000000000ea60"];
    let rest = ["0000000000000003", "00"];
    check(
        record,
        &["02", "00000002", "7478"],
        &[&value[..], &rest].concat(),
    );
}

#[test]
fn a_removed_transactional_id_has_no_value() {
    let record = super::tombstone(&"tx".into());
    assert_eq!(record.value, None);
    assert_eq!(decode(record), Ok((Key::Transaction("tx".into()), None)));
}

#[test]
fn every_phase_round_trips() {
    let end = End {
        outcome: Outcome::Aborted,
        bumps_epoch: false,
    };
    let started = Timestamp(-5);
    let phases = [
        Phase::Empty,
        Phase::Ongoing {
            started,
            participants: participants(),
        },
        Phase::Ending {
            started,
            participants: Participants::default(),
            end,
            next: None,
        },
        ending().phase,
        Phase::Ended { started, end },
    ];
    for phase in phases {
        let transaction = Transaction { phase, ..ending() };
        let record = super::transaction(&"tx".into(), &transaction);
        let value = Value::Transaction(transaction);
        assert_eq!(
            decode(record),
            Ok((Key::Transaction("tx".into()), Some(value)))
        );
    }
}

#[test]
fn a_record_that_is_cut_off_anywhere_is_refused() {
    let whole = super::transaction(&"tx".into(), &ending());
    let value = whole.value.clone().unwrap();
    for length in 0..value.len() {
        let cut = Record {
            value: Some(value.slice(..length)),
            ..whole.clone()
        };
        assert!(
            matches!(decode(cut), Err(RecordError::CutOff { .. })),
            "{length}"
        );
    }
    for length in 0..whole.key.len() {
        let cut = Record {
            key: whole.key.slice(..length),
            ..whole.clone()
        };
        assert!(
            matches!(decode(cut), Err(RecordError::CutOff { .. })),
            "{length}"
        );
    }
}

#[test]
fn records_with_invalid_values_are_refused() {
    let whole = super::transaction(&"tx".into(), &ending());
    let value = whole.value.clone().unwrap();
    // Version, the signs of id and epoch, of the last ones, phase, outcome.
    let places = [
        (0, 2, "version"),
        (1, 0xff, "producer"),
        (9, 0xff, "producer"),
        (11, 2, "last"),
        (12, 0xff, "last"),
        (20, 0xff, "last"),
        (38, 4, "phase"),
        (value.len() - 11, 2, "outcome"),
        (value.len() - 10, 2, "bumps epoch"),
        (value.len() - 9, 2, "next"),
        (value.len() - 8, 0xff, "next"),
    ];
    for (place, byte, field) in places {
        let mut bytes = value.to_vec();
        bytes[place] = byte;
        let record = Record {
            value: Some(bytes.into()),
            ..whole.clone()
        };
        match decode(record) {
            Err(RecordError::Unknown { field: named, .. }) => assert_eq!(named, field),
            other => panic!("{field}: {other:?}"),
        }
    }
    let long = Record {
        value: Some([&value[..], &[0]].concat().into()),
        ..whole
    };
    assert_eq!(decode(long), Err(RecordError::TooLong { bytes: 1 }));
}

proptest! {
    #[test]
    fn random_bytes_are_decoded_or_refused(
        key in prop::collection::vec(any::<u8>(), 0..20),
        value in prop::option::of(prop::collection::vec(any::<u8>(), 0..200)),
    ) {
        let value = value.map(Bytes::from);
        let _ = decode(Record { key: key.into(), value });
    }

    #[test]
    fn damaged_records_are_decoded_or_refused(place in any::<prop::sample::Index>(), byte: u8) {
        let whole = super::transaction(&"tx".into(), &ending());
        let mut value = whole.value.unwrap().to_vec();
        let place = place.index(value.len());
        value[place] = byte;
        let damaged = Record { key: whole.key, value: Some(value.into()) };
        if let Ok((Key::Transaction(id), Some(Value::Transaction(transaction)))) = decode(damaged) {
            let again = super::transaction(&id, &transaction);
            let value = Value::Transaction(transaction);
            prop_assert_eq!(decode(again), Ok((Key::Transaction(id), Some(value))));
        }
    }
}
