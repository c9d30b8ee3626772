//! Large changelogs, which are read while the flow runs.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use millstream_base::{KeyRange, partition_of_key};
use millstream_flow::{BoxError, ChangelogReader};

use crate::support::{Table, WAIT_MAX, World, for_both};

/// More than a start reads at once.
const KEYS: u32 = 70_000;

type Reader = Arc<dyn ChangelogReader>;

fn key(number: u32) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Stores many keys with checkpoint 1, then changes some with checkpoint 2. Returns the prepared bytes and the values.
fn fill(world: &World) -> (Vec<u8>, Table) {
    let mut run = world.begin(None);
    let mut values = Table::new();
    let keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    let first: Vec<(&[u8], Option<&[u8]>)> =
        keys.iter().map(|key| (&key[..], Some(&key[2..]))).collect();
    run.store(1, &first);
    let second: Vec<(&[u8], Option<&[u8]>)> = (0..KEYS)
        .step_by(7)
        .map(|number| {
            let value = (number % 2 == 0).then_some(&b"changed"[..]);
            (&keys[number as usize][..], value)
        })
        .collect();
    let prepared = run.store(2, &second);
    for (key, value) in first.into_iter().chain(second) {
        match value {
            Some(value) => drop(values.insert(key.to_vec(), value.to_vec())),
            None => drop(values.remove(key)),
        }
    }
    (prepared, values)
}

fn get(reader: &Reader, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, BoxError> {
    reader.get(keys, &AtomicBool::new(false))
}

fn read_all(reader: &Reader, is_stopped: bool) -> Result<Table, BoxError> {
    let mut table = Table::new();
    reader.read_all(&AtomicBool::new(is_stopped), &mut |key, value| {
        match value {
            Some(value) => drop(table.insert(key.to_vec(), value.to_vec())),
            None => drop(table.remove(key)),
        }
        Ok(())
    })?;
    Ok(table)
}

/// Reads a range in pages, whose keys have to ascend.
fn read_range(reader: &Arc<dyn ChangelogReader>, mut range: KeyRange) -> Table {
    let mut table = Table::new();
    loop {
        let page = reader.range(&range, 700, &AtomicBool::new(false)).unwrap();
        for (key, value) in page.values {
            assert!(table.last_key_value().is_none_or(|(last, _)| *last < key));
            table.insert(key, value);
        }
        match page.next {
            Some(next) => range.from = next,
            None => return table,
        }
    }
}

#[test]
fn single_values_and_all_values_are_as_a_restore_finds_them() {
    for_both(|world| {
        let (prepared, expected) = fill(world);
        let mut run = world.begin(Some(&prepared));
        let reader = run.0.reader(Some(2)).unwrap().unwrap();
        // Some keys have no value.
        assert!(reader.is_large());
        let keys: Vec<Vec<u8>> = (0..KEYS + 10).rev().map(key).collect();
        for (key, value) in keys.iter().zip(get(&reader, &keys).unwrap()) {
            assert_eq!(value.as_ref(), expected.get(key), "key {key:?}");
        }
        assert!(read_all(&reader, false).unwrap() == expected);
        assert!(world.begin(Some(&prepared)).restore_at(2).unwrap() == expected);
        assert_eq!(get(&reader, &[]).unwrap(), []);
        assert_eq!(read_all(&reader, true).unwrap(), Table::new());
        assert!(read_range(&reader, KeyRange::all()) == expected);
        let range = KeyRange::new(key(7), Some(key(1_007)));
        let of_range = expected.range::<[u8], _>(range.bounds());
        assert!(
            of_range
                .map(|(key, value)| (key.clone(), value.clone()))
                .eq(read_range(&reader, range.clone()))
        );
        // Later changes are not read with the others, and are found by key.
        let mut run = world.begin(Some(&prepared));
        run.store(3, &[(&key(1), Some(b"later"))]);
        let began = Instant::now();
        while get(&reader, &[key(1)]).unwrap() != [Some(b"later".to_vec())] {
            assert!(began.elapsed() < WAIT_MAX, "the change is not found");
        }
        assert!(read_all(&reader, false).unwrap() == expected);
    });
}

#[test]
fn a_small_changelog_is_read_before_the_flow_begins() {
    for_both(|world| {
        let mut run = world.begin(None);
        let prepared = run.store(1, &[(b"ada", Some(b"1"))]);
        let mut run = world.begin(Some(&prepared));
        assert!(!run.0.reader(Some(1)).unwrap().unwrap().is_large());
    });
}

#[test]
fn a_change_that_does_not_belong_to_the_state_is_named_when_it_is_read() {
    for_both(|world| {
        let (prepared, expected) = fill(world);
        let partitions = world.log.stream("shop.state.users").unwrap();
        let place = partition_of_key(&key(9), partitions.partition_count() as usize) as u32;
        let mut run = world.begin(Some(&prepared));
        // These changes are ahead of the checkpoint that the flow resumes from.
        let reader = run.0.reader(Some(1)).unwrap().unwrap();
        let ahead = "the change is of checkpoint 2, and the flow resumes from checkpoint 1";
        let error = get(&reader, &[key(1), key(14)]).unwrap_err().to_string();
        assert!(error.contains(ahead), "{error}");
        assert!(error.starts_with("stream shop.state.users, "), "{error}");
        let error = read_all(&reader, false).unwrap_err().to_string();
        assert!(error.contains(ahead), "{error}");
        assert_eq!(
            get(&reader, &[key(1)]).unwrap(),
            [expected.get(&key(1)).cloned()]
        );

        world.append(place, Some(&key(9)), None);
        let reader = run.0.reader(Some(2)).unwrap().unwrap();
        let foreign = format!("stream shop.state.users, partition {place}, offset ");
        for error in [
            get(&reader, &[key(9)]).unwrap_err(),
            read_all(&reader, false).unwrap_err(),
        ] {
            let error = error.to_string();
            assert!(error.starts_with(&foreign), "{error}");
            assert!(error.contains("it has no header \"checkpoint\""), "{error}");
        }
        assert_eq!(
            get(&reader, &[key(8)]).unwrap(),
            [expected.get(&key(8)).cloned()]
        );
    });
}

#[test]
fn changes_are_stable_when_the_transactions_of_all_ranks_have_ended() {
    for_both(|world| {
        let never = &AtomicBool::new(false);
        let mut run = world.begin(None);
        let reader = run.0.reader(None).unwrap().unwrap();
        run.push(&[(b"ada", Some(b"1"))]).unwrap();
        run.0.prepare(1).unwrap();
        let ends = reader.ends(never).unwrap();
        assert!(ends.iter().sum::<u64>() > 0);
        assert!(!reader.is_stable(&ends, never).unwrap());
        assert_eq!(get(&reader, &[b"ada".to_vec()]).unwrap(), [None]);
        run.commit(1);
        let began = Instant::now();
        while !reader.is_stable(&ends, never).unwrap() {
            assert!(began.elapsed() < WAIT_MAX, "the changes are not stable");
        }
        assert_eq!(
            get(&reader, &[b"ada".to_vec()]).unwrap(),
            [Some(b"1".to_vec())]
        );
    });
}
