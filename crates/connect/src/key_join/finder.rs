//! The thread that looks up the records of both streams.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::{io, iter};

use bytes::Bytes;
use millstream_base::Timestamp;
use millstream_flow::BoxError;
use millstream_log::SECONDARY_KEY_BYTES_MAX;

use super::JoinedRow;
use super::scan::{Place, Scan};
use crate::keys::any::{AnyKeys, Newest};

/// The most keys that are looked up together: so large values take bounded memory, and other keys do not wait for long.
pub const KEYS_AT_ONCE: usize = 128;

/// The bytes of values after which a job looks up no further left keys that have changed.
const BYTES_MAX: usize = 16 << 20;

/// The most pages of left keys of a job.
const PAGES_MAX: usize = 64;

/// A key of the left stream, and the time of the change for which it is looked up.
pub type Changed = (Vec<u8>, Timestamp);

/// A left key whose row is wanted.
struct LeftKey {
    key: Vec<u8>,
    /// The time of the change for which it is wanted.
    time: Timestamp,
    /// Its record, if the look-up that has led to it has read that.
    newest: Option<Newest>,
}

/// Keys to look up.
pub struct Job {
    /// Left keys that have changed.
    pub changed: Vec<Changed>,
    /// Right keys that have changed, with the ways over their left keys.
    pub scans: Vec<(Vec<u8>, Scan)>,
}

/// The results of a job.
#[derive(Default)]
pub struct Done {
    pub rows: Vec<JoinedRow>,
    /// The number of changed left keys that are done.
    pub changed: usize,
    /// The scans that have gone on, `None` for those that have ended.
    pub scans: Vec<(Vec<u8>, Option<Scan>)>,
    /// Right keys for whose scans there was no room.
    pub waiting: Vec<Vec<u8>>,
    /// The bytes of the values in the rows.
    bytes: usize,
}

/// The records of both streams.
pub struct Tables {
    pub left: AnyKeys,
    pub right: AnyKeys,
    /// The index of the left stream that leads to its right keys, …
    pub index: String,
    /// … and the name of its header.
    pub header: String,
    /// Whether a left key without a right one has a row.
    pub is_left_outer: bool,
    /// The left partitions of this join, in their order.
    pub partitions: Vec<u32>,
}

impl Tables {
    fn run(&self, job: Job, is_stopped: &AtomicBool) -> Result<Done, BoxError> {
        let mut done = Done::default();
        for changed in job.changed.chunks(KEYS_AT_ONCE) {
            if done.bytes >= BYTES_MAX {
                break;
            }
            let left_keys = changed.iter().map(|(key, time)| LeftKey {
                key: key.clone(),
                time: *time,
                newest: None,
            });
            self.join(left_keys.collect(), &mut done, is_stopped)?;
            done.changed += changed.len();
        }
        let mut found: Vec<LeftKey> = Vec::new();
        let mut pages = 0;
        for (right, mut scan) in job.scans {
            let mut is_open = None;
            while found.len() < KEYS_AT_ONCE && pages < PAGES_MAX && is_open != Some(false) {
                let limit = KEYS_AT_ONCE - found.len();
                is_open = Some(self.find(&right, &mut scan, limit, &mut found, is_stopped)?);
                pages += 1;
            }
            match is_open {
                Some(is_open) => done.scans.push((right, is_open.then_some(scan))),
                None => done.waiting.push(right),
            }
        }
        self.join(found, &mut done, is_stopped)?;
        Ok(done)
    }

    /// Finds the next left keys of a right key. Returns whether there may be further ones.
    fn find(
        &self,
        right: &[u8],
        scan: &mut Scan,
        limit: usize,
        found: &mut Vec<LeftKey>,
        is_stopped: &AtomicBool,
    ) -> Result<bool, BoxError> {
        let at = scan.next();
        let here = self.partitions.partition_point(|it| *it < at.partition);
        let Some(partition) = self.partitions.get(here).copied() else {
            return Ok(scan.advance(None));
        };
        let of = (&*self.index, right);
        // In another partition the way begins with the first key.
        let from = match partition == at.partition {
            true => &at.key[..],
            false => &[],
        };
        let page = self.left.find(partition, of, from, limit, is_stopped)?;
        let time = scan.time();
        let keys = page.keys.into_iter();
        found.extend(keys.map(|(key, newest)| LeftKey { key, time, newest }));
        let next = match page.next {
            Some(key) => Some(Place { partition, key }),
            None => self.partitions.get(here + 1).map(|partition| Place {
                partition: *partition,
                key: Vec::new(),
            }),
        };
        Ok(scan.advance(next))
    }

