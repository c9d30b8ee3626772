//! A changelog in memory that checks how it is called.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use millstream_base::KeyRange;
use millstream_base::key::decode_key;
use millstream_flow::{
    BoxError, Change, Changelog, ChangelogReader, Checkpoints, RestoreChange, ShardKey, Sink,
    SinkStart, ValuePage,
};

use crate::support::MemoryStore;

/// Changes that a push takes at most.
const TAKEN_MAX: usize = 100;

/// A store of checkpoints with changelogs in memory.
#[derive(Default)]
pub struct LogStore {
    pub shards: Arc<MemoryStore>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    logs: BTreeMap<String, Log>,
    /// Elements whose changelogs were opened.
    opened: BTreeSet<String>,
    calls: Vec<String>,
    calls_before: Vec<String>,
    trouble: Trouble,
    scan: Scan,
    /// The wakers of changelogs that wait for the end of the trouble.
    wakers: Vec<Waker>,
}

/// The faults of changelogs.
#[derive(Default, Clone)]
pub struct Trouble {
    /// The next call of this name fails.
    pub fails: Option<&'static str>,
    /// Pushes take nothing.
    pub is_full: bool,
    /// Nothing arrives.
    pub is_slow: bool,
}

/// How elements that resume read their values.
#[derive(Default, Clone, Copy, PartialEq, Debug)]
pub enum Scan {
    /// Before the flow begins.
    #[default]
    AtOnce,
    /// While the flow runs, a few in a millisecond.
    Slow,
    /// While the flow runs, and only single ones.
    Held,
    /// The same, and these wait, too.
    Deaf,
    /// While the flow runs, and none can be read.
    Broken,
}

/// The changes of an element on all ranks.
#[derive(Default)]
struct Log {
    committed: Vec<Change>,
    /// By rank and checkpoint.
    prepared: BTreeMap<(u32, u64), Vec<Change>>,
    /// The places of all that were ever prepared, in the order of the log.
    places: BTreeMap<(u32, u64), u64>,
    /// The end of the log.
    appended: u64,
    /// The number of committed changes that readers find.
    shown: usize,
    /// The values that they find.
    newest: BTreeMap<Vec<u8>, Vec<u8>>,
    /// How often readers have asked for the stable ones.
    asked: u64,
}

impl Log {
    /// Shows readers all committed changes.
    fn show(&mut self) {
        for change in &self.committed[self.shown..] {
            let key = change.key.clone();
            match change.value.clone() {
                Some(value) => drop(self.newest.insert(key, value)),
                None => drop(self.newest.remove(&key)),
            }
        }
        self.shown = self.committed.len();
    }
}

impl LogStore {
    /// The committed values of an element whose keys and values are numbers.
    pub fn table(&self, element: &str) -> BTreeMap<String, u64> {
        let state = self.shared.state.lock().unwrap();
        let mut table = BTreeMap::new();
        for change in state
            .logs
            .get(element)
            .into_iter()
            .flat_map(|log| &log.committed)
        {
            let key = decode_key::<u64>(&change.key).unwrap().to_string();
            match &change.value {
                Some(value) => drop(table.insert(key, text(value).parse().unwrap())),
                None => drop(table.remove(&key)),
            }
        }
        table
    }

    /// The same with the text of the values, and when they end.
    pub fn ends(&self, element: &str) -> BTreeMap<u64, (String, Option<i64>)> {
        let state = self.shared.state.lock().unwrap();
        let mut ends = BTreeMap::new();
        let changes = state.logs.get(element).into_iter();
        for change in changes.flat_map(|log| &log.committed) {
            let key = decode_key::<u64>(&change.key).unwrap();
            match &change.value {
                Some(value) => drop(ends.insert(key, (text(value).to_owned(), change.expires))),
                None => drop(ends.remove(&key)),
            }
        }
        ends
    }

    /// The calls since this was last asked.
    pub fn take_calls(&self) -> Vec<String> {
        let state = &mut *self.shared.state.lock().unwrap();
        let calls = std::mem::take(&mut state.calls);
        state.calls_before.extend_from_slice(&calls);
        calls
    }

