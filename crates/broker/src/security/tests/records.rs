//! The records in the log, byte for byte.

use bytes::Bytes;
use millstream_wire::sasl::Credential;
use proptest::prelude::*;

use super::super::record::Change;
use super::*;

fn credential() -> Credential {
    let (stored_key, server_key) = ([0xaa; 32], [0xbb; 32]);
    Credential::from_parts(
        Hash::Sha256,
        b"salt",
        Iterations(4097),
        &stored_key,
        &server_key,
    )
    .unwrap()
}

fn rule() -> Acl {
    let pattern = (ResourceType::TransactionalId, PatternType::Prefixed, "tx-");
    acl(
        pattern,
        ("User:al", "::1"),
        (Permission::Deny, Operation::Write),
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[track_caller]
fn check(change: &Change, key: &str, value: Option<&str>) {
    let record = change.encode();
    assert_eq!(hex(&record.key), key);
    assert_eq!(record.value.as_deref().map(hex).as_deref(), value);
    assert_eq!(Change::decode(record), Ok(change.clone()));
}

#[test]
fn golden_bytes() {
    let secret = Change::Secret(Secret::from_random(SECRET));
    check(&secret, "01", Some(&format!("01{}", "07".repeat(32))));

    let key = "020100000002616c".to_owned();
    let set = Change::Credential("al".to_owned(), Hash::Sha256, Some(credential()));
    let keys = ["aa".repeat(32), "bb".repeat(32)].concat();
    check(
        &set,
        &key,
        Some(&format!("01000010010000000473616c74{keys}")),
    );
    let removed = Change::Credential("al".to_owned(), Hash::Sha512, None);
    check(&removed, "020200000002616c", None);

    let key = "0305040000000374782d00000007557365723a616c000000033a3a310402";
    check(&Change::Acl(rule(), true), key, Some("01"));
    check(&Change::Acl(rule(), false), key, None);

    let entity = Entity {
        user: EntityPart::named("al"),
        client_id: Some(EntityPart::Default),
    };
    let limits = Limits {
        produced: ByteRate::new(258),
        consumed: None,
    };
    let key = "040200000002616c01";
    let value = "0101000000000000010200";
    check(&Change::Quota(entity.clone(), limits), key, Some(value));
    check(&Change::Quota(entity, Limits::default()), key, None);

    let rate = ConnectionRate::new(258);
    let address = IpEntity::of("::ffff:10.0.0.1".parse().unwrap());
    let key = "05020000000831302e302e302e31";
    check(
        &Change::ConnectionRate(address, rate),
        key,
        Some("0100000102"),
    );
    check(&Change::ConnectionRate(address, None), key, None);
    check(
        &Change::ConnectionRate(IpEntity::Default, rate),
        "0501",
        Some("0100000102"),
    );
}

#[track_caller]
fn refused(key: &[u8], value: Option<&[u8]>) -> RecordError {
    let record = Record {
        key: Bytes::copy_from_slice(key),
        value: value.map(Bytes::copy_from_slice),
    };
    empty().apply(record).unwrap_err()
}

#[test]
fn damaged_records_are_refused() {
    let cut_off = |field| RecordError::CutOff { field };
    let unknown = |field, value| RecordError::Unknown { field, value };
    let invalid = |field| RecordError::Invalid { field };
    let not_text = RecordError::NotText { field: "user" };
    assert_eq!(refused(b"", None), cut_off("kind"));
    assert_eq!(refused(b"\x09", None), unknown("kind", 9));
    let removed = RecordError::Removed { field: "secret" };
    assert_eq!(refused(b"\x01", None), removed);
    assert_eq!(refused(b"\x01", Some(b"\x02")), unknown("version", 2));
    assert_eq!(refused(b"\x01", Some(b"\x01abc")), cut_off("secret"));
    assert_eq!(refused(b"\x02\x03\0\0\0\x01a", None), unknown("hash", 3));
    assert_eq!(refused(b"\x02\x81\0\0\0\x01a", None), unknown("hash", 0x81));
    assert_eq!(refused(b"\x02\x01\0\0\0\x01*", None), invalid("user"));
    assert_eq!(refused(b"\x02\x01\0\0\0\x01\xff", None), not_text);
    assert_eq!(refused(b"\x02\x01\xff\xff\xff\xffa", None), cut_off("user"));
    assert_eq!(
        refused(b"\x02\x01\0\0\0\x01ab", None),
        RecordError::TooLong { bytes: 1 }
    );
    assert_eq!(refused(b"\x04\0\0", None), invalid("entity"));
    assert_eq!(refused(b"\x04\x03", None), unknown("user", 3));
    assert_eq!(refused(b"\x04\x02\0\0\0\0", None), invalid("user"));
    let zero = Some(&b"\x01\x01\0\0\0\0\0\0\0\0\0"[..]);
    let limit = invalid("limit of produced bytes");
    assert_eq!(refused(b"\x04\x01\0", zero), limit);
    assert_eq!(refused(b"\x05\0", None), unknown("ip", 0));
    assert_eq!(refused(b"\x05\x02\0\0\0\x01a", None), invalid("ip"));
    let zero = Some(&b"\x01\0\0\0\0"[..]);
    assert_eq!(
        refused(b"\x05\x01", zero),
        invalid("connections per second")
    );
    assert_eq!(refused(b"\x03\x06\x03", None), unknown("resource type", 6));
    assert_eq!(
        refused(b"\x03\x04\x03\0\0\0\x01a", None),
        invalid("resource")
    );

    // Weaker than requests can set it.
    let mut record = Change::Credential("al".to_owned(), Hash::Sha256, Some(credential())).encode();
    let mut value = record.value.unwrap().to_vec();
    value[3] = 0;
    record.value = Some(value.into());
    assert_eq!(empty().apply(record).unwrap_err(), invalid("credential"));
}

#[test]
fn removed_users_and_rules_stay_removed_after_a_restore() {
    let mut store = with_user("alice", "secret", Hash::Sha256);
    let added = store.acl_record(&rule()).unwrap().unwrap();
    store.apply(added.clone()).unwrap();
    assert_eq!(store.acl_record(&rule()), Ok(None));
    let mut log = store.snapshot();
    assert_eq!(log.len(), 3);

    for record in [
        store.user_tombstone("alice", Hash::Sha256).unwrap(),
        store.acl_tombstone(&rule()).unwrap(),
    ] {
        log.push(record.clone());
        store.apply(record).unwrap();
    }
    assert!(store.acl_tombstone(&rule()).is_none());
    assert!(store.user_tombstone("alice", Hash::Sha256).is_none());
    let spare = Secret::from_random([9; SECRET_BYTES]);
    let (restored, first) = Store::restore(AclSettings::new(true), log, spare).unwrap();
    assert!(first.is_none() && restored.users().is_empty() && restored.acls().is_empty());
    assert_eq!(restored.snapshot(), store.snapshot());

    // Removing a missing record succeeds, as after a compaction that kept only the tombstone.
    store
        .apply(Record {
            value: None,
            ..added
        })
        .unwrap();
    assert!(store.acls().is_empty());
}

#[test]
fn rules_with_invalid_names_are_refused() {
    for (kind, name) in [
        (ResourceType::Topic, ""),
        (ResourceType::Topic, "a\nb"),
        (ResourceType::Cluster, "my-cluster"),
    ] {
        let mut rule = rule();
        rule.pattern.kind = kind;
        rule.pattern.name = name.to_owned();
        assert!(empty().acl_record(&rule).is_err(), "{rule}");
    }
}

proptest! {
    #[test]
    fn random_records_are_refused_or_round_trip(
        kind in 0..7u8,
        key in prop::collection::vec(any::<u8>(), 0..40),
        value in prop::option::of(prop::collection::vec(any::<u8>(), 0..140)),
    ) {
        let key = [&[kind][..], &key].concat();
        let record = Record { key: key.into(), value: value.map(Bytes::from) };
        if let Ok(change) = Change::decode(record.clone()) {
            // An address may be written in several ways.
            let again = change.encode();
            prop_assert_eq!(Change::decode(again), Ok(change));
        }
    }

    #[test]
    fn records_with_flipped_bits_are_refused_or_decoded(index: prop::sample::Index, bit in 0..8u32) {
        for change in [
            Change::Secret(Secret::from_random(SECRET)),
            Change::Credential("al".to_owned(), Hash::Sha256, Some(credential())),
            Change::Acl(rule(), true),
        ] {
            let Record { key, value } = change.encode();
            let (key_bytes, value) = (key.len(), value.unwrap());
            let mut bytes = [key, value].concat();
            let index = index.index(bytes.len());
            bytes[index] ^= 1 << bit;
            let value = Bytes::from(bytes.split_off(key_bytes));
            let record = Record { key: bytes.into(), value: Some(value) };
            let _ = empty().apply(record);
        }
    }
}