    /// Adds the present rows of left keys.
    fn join(
        &self,
        left_keys: Vec<LeftKey>,
        done: &mut Done,
        is_stopped: &AtomicBool,
    ) -> Result<(), BoxError> {
        let unknown = left_keys.iter().filter(|left| left.newest.is_none());
        let unknown: Vec<Vec<u8>> = unknown.map(|left| left.key.clone()).collect();
        let found = match unknown.is_empty() {
            true => Vec::new(),
            false => self
                .left
                .newest(&unknown, self.header.as_bytes(), is_stopped)?,
        };
        let mut found = found.into_iter();
        let lefts = left_keys.into_iter().map(|left| {
            let newest = left.newest.or_else(|| found.next().flatten());
            (left.key, left.time, newest)
        });
        let lefts: Vec<_> = lefts.collect();
        let mut rights: BTreeMap<Bytes, Option<Newest>> = BTreeMap::new();
        for left in lefts.iter().filter_map(|(_, _, left)| left.as_ref()) {
            // The index has no longer ones.
            let right = left.header.clone();
            let right = right.filter(|key| key.len() <= SECONDARY_KEY_BYTES_MAX);
            rights.extend(right.map(|key| (key, None)));
        }
        let wanted: Vec<Vec<u8>> = rights.keys().map(|key| key.to_vec()).collect();
        let found = match wanted.is_empty() {
            true => Vec::new(),
            false => self.right.newest(&wanted, b"", is_stopped)?,
        };
        for (right, found) in iter::zip(rights.values_mut(), found) {
            done.bytes += found.as_ref().map_or(0, |found| found.value.len());
            *right = found;
        }
        for (key, time, left) in lefts {
            let right = left.as_ref().and_then(|left| left.header.as_ref());
            let right = right.and_then(|key| rights.get(key)?.as_ref());
            let mut row = JoinedRow {
                time,
                key: key.into(),
                values: None,
            };
            for newest in left.iter().chain(right) {
                row.time = row.time.max(newest.time);
            }
            if let Some(left) = left
                && (right.is_some() || self.is_left_outer)
            {
                done.bytes += left.value.len();
                row.values = Some((left.value, right.map(|right| right.value.clone())));
            }
            done.rows.push(row);
        }
        Ok(())
    }
}

/// The thread, which does one job after the other. Dropped, it ends.
pub struct Finder {
    /// `None` when it has to end.
    jobs: Option<mpsc::SyncSender<(Job, Waker)>>,
    results: mpsc::Receiver<Result<Done, BoxError>>,
    is_busy: bool,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Finder {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has none.
    pub fn start(tables: Arc<Tables>) -> io::Result<Finder> {
        let (jobs, received) = mpsc::sync_channel::<(Job, Waker)>(1);
        let (sender, results) = mpsc::channel();
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&is_stopped);
        let thread = thread::Builder::new().name("millstream-join".to_owned());
        let thread = thread.spawn(move || {
            for (job, waker) in received {
                let mut answer = Answer {
                    sender: &sender,
                    waker,
                    done: None,
                };
                answer.done = Some(tables.run(job, &stopped));
            }
        })?;
        Ok(Finder {
            jobs: Some(jobs),
            results,
            is_busy: false,
            is_stopped,
            thread: Some(thread),
        })
    }

    /// Whether a job is under way.
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Begins a job; `waker` is woken at its end. No other one is under way.
    ///
    /// # Errors
    /// When the thread has ended.
    pub fn begin(&mut self, job: Job, waker: &Waker) -> Result<(), BoxError> {
        let jobs = self.jobs.as_ref();
        let sent = jobs.is_some_and(|jobs| jobs.send((job, waker.clone())).is_ok());
        self.is_busy = sent;
        match sent {
            true => Ok(()),
            false => Err(ENDED.into()),
        }
    }

    /// Returns the results of the job, once it has ended.
    ///
    /// # Errors
    /// That of the job.
    pub fn take(&mut self) -> Result<Option<Done>, BoxError> {
        match self.results.try_recv() {
            Ok(done) => {
                self.is_busy = false;
                done.map(Some)
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(ENDED.into()),
        }
    }
}

impl Drop for Finder {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Its panic was an error of its last job.
            let _ = thread.join();
        }
    }
}

const ENDED: &str = "the thread that looks up the records of the join has ended";

/// Hands over the results of a job, also when it panics.
struct Answer<'a> {
    sender: &'a mpsc::Sender<Result<Done, BoxError>>,
    waker: Waker,
    done: Option<Result<Done, BoxError>>,
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        let done = self.done.take().unwrap_or_else(|| Err(ENDED.into()));
        // A source that is gone does not want it.
        let _ = self.sender.send(done);
        self.waker.wake_by_ref();
    }
}