    /// Elements whose changelogs were opened.
    pub fn opened(&self) -> Vec<String> {
        let state = self.shared.state.lock().unwrap();
        state.opened.iter().cloned().collect()
    }

    /// All calls.
    pub fn all_calls(&self) -> Vec<String> {
        let state = self.shared.state.lock().unwrap();
        let calls = state.calls_before.iter().chain(&state.calls);
        calls.cloned().collect()
    }

    /// Makes changelogs do wrong, or right again.
    pub fn trouble(&self, trouble: Trouble) {
        let mut state = self.shared.state.lock().unwrap();
        state.trouble = trouble;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Decides how elements read their values.
    pub fn scan(&self, scan: Scan) {
        self.shared.state.lock().unwrap().scan = scan;
    }

    /// The number of calls that wait for the end of the trouble.
    pub fn waiting(&self) -> usize {
        self.shared.state.lock().unwrap().wakers.len()
    }

    /// Whether the next call will still fail.
    pub fn is_to_fail(&self) -> bool {
        self.shared.state.lock().unwrap().trouble.fails.is_some()
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

impl Checkpoints for LogStore {
    fn put(&self, key: ShardKey, shard: &[u8]) -> Result<(), BoxError> {
        self.shards.put(key, shard)
    }

    fn get(&self, key: ShardKey) -> Result<Vec<u8>, BoxError> {
        self.shards.get(key)
    }

    fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
        self.shards.list()
    }

    fn remove(&self, key: ShardKey) -> Result<(), BoxError> {
        self.shards.remove(key)
    }

    fn changelog(&self, _: &str, element: &str) -> Result<Option<Box<dyn Changelog>>, BoxError> {
        let mut state = self.shared.state.lock().unwrap();
        state.opened.insert(element.to_owned());
        drop(state);
        Ok(Some(Box::new(MemoryLog {
            shared: Arc::clone(&self.shared),
            element: element.to_owned(),
            rank: None,
            is_restored: false,
            is_flushed: true,
            open: Vec::new(),
            last: 0,
        })))
    }
}

/// A rank's end of a changelog.
struct MemoryLog {
    shared: Arc<Shared>,
    element: String,
    /// Known once it has recovered.
    rank: Option<u32>,
    is_restored: bool,
    is_flushed: bool,
    /// Changes that are not prepared.
    open: Vec<Change>,
    /// The last checkpoint that it has prepared.
    last: u64,
}

impl MemoryLog {
    /// Records a call, unless the test makes it fail.
    fn call<R>(
        &self,
        name: &'static str,
        notes: impl IntoIterator<Item = String>,
        code: impl FnOnce(&mut Log) -> R,
    ) -> Result<R, BoxError> {
        let state = &mut *self.shared.state.lock().unwrap();
        if state.trouble.fails.take_if(|it| *it == name).is_some() {
            return Err(format!("{name} is in trouble").into());
        }
        state.calls.extend(notes);
        let log = state.logs.entry(self.element.clone()).or_default();
        Ok(code(log))
    }

    fn has_trouble(&self, waker: &Waker, is_there: impl Fn(&Trouble) -> bool) -> bool {
        let state = &mut *self.shared.state.lock().unwrap();
        let is_there = is_there(&state.trouble);
        if is_there {
            state.wakers.push(waker.clone());
        }
        is_there
    }

    fn rank(&self) -> u32 {
        self.rank.expect("it has recovered")
    }
}

impl Sink<Change> for MemoryLog {
    fn push(&mut self, changes: &[Change], waker: &Waker) -> Result<usize, BoxError> {
        assert!(self.is_restored, "nothing is pushed before it is restored");
        if self.has_trouble(waker, |trouble| trouble.is_full) {
            return Ok(0);
        }
        let taken = &changes[..changes.len().min(TAKEN_MAX)];
        let note = |change: &Change| {
            let key = decode_key::<u64>(&change.key);
            let key = key.map_or_else(|_| format!("{:?}", change.key), |key| key.to_string());
            match &change.value {
                // Operators write no text.
                Some(value) => format!("push {key} = {}", String::from_utf8_lossy(value)),
                None => format!("push {key} removed"),
            }
        };
        // A failing push takes some changes nevertheless.
        self.open.extend_from_slice(&taken[..taken.len() / 2]);
        self.is_flushed = false;
        self.call("push", taken.iter().map(note), |_| ())?;
        self.open.extend_from_slice(&taken[taken.len() / 2..]);
        Ok(taken.len())
    }

    fn flush(&mut self, waker: &Waker) -> Result<bool, BoxError> {
        self.call("flush", [], |_| ())?;
        if self.has_trouble(waker, |trouble| trouble.is_slow) {
            return Ok(false);
        }
        self.is_flushed = true;
        Ok(true)
    }

    fn recover(&mut self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        assert!(self.rank.is_none(), "it recovers once");
        assert!(start.takes_checkpoints);
        self.rank = Some(start.rank);
        let named: Vec<u64> = match start.prepared {
            Some(prepared) => serde_json::from_slice(prepared)?,
            None => Vec::new(),
        };
        self.call("recover", ["recover".to_owned()], |log| {
            let prepared = std::mem::take(&mut log.prepared);
            for ((rank, checkpoint), changes) in prepared {
                if rank != start.rank {
                    log.prepared.insert((rank, checkpoint), changes);
                } else if named.contains(&checkpoint) {
                    log.committed.extend(changes);
                }
            }
        })
    }

    fn prepare(&mut self, checkpoint: u64) -> Result<Vec<u8>, BoxError> {
        assert!(self.is_flushed, "all changes are flushed");
        assert!(checkpoint > self.last, "checkpoints have ascending numbers");
        let keys: BTreeSet<_> = self.open.iter().map(|change| &change.key).collect();
        assert_eq!(keys.len(), self.open.len(), "no key comes twice");
        let rank = self.rank();
        let open = &self.open;
        let named = self.call("prepare", ["prepare".to_owned()], |log| {
            log.prepared.insert((rank, checkpoint), open.clone());
            log.places.insert((rank, checkpoint), log.appended);
            log.appended += 1;
            let of_rank = log.prepared.keys().filter(|(of, _)| *of == rank);
            of_rank
                .map(|(_, checkpoint)| *checkpoint)
                .collect::<Vec<u64>>()
        })?;
        self.open.clear();
        self.last = checkpoint;
        Ok(serde_json::to_vec(&named)?)
    }

    fn commit(&mut self, checkpoint: u64, _: &Waker) -> Result<bool, BoxError> {
        let rank = self.rank();
        self.call("commit", ["commit".to_owned()], |log| {
            let prepared = std::mem::take(&mut log.prepared);
            for ((of, number), changes) in prepared {
                match of == rank && number <= checkpoint {
                    true => log.committed.extend(changes),
                    false => drop(log.prepared.insert((of, number), changes)),
                }
            }
        })?;
        Ok(true)
    }
}

impl Changelog for MemoryLog {
    fn restore(
        &mut self,
        resumed: Option<u64>,
        each: &mut dyn FnMut(&[u8], Option<&[u8]>) -> Result<(), BoxError>,
    ) -> Result<(), BoxError> {
        self.rank();
        assert!(!self.is_restored, "it is restored once");
        self.is_restored = true;
        let committed = self.call("restore", ["restore".to_owned()], |log| {
            log.committed.clone()
        })?;
        check_newest(&committed, resumed);
        let mut changes = committed.iter();
        changes.try_for_each(|change| each(&change.key, change.value.as_deref()))
    }

    fn reader(
        &mut self,
        resumed: Option<u64>,
    ) -> Result<Option<Arc<dyn ChangelogReader>>, BoxError> {
        self.rank();
        let committed = self.call("reader", [], |log| {
            log.show();
            log.committed.clone()
        })?;
        check_newest(&committed, resumed);
        let reader = MemoryReader {
            shared: Arc::clone(&self.shared),
            element: self.element.clone(),
        };
        // Then the reader scans it.
        self.is_restored = resumed.is_some() && reader.is_large();
        Ok(Some(Arc::new(reader)))
    }

    fn give_up(&mut self) {
        self.open.clear();
        self.is_flushed = true;
    }
}

/// Changes that a scan hands over in a millisecond.
const SCANNED_AT_ONCE: usize = 16;

/// Checks that the newest change of each key is no later than the run resumes.
fn check_newest(committed: &[Change], resumed: Option<u64>) {
    let newest = committed.iter().map(|it| (&it.key, it.checkpoint));
    let newest: BTreeMap<_, _> = newest.collect();
    if let Some(resumed) = resumed {
        assert!(newest.values().all(|checkpoint| *checkpoint <= resumed));
    }
}

/// Reads the changes as far as they are shown: as look-ups do while the transaction of another rank is open, it shows them later
/// than they are committed.
struct MemoryReader {
    shared: Arc<Shared>,
    element: String,
}

impl MemoryReader {
    fn scan(&self) -> Result<Scan, BoxError> {
        match self.shared.state.lock().unwrap().scan {
            Scan::Broken => Err("it is broken".into()),
            scan => Ok(scan),
        }
    }

    fn with_log<R>(&self, read: impl FnOnce(&mut Log) -> R) -> R {
        let mut state = self.shared.state.lock().unwrap();
        read(state.logs.entry(self.element.clone()).or_default())
    }
}

impl ChangelogReader for MemoryReader {
    fn is_large(&self) -> bool {
        self.scan().map_or(true, |scan| scan != Scan::AtOnce)
    }

    fn get(
        &self,
        keys: &[Vec<u8>],
        is_stopped: &AtomicBool,
    ) -> Result<Vec<Option<Vec<u8>>>, BoxError> {
        while self.scan()? == Scan::Deaf && !is_stopped.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        let value = |log: &Log, key: &Vec<u8>| log.newest.get(key).cloned();
        Ok(self.with_log(|log| keys.iter().map(|key| value(log, key)).collect()))
    }

    fn read_all(
        &self,
        is_stopped: &AtomicBool,
        each: &mut RestoreChange<'_>,
    ) -> Result<(), BoxError> {
        let changes = self.with_log(|log| log.committed[..log.shown].to_vec());
        for changes in changes.chunks(SCANNED_AT_ONCE) {
            thread::sleep(Duration::from_millis(1));
            while matches!(self.scan()?, Scan::Held | Scan::Deaf) {
                if is_stopped.load(Ordering::Relaxed) {
                    return Ok(());
                }
                thread::sleep(Duration::from_millis(1));
            }
            if is_stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            for change in changes {
                each(&change.key, change.value.as_deref())?;
            }
        }
        Ok(())
    }

    fn range(
        &self,
        range: &KeyRange,
        limit: usize,
        _is_stopped: &AtomicBool,
    ) -> Result<ValuePage, BoxError> {
        self.scan()?;
        Ok(self.with_log(|log| {
            let mut values = log.newest.range::<[u8], _>(range.bounds());
            let values = values
                .by_ref()
                .map(|(key, value)| (key.clone(), value.clone()));
            // Pages may be shorter than they could be.
            let limit = limit.min(100);
            let mut page: Vec<_> = values.take(limit + 1).collect();
            let next = (page.len() > limit).then(|| page.pop()).flatten();
            ValuePage {
                values: page,
                next: next.map(|(key, _)| key),
            }
        }))
    }

    fn ends(&self, _is_stopped: &AtomicBool) -> Result<Vec<u64>, BoxError> {
        Ok(self.with_log(|log| vec![log.appended]))
    }

    fn is_stable(&self, ends: &[u64], is_stopped: &AtomicBool) -> Result<bool, BoxError> {
        if is_stopped.load(Ordering::Relaxed) {
            return Err("the read was stopped".into());
        }
        Ok(self.with_log(|log| {
            log.asked += 1;
            let mut open = log.prepared.keys().map(|it| log.places[it]);
            let is_stable = open.all(|place| place >= ends[0]) && log.asked % 2 == 0;
            if is_stable {
                log.show();
            }
            is_stable
        }))
    }
}
