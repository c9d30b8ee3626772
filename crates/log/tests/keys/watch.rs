//! Watches of keys: they get the newest change of each key, or an error.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;
use millstream_base::{Offset, ProducerEpoch, ProducerId};
use millstream_log::{
    DELETE_RETENTION, Durability, FILE_DELETE_DELAY, KeyRange, Log, LogError, Next, StreamConfig,
    StreamPartition, Subscription,
};
use millstream_record::{Chunks, Compression, Decompressor, EndMarker, TransactionEnd};

use super::machine::Machine;
use super::{append, chunk, scan, small_groups, sync};

const KEYS: u64 = 12;

/// The settings of streams whose deletions are dropped soon.
const SETTINGS: [(&str, &str); 2] = [(DELETE_RETENTION, "1000"), (FILE_DELETE_DELAY, "0")];

fn created(durability: Durability) -> Machine {
    let machine = Machine::new();
    let mut config = StreamConfig {
        durability,
        ..small_groups("compact")
    };
    let owned = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned()));
    config.settings.extend(owned);
    machine.log().create_stream("s", config).unwrap();
    machine
}

/// The newest version of each key, with its offset.
type Table = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

fn stored(partition: &StreamPartition, range: &KeyRange) -> Table {
    let entries = scan(partition, range.clone(), 1_000, 1 << 20);
    entries
        .into_iter()
        .map(|(key, offset, value)| (key, (offset, value)))
        .collect()
}

/// A watch that folds all changes it sees, and outlasts restarts.
struct Watcher {
    range: KeyRange,
    watch: Option<Subscription>,
    /// The position up to where it has folded all, and its epoch.
    position: (Offset, i32),
    table: Table,
    resets: u64,
    /// The resets while it was connected, and only lagged.
    resets_connected: u64,
}

impl Watcher {
    fn new(partition: &StreamPartition, range: KeyRange) -> Watcher {
        let mut watcher = Watcher {
            range,
            watch: None,
            position: (Offset(0), 0),
            table: Table::new(),
            resets: 0,
            resets_connected: 0,
        };
        watcher.begin_again(partition);
        watcher
    }

    fn begin_again(&mut self, partition: &StreamPartition) {
        self.resets += 1;
        // Nothing changes between these two.
        self.position = (partition.last_stable_offset(), partition.watch_epoch());
        self.table = stored(partition, &self.range);
        self.watch = None;
    }

