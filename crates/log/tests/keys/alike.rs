//! Many keys that hash alike: by murmur2, which selects the partition of a key, or by xxHash64, which the filters of key files use.

use std::time::{Duration, Instant};

use millstream_base::{ByteSize, KeyRange, Timestamp, partition_of_key};
use millstream_log::{KeyChange, KeyCondition, NewValue, StreamConfig, StreamPartition};
use millstream_record::Compression;
use twox_hash::XxHash64;

use super::machine::Machine;
use super::{chunk_of, get, keyed, sync};

/// With this many keys, a step for each pair of keys would take minutes.
const KEYS: u32 = 100_000;

/// The longest time of a test.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Returns a key for each number, all with the same murmur2.
fn alike_by_murmur2(n: u32) -> Vec<u8> {
    const M: u32 = 0x5bd1_e995;
    const SEED: u32 = 0x9747_b28c;
    let inverse = inverse_of(u64::from(M)) as u32;
    let shifted = |block: u32| block ^ (block >> 24);
    let first = shifted(n.wrapping_mul(M)).wrapping_mul(M);
    let state = (SEED ^ 8).wrapping_mul(M) ^ first;
    // The second block makes the state 0.
    let second = state.wrapping_mul(M).wrapping_mul(inverse);
    let second = shifted(second).wrapping_mul(inverse);
    [n.to_le_bytes(), second.to_le_bytes()].concat()
}

/// Returns a key for each number, all with the same xxHash64.
fn alike_by_xxhash(n: u32) -> Vec<u8> {
    const PRIMES: [u64; 4] = [
        0x9e37_79b1_85eb_ca87,
        0xc2b2_ae3d_27d4_eb4f,
        0x85eb_ca77_c2b2_ae63,
        0x27d4_eb2f_1656_67c5,
    ];
    let [p1, p2, p4, p5] = PRIMES;
    let first = u64::from(n);
    let mixed = first.wrapping_mul(p2).rotate_left(31).wrapping_mul(p1);
    let state = (p5.wrapping_add(16) ^ mixed).rotate_left(27);
    let state = state.wrapping_mul(p1).wrapping_add(p4);
    // The second half makes the state 0.
    let second = state.wrapping_mul(inverse_of(p1)).rotate_right(31);
    let second = second.wrapping_mul(inverse_of(p2));
    [first.to_le_bytes(), second.to_le_bytes()].concat()
}

/// The inverse of an odd number in 64 bits.
fn inverse_of(number: u64) -> u64 {
    (0..6).fold(number, |inverse, _| {
        let error = 2_u64.wrapping_sub(number.wrapping_mul(inverse));
        inverse.wrapping_mul(error)
    })
}

#[test]
fn the_keys_of_these_tests_collide() {
    let (murmur2, xxhash) = (alike_by_murmur2(0), alike_by_xxhash(0));
    for n in 1..1_000 {
        for partitions in [3, 1_000_003] {
            let owner = partition_of_key(&alike_by_murmur2(n), partitions);
            assert_eq!(owner, partition_of_key(&murmur2, partitions));
        }
        let hash = XxHash64::oneshot(0, &alike_by_xxhash(n));
        assert_eq!(hash, XxHash64::oneshot(0, &xxhash));
        assert_ne!(alike_by_xxhash(n), xxhash);
    }
}

/// Puts a value for each number in a range.
fn put(machine: &Machine, key: fn(u32) -> Vec<u8>, numbers: std::ops::Range<u32>, value: &[u8]) {
    let partition = machine.partition();
    let keys: Vec<Vec<u8>> = numbers.map(key).collect();
    for keys in keys.chunks(500) {
        let records: Vec<_> = keys
            .iter()
            .map(|key| (Some(&key[..]), Some(value)))
            .collect();
        let chunk = chunk_of(&records, Compression::None, None, false, Timestamp(5), None);
        partition.append(&chunk).unwrap();
        sync(machine.log());
    }
    machine.log().persist();
    sync(machine.log());
}

fn check(partition: &StreamPartition, key: fn(u32) -> Vec<u8>) {
    let value = |n| get(partition, &key(n)).map(|(_, value)| value);
    for n in (0..KEYS).step_by(97) {
        let expected: &[u8] = if n < KEYS / 2 { b"new" } else { b"old" };
        assert_eq!(value(n).as_deref(), Some(expected), "{n}");
    }
    for n in KEYS..KEYS + 1_000 {
        assert_eq!(value(n), None, "{n}");
    }
    let (mut range, mut found) = (KeyRange::all(), 0);
    loop {
        let scan = partition.scan(&range, 10_000, 8 << 20).unwrap();
        found += scan.entries.len();
        match scan.next {
            Some(next) => range.from = next,
            None => break,
        }
    }
    assert_eq!(found, KEYS as usize);
}

fn put_and_compact(key: fn(u32) -> Vec<u8>) {
    let started = Instant::now();
    let mut machine = Machine::new();
    let config = StreamConfig {
        segment: ByteSize(1 << 20),
        group_segments: 1,
        ..keyed("compact")
    };
    machine.log().create_stream("s", config).unwrap();
    put(&machine, key, 0..KEYS, b"old");
    put(&machine, key, 0..KEYS / 2, b"new");
    check(&machine.partition(), key);
    let report = machine.log().compact().unwrap();
    assert!(report.records_dropped > 0, "{report:?}");
    machine.restart(|_| ());
    check(&machine.partition(), key);
    let absent = key(KEYS);
    let change = KeyChange {
        key: &absent,
        condition: KeyCondition::Absent,
        value: NewValue::Put(b"1"),
        ttl: None,
        secondary: &[],
    };
    let outcomes = machine
        .partition()
        .change(&[change, change])
        .unwrap()
        .outcomes;
    assert!(outcomes[0].is_ok() && outcomes[1].is_err(), "{outcomes:?}");
    let elapsed = started.elapsed();
    assert!(elapsed < TIME_MAX, "{elapsed:?}");
}

#[test]
fn keys_that_collide_by_murmur2_cost_no_more_than_others() {
    put_and_compact(alike_by_murmur2);
}

#[test]
fn keys_that_collide_by_xxhash_cost_no_more_than_others() {
    put_and_compact(alike_by_xxhash);
}
