//! Large changelogs, which are read while the flow runs.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use millstream_base::partition_of_key;
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

#[test]
fn single_values_and_all_values_are_as_a_restore_finds_them() {
    for_both(|world| {
        let (prepared, expected) = fill(world);
        let mut run = world.begin(Some(&prepared));
        let reader = run.0.reader(2).unwrap().expect("it is large");
        // Some keys have no value.
        let keys: Vec<Vec<u8>> = (0..KEYS + 10).rev().map(key).collect();
        for (key, value) in keys.iter().zip(get(&reader, &keys).unwrap()) {
            assert_eq!(value.as_ref(), expected.get(key), "key {key:?}");
        }
        assert!(read_all(&reader, false).unwrap() == expected);
        assert!(world.begin(Some(&prepared)).restore_at(2).unwrap() == expected);
        assert_eq!(get(&reader, &[]).unwrap(), []);
        assert_eq!(read_all(&reader, true).unwrap(), Table::new());
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
        assert!(run.0.reader(1).unwrap().is_none());
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
        let reader = run.0.reader(1).unwrap().unwrap();
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
        let reader = run.0.reader(2).unwrap().unwrap();
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