    /// Takes up to `pieces` pieces.
    fn take(&mut self, partition: &StreamPartition, pieces: usize, bytes_max: usize) {
        for _ in 0..pieces {
            match self.next(partition, bytes_max) {
                Ok(true) => {}
                Ok(false) => return,
                Err(LogError::ChangesLost { .. }) => {
                    self.resets_connected += u64::from(self.watch.is_some());
                    self.begin_again(partition);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn next(&mut self, partition: &StreamPartition, bytes_max: usize) -> Result<bool, LogError> {
        let (from, epoch) = self.position;
        if self.watch.is_none() {
            partition.check_watch(from, epoch)?;
            let watched = [(partition.clone(), from)];
            self.watch = Some(Subscription::of_keys(watched, &self.range));
            self.position.1 = partition.watch_epoch();
        }
        let watch = self.watch.as_mut().unwrap();
        match watch.next(bytes_max).map_err(|error| error.error)? {
            Next::Nothing => return Ok(false),
            Next::Handed(handed) => {
                assert_eq!(handed.from, self.position.0);
                self.fold(&handed.chunks.bytes, handed.from..handed.next);
                self.position.0 = handed.next;
            }
            other => panic!("{other:?}"),
        }
        Ok(true)
    }

    fn fold(&mut self, chunks: &[u8], offsets: Range<Offset>) {
        let mut decompressor = Decompressor::default();
        for chunk in Chunks::new(chunks) {
            let chunk = chunk.unwrap();
            if chunk.header().attributes.is_control() {
                continue;
            }
            for record in chunk.records(&mut decompressor).unwrap() {
                let record = record.unwrap();
                if !offsets.contains(&record.offset) {
                    continue;
                }
                let key = record.key.unwrap();
                assert!(self.range.contains(key));
                let known = match record.value {
                    Some(value) => {
                        let new = (record.offset.0, value.to_vec());
                        self.table.insert(key.to_vec(), new)
                    }
                    None => self.table.remove(key),
                };
                assert!(known.is_none_or(|(offset, _)| offset < record.offset.0));
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Put(u64),
    Delete(u64),
    /// A transaction that puts one key, deletes another one, and ends so.
    Transaction(u64, u64, bool),
    /// Many records of keys that only the watch of all keys sees, so that groups end.
    Fill,
    Compact,
    Wait(u64),
    /// Enough time for earlier deletions to be dropped.
    Age,
    Take {
        watcher: usize,
        pieces: usize,
        bytes_max: usize,
    },
    /// A watcher loses its subscription.
    Reconnect(usize),
    Restart,
}

fn steps(rng: &mut Rng) -> Vec<Step> {
    let mut step = || match rng.u32(..34) {
        0..5 => Step::Put(rng.u64(..KEYS)),
        5..10 => Step::Delete(rng.u64(..KEYS)),
        10..12 => Step::Transaction(rng.u64(..KEYS), rng.u64(..KEYS), rng.bool()),
        12..15 => Step::Fill,
        15..18 => Step::Compact,
        18..20 => Step::Wait(rng.u64(..1_500)),
        20..23 => Step::Age,
        23..30 => Step::Take {
            watcher: rng.usize(..3),
            pieces: rng.usize(1..6),
            bytes_max: [1, 5_000, 1 << 20][rng.usize(..3)],
        },
        30..33 => Step::Reconnect(rng.usize(..3)),
        _ => Step::Restart,
    };
    (0..120).map(|_| step()).collect()
}

fn key(n: u64) -> Vec<u8> {
    format!("{}/{n}", if n < KEYS / 2 { "a" } else { "b" }).into_bytes()
}

fn fill(machine: &Machine) {
    let partition = machine.partition();
    for n in 0..8 {
        let value = [n as u8; 4_000];
        append(
            &partition,
            &[(Some(b"filler"), Some(&value)), (Some(b"z"), Some(&value))],
        );
        sync(machine.log());
    }
    machine.log().persist();
    sync(machine.log());
}

fn transaction(partition: &StreamPartition, producer: i64, put: u64, deleted: u64, commits: bool) {
    let (put, deleted) = (key(put), key(deleted));
    let records = [
        (Some(&put[..]), Some(&b"in a transaction"[..])),
        (Some(&deleted), None),
    ];
    partition
        .append(&chunk(&records, Compression::Lz4, Some((producer, 0))))
        .unwrap();
    let end = match commits {
        true => TransactionEnd::Commit,
        false => TransactionEnd::Abort,
    };
    let marker = EndMarker {
        producer_id: ProducerId(producer),
        producer_epoch: ProducerEpoch(0),
        end,
        coordinator_epoch: 0,
    };
    partition.append_marker(&marker).unwrap();
}

fn run(steps: &[Step]) -> [Watcher; 3] {
    let mut machine = created(Durability::Sync);
    let ranges = [
        KeyRange::all(),
        KeyRange::prefix("a"),
        KeyRange::new(key(3), Some([&key(3)[..], b"\0"].concat())),
    ];
    let mut watchers = ranges.map(|range| Watcher::new(&machine.partition(), range));
    for (n, step) in (0_i64..).zip(steps) {
        let partition = machine.partition();
        match *step {
            Step::Put(put) => {
                let value = n.to_string().into_bytes();
                append(&partition, &[(Some(&key(put)), Some(&value))]);
            }
            Step::Delete(deleted) => append(&partition, &[(Some(&key(deleted)), None)]),
            Step::Transaction(put, deleted, commits) => {
                transaction(&partition, n, put, deleted, commits);
            }
            Step::Fill => fill(&machine),
            Step::Compact => {
                machine.log().compact().unwrap();
            }
            Step::Age => {
                for _ in 0..2 {
                    fill(&machine);
                    fill(&machine);
                    machine.log().compact().unwrap();
                    sync(machine.log());
                    machine.clock.advance(Duration::from_millis(1_500));
                }
            }
            Step::Wait(millis) => machine.clock.advance(Duration::from_millis(millis)),
            Step::Take {
                watcher,
                pieces,
                bytes_max,
            } => watchers[watcher].take(&partition, pieces, bytes_max),
            Step::Reconnect(watcher) => watchers[watcher].watch = None,
            Step::Restart => {
                for watcher in &mut watchers {
                    watcher.watch = None;
                }
                drop(partition);
                machine.restart(|_| ());
            }
        }
        sync(machine.log());
    }
    let partition = machine.partition();
    for watcher in &mut watchers {
        watcher.take(&partition, usize::MAX, 1 << 20);
        assert_eq!(watcher.table, stored(&partition, &watcher.range));
        assert_eq!(watcher.position.0, partition.last_stable_offset());
        watcher.watch = None;
    }
    watchers
}

#[test]
fn a_watch_that_reconnects_or_is_reset_ends_with_the_whole_table() {
    let (mut connected, mut reconnected) = (0, 0);
    for seed in 0..100 {
        let mut rng = Rng::with_seed(seed);
        for watcher in run(&steps(&mut rng)) {
            connected += watcher.resets_connected;
            reconnected += watcher.resets - 1 - watcher.resets_connected;
        }
    }
    let both = format!("{connected} resets of connected watches, {reconnected} of others");
    assert!(connected > 10 && reconnected > 10, "{both}");
}

/// Deletes a key, and lets compaction drop the deletion, so that the table never shows it.
fn delete_and_drop(machine: &Machine, log: &Log) {
    append(&machine.partition(), &[(Some(b"a/0"), None)]);
    for _ in 0..4 {
        fill(machine);
        log.compact().unwrap();
        sync(log);
        machine.clock.advance(Duration::from_millis(1_500));
    }
}

#[test]
fn only_a_watch_that_missed_a_dropped_deletion_is_refused() {
    let mut machine = created(Durability::Sync);
    let all = KeyRange::all();
    append(&machine.partition(), &[(Some(b"a/0"), Some(b"v"))]);
    append(&machine.partition(), &[(Some(b"a/1"), Some(b"v"))]);
    sync(machine.log());
    let mut before = Watcher::new(&machine.partition(), all.clone());
    // One that is connected and lags, one that comes back, and one that has read the deletion.
    let mut lagging = Watcher::new(&machine.partition(), all.clone());
    lagging.take(&machine.partition(), 1, 1 << 20);
    assert!(lagging.watch.is_some());
    append(&machine.partition(), &[(Some(b"a/0"), None)]);
    sync(machine.log());
    let mut behind = Watcher::new(&machine.partition(), all.clone());
    delete_and_drop(&machine, machine.log());
    let partition = machine.partition();
    for (watcher, is_reset) in [
        (&mut before, true),
        (&mut lagging, true),
        (&mut behind, true),
    ] {
        let position = watcher.position.0;
        watcher.take(&partition, usize::MAX, 1 << 20);
        assert_eq!(watcher.resets == 2, is_reset, "{position:?}");
        assert_eq!(watcher.table, stored(&partition, &all));
    }
    // Positions from the last deletion on are good for ever, also after a start.
    let epoch = partition.watch_epoch();
    let deleted = Offset(3);
    assert!(partition.check_watch(deleted, epoch).is_err());
    assert!(partition.check_watch(deleted.plus(1), epoch).is_ok());
    drop((before, lagging, behind));
    drop(partition);
    machine.restart(|_| ());
    let partition = machine.partition();
    assert!(partition.check_watch(deleted, epoch).is_err());
    assert!(partition.check_watch(deleted.plus(1), epoch).is_ok());
}

#[test]
fn superseded_records_and_deletions_keep_a_position_valid() {
    let machine = created(Durability::Sync);
    let mut watcher = Watcher::new(&machine.partition(), KeyRange::prefix("a"));
    for n in 0..5_u64 {
        append(&machine.partition(), &[(Some(b"a/0"), None)]);
        append(
            &machine.partition(),
            &[(Some(b"a/0"), Some(&n.to_be_bytes()))],
        );
        fill(&machine);
        machine.log().compact().unwrap();
        sync(machine.log());
        machine.clock.advance(Duration::from_millis(1_500));
    }
    watcher.take(&machine.partition(), usize::MAX, 1 << 20);
    assert_eq!(watcher.resets, 1);
    assert_eq!(watcher.table, stored(&machine.partition(), &watcher.range));
}

#[test]
fn a_watch_that_missed_removed_records_is_refused() {
    let machine = created(Durability::Sync);
    for n in 0..10_u64 {
        append(&machine.partition(), &[(Some(&key(n % KEYS)), Some(b"v"))]);
    }
    sync(machine.log());
    let partition = machine.partition();
    let deleted = machine
        .log()
        .delete_before(&[(partition.clone(), Offset(4))]);
    assert!(deleted[0].is_ok());
    let epoch = partition.watch_epoch();
    let refused = partition.check_watch(Offset(3), epoch).unwrap_err();
    assert!(refused.to_string().contains("retention"), "{refused}");
    partition.check_watch(Offset(4), epoch).unwrap();
    let mut watch = Subscription::of_keys([(partition, Offset(3))], &KeyRange::all());
    let told = watch.next(1 << 20).unwrap_err();
    assert!(matches!(told.error, LogError::ChangesLost { .. }), "{told}");
}

#[test]
fn positions_of_lost_records_are_refused() {
    // A stream in memory loses all with each start.
    let mut machine = created(Durability::Memory);
    append(&machine.partition(), &[(Some(b"k"), Some(b"v"))]);
    let position = (Offset(1), machine.partition().watch_epoch());
    machine
        .partition()
        .check_watch(position.0, position.1)
        .unwrap();
    machine.clock.advance(Duration::from_millis(5));
    machine.restart(|_| ());
    append(&machine.partition(), &[(Some(b"other"), Some(b"v"))]);
    let again = machine.partition();
    assert!(again.check_watch(position.0, position.1).is_err());

    // A crash takes the unsynced records of an asynchronous one back.
    let mut machine = created(Durability::Async);
    append(&machine.partition(), &[(Some(b"k"), Some(b"v"))]);
    sync(machine.log());
    let crashed = machine.disk.kill();
    append(&machine.partition(), &[(Some(b"lost"), Some(b"v"))]);
    let partition = machine.partition();
    let (seen, epoch) = (partition.last_stable_offset(), partition.watch_epoch());
    assert_eq!(seen, Offset(2));
    drop(partition);
    machine.start_from(crashed);
    append(&machine.partition(), &[(Some(b"other"), Some(b"v"))]);
    let partition = machine.partition();
    assert!(partition.check_watch(seen, epoch).is_err());
    partition.check_watch(Offset(1), epoch).unwrap();
}

/// The note of a dropped deletion is listed before the group that lacks it.
#[test]
fn a_crash_at_any_operation_of_a_compaction_misses_no_deletion() {
    let mut machine = created(Durability::Sync);
    let all = KeyRange::all();
    append(&machine.partition(), &[(Some(b"a/0"), Some(b"v"))]);
    sync(machine.log());
    let watcher = Watcher::new(&machine.partition(), all.clone());
    let (position, table) = (watcher.position, watcher.table.clone());
    drop(watcher);
    append(&machine.partition(), &[(Some(b"a/0"), None)]);
    for _ in 0..2 {
        fill(&machine);
        fill(&machine);
        machine.log().compact().unwrap();
        sync(machine.log());
    }
    // The next compaction drops the deletion.
    machine.clock.advance(Duration::from_millis(1_500));
    fill(&machine);
    fill(&machine);
    machine.restart(|_| ());
    let image = machine.disk.kill();
    let mut rng = Rng::with_seed(1);
    let (mut kept, mut reset) = (0, 0);
    for operation in 1.. {
        machine.start_from(image.kill());
        sync(machine.log());
        machine.disk.crash_at(operation);
        let compacted = machine.log().compact();
        let is_over = !machine.disk.has_crashed();
        assert!(compacted.is_ok() || !is_over);
        let crashed = machine.disk.crash(&mut rng);
        machine.start_from(crashed);
        let partition = machine.partition();
        let mut watcher = Watcher::new(&partition, all.clone());
        (watcher.position, watcher.table, watcher.resets) = (position, table.clone(), 0);
        watcher.take(&partition, usize::MAX, 1 << 20);
        assert_eq!(
            watcher.table,
            stored(&partition, &all),
            "operation {operation}"
        );
        match watcher.resets {
            0 => kept += 1,
            _ => reset += 1,
        }
        if is_over {
            break;
        }
    }
    assert!(
        kept > 5 && reset > 0,
        "{kept} before the note, {reset} behind it"
    );
}
