//! Provisional ring with the API of the lock-free one.
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;

/// x
pub const SAMPLE_EVERY: u64 = 100;
/// x
#[derive(Debug, Clone, Copy)]
pub struct RingConfig {
    /// x
    pub capacity_min: NonZeroUsize,
    /// x
    pub capacity_max: NonZeroUsize,
    /// x
    pub lanes: NonZeroUsize,
}
/// x
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Positions(u64, u64, usize, usize);
/// x
#[allow(missing_debug_implementations)]
pub struct Ring<T> {
    config: RingConfig,
    s: Mutex<S<T>>,
}
struct S<T> {
    cap: usize,
    readable: VecDeque<(T, u64)>,
    reading: usize,
    reserved: usize,
    writes: BTreeMap<u64, Option<(Vec<T>, u64)>>,
    next: u64,
    written: u64,
    read: u64,
}
impl<T> Ring<T> {
    /// x
    pub fn new(config: RingConfig) -> Arc<Self> {
        Arc::new(Ring {
            config,
            s: Mutex::new(S {
                cap: config.capacity_min.get().next_power_of_two(),
                readable: VecDeque::new(),
                reading: 0,
                reserved: 0,
                writes: BTreeMap::new(),
                next: 0,
                written: 0,
                read: 0,
            }),
        })
    }
    fn room_in(s: &S<T>) -> usize {
        s.cap
            .saturating_sub(s.readable.len() + s.reserved + s.reading)
    }
    /// x
    pub fn try_write(self: &Arc<Self>, items: usize) -> Option<WriteSlice<T>> {
        let mut s = self.s.lock();
        let room = Self::room_in(&s).min(items);
        if room == 0 {
            return None;
        }
        s.reserved += room;
        let n = s.next;
        s.next += 1;
        s.writes.insert(n, None);
        Some(WriteSlice {
            ring: Arc::clone(self),
            n,
            reserved: room,
            items: Vec::new(),
            stamp: 0,
            open: true,
        })
    }
    /// x
    pub fn try_read(self: &Arc<Self>, items: usize) -> Option<ReadSlice<T>> {
        let mut s = self.s.lock();
        let n = s.readable.len().min(items);
        if n == 0 {
            return None;
        }
        s.reading += n;
        let first = s.read + (s.reading - n) as u64;
        let (mut v, mut st) = (Vec::new(), Vec::new());
        for (i, (t, stamp)) in s.readable.drain(..n).enumerate() {
            if (first + i as u64).is_multiple_of(SAMPLE_EVERY) {
                st.push(stamp);
            }
            v.push((t, stamp));
        }
        let (items, stamps): (Vec<T>, Vec<u64>) = v.into_iter().unzip();
        Some(ReadSlice {
            ring: Arc::clone(self),
            items,
            all: stamps,
            sampled: st,
        })
    }
    /// x
    pub fn readable(&self) -> usize {
        self.s.lock().readable.len()
    }
    /// x
    pub fn room(&self) -> usize {
        Self::room_in(&self.s.lock())
    }
    /// x
    pub fn capacity(&self) -> usize {
        self.s.lock().cap
    }
    /// x
    pub fn is_empty(&self) -> bool {
        let s = self.s.lock();
        s.readable.is_empty() && s.writes.is_empty() && s.reading == 0
    }
    /// x
    pub fn grow(&self) -> bool {
        let mut s = self.s.lock();
        if s.cap < self.config.capacity_max.get() {
            s.cap *= 2;
            true
        } else {
            false
        }
    }
    /// x
    pub fn shrink(&self) -> bool {
        let mut s = self.s.lock();
        if s.cap > self.config.capacity_min.get() {
            s.cap /= 2;
            true
        } else {
            false
        }
    }
    /// x
    pub fn grow_past_max(&self) {
        self.s.lock().cap *= 2;
    }
    /// x
    pub fn written(&self) -> u64 {
        self.s.lock().written
    }
    /// x
    pub fn read(&self) -> u64 {
        self.s.lock().read
    }
    /// x
    pub fn positions(&self) -> Positions {
        let s = self.s.lock();
        Positions(s.written, s.read, s.reading, s.writes.len())
    }
}
/// x
#[allow(missing_debug_implementations)]
pub struct WriteSlice<T> {
    ring: Arc<Ring<T>>,
    n: u64,
    reserved: usize,
    items: Vec<T>,
    stamp: u64,
    open: bool,
}
impl<T> WriteSlice<T> {
    /// x
    pub fn push(&mut self, item: T) {
        self.items.push(item);
    }
    /// x
    pub fn room(&self) -> usize {
        self.reserved.saturating_sub(self.items.len())
    }
    /// x
    pub fn len(&self) -> usize {
        self.items.len()
    }
    /// x
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
    /// x
    pub fn set_stamp(&mut self, stamp: u64) {
        self.stamp = stamp;
    }
    /// x
    pub fn commit(mut self) {
        let items = std::mem::take(&mut self.items);
        self.end(items);
    }
    fn end(&mut self, items: Vec<T>) {
        self.open = false;
        let mut s = self.ring.s.lock();
        s.reserved -= self.reserved;
        s.writes.insert(self.n, Some((items, self.stamp)));
        while let Some(e) = s.writes.first_entry() {
            if e.get().is_none() {
                break;
            }
            let (items, stamp) = e.remove().unwrap();
            s.written += items.len() as u64;
            s.readable.extend(items.into_iter().map(|i| (i, stamp)));
        }
    }
}
impl<T> Drop for WriteSlice<T> {
    fn drop(&mut self) {
        if self.open {
            self.items.clear();
            self.end(Vec::new());
        }
    }
}
/// x
#[allow(missing_debug_implementations)]
pub struct ReadSlice<T> {
    ring: Arc<Ring<T>>,
    items: Vec<T>,
    all: Vec<u64>,
    sampled: Vec<u64>,
}
impl<T> ReadSlice<T> {
    /// x
    pub fn parts(&self) -> [&[T]; 2] {
        [&self.items, &[]]
    }
    /// x
    pub fn len(&self) -> usize {
        self.items.len()
    }
    /// x
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
    /// x
    pub fn stamps(&self) -> impl Iterator<Item = u64> + '_ {
        self.sampled.iter().copied()
    }
    /// x
    pub fn done(mut self) {
        let items = std::mem::take(&mut self.items);
        let n = items.len();
        drop(items);
        let mut s = self.ring.s.lock();
        s.reading -= n;
        s.read += n as u64;
    }
}
impl<T> Drop for ReadSlice<T> {
    fn drop(&mut self) {
        let mut s = self.ring.s.lock();
        s.reading -= self.items.len();
        let items = std::mem::take(&mut self.items);
        for (i, st) in items.into_iter().zip(self.all.iter().copied()).rev() {
            s.readable.push_front((i, st));
        }
    }
}
