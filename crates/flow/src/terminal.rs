//! Where a stage's results go: rings of later stages, state, sinks.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;
use std::task::Waker;

use hashbrown::DefaultHashBuilder;
use millstream_ring::Ring;
use parking_lot::{Mutex, MutexGuard};

use crate::chain::Label;
use crate::error::{BoxError, Failure};
use crate::sink::Sink;

/// How the input of a stage came to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum InputEnd {
    /// All of a bounded input was read.
    Complete,
    /// The flow was stopped; there would have been more.
    Stopped,
}

pub trait Terminal<T: ?Sized>: Send + 'static {
    type Slice<'a>: Slice<T>
    where
        Self: 'a;

    /// Passes on what former slices left behind; `false` when that has to wait for room. Until
    /// then no slice may begin.
    fn drain(&mut self) -> Result<bool, Failure>;

    /// Begins to take in the results of one slice.
    fn begin(&mut self) -> Self::Slice<'_>;

    /// There is nothing to read just now.
    fn pause(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// There will never be anything to read again; `false` when something is still on its way.
    fn finish(&mut self, end: InputEnd) -> Result<bool, Failure>;

    /// How many results there were since this was last asked.
    fn take_count(&mut self) -> usize {
        0
    }

    /// Tells the next stages that nothing more comes; called once per stage, not per instance.
    fn close(&self) {}
}

/// The results of one slice of input.
pub trait Slice<T: ?Sized> {
    fn take(&mut self, item: &T);

    /// Passes the results on as far as there is room.
    fn commit(self) -> Result<(), Failure>;
}

/// One ring per instance of the next stage (or one for all of them), and what does not fit.
pub struct Outbox<T> {
    rings: Arc<[Arc<Ring<T>>]>,
    /// Per ring. Bounded by what one slice of input expands to: a stage reads nothing before it
    /// has got rid of these.
    waiting: Vec<Vec<T>>,
    /// Results since `take_count`.
    count: usize,
}

impl<T> Outbox<T> {
    pub fn new(rings: Arc<[Arc<Ring<T>>]>) -> Self {
        Outbox {
            waiting: rings.iter().map(|_| Vec::new()).collect(),
            rings,
            count: 0,
        }
    }

    pub fn put(&mut self, ring: usize, item: T) {
        self.waiting[ring].push(item);
        self.count += 1;
    }

    /// Moves what fits into the rings; `true` when that was everything.
    pub fn send(&mut self) -> bool {
        let mut sent_all = true;
        for (ring, waiting) in self.rings.iter().zip(&mut self.waiting) {
            if waiting.is_empty() {
                continue;
            }
            if let Some(mut slice) = ring.try_write(waiting.len()) {
                let room = slice.room();
                for item in waiting.drain(..room) {
                    let Ok(()) = slice.push(item) else {
                        unreachable!("a slice has the room that it says");
                    };
                }
                slice.commit();
            }
            sent_all &= waiting.is_empty();
        }
        sent_all
    }

    pub fn take_count(&mut self) -> usize {
        std::mem::take(&mut self.count)
    }

    pub fn close(&self) {
        for ring in self.rings.iter() {
            ring.close();
        }
    }
}

/// Into one ring, which all instances of the next stage read.
pub struct ToRing<T>(pub Outbox<T>);

impl<T: Clone + Send + 'static> Terminal<T> for ToRing<T> {
    type Slice<'a> = &'a mut Self;

    fn drain(&mut self) -> Result<bool, Failure> {
        Ok(self.0.send())
    }

    fn begin(&mut self) -> &mut Self {
        self
    }

    fn finish(&mut self, _: InputEnd) -> Result<bool, Failure> {
        Ok(self.0.send())
    }

    fn take_count(&mut self) -> usize {
        self.0.take_count()
    }

    fn close(&self) {
        self.0.close();
    }
}

impl<T: Clone> Slice<T> for &mut ToRing<T> {
    #[inline]
    fn take(&mut self, item: &T) {
        self.0.put(0, item.clone());
    }

    fn commit(self) -> Result<(), Failure> {
        self.0.send();
        Ok(())
    }
}

/// Into the ring of the partition that an item's key belongs to.
pub struct ToPartitions<K, T, F> {
    pub outbox: Outbox<(K, T)>,
    pub key: Arc<F>,
    pub label: Label,
    /// The same for all instances of the stage.
    pub hasher: DefaultHashBuilder,
}

impl<K, T, F> Terminal<T> for ToPartitions<K, T, F>
where
    K: Hash + Send + 'static,
    T: Clone + Send + 'static,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    type Slice<'a> = &'a mut Self;

    fn drain(&mut self) -> Result<bool, Failure> {
        Ok(self.outbox.send())
    }

    fn begin(&mut self) -> &mut Self {
        self
    }

    fn finish(&mut self, _: InputEnd) -> Result<bool, Failure> {
        Ok(self.outbox.send())
    }

    fn take_count(&mut self) -> usize {
        self.outbox.take_count()
    }

    fn close(&self) {
        self.outbox.close();
    }
}

impl<K, T, F> Slice<T> for &mut ToPartitions<K, T, F>
where
    K: Hash,
    T: Clone,
    F: Fn(&T) -> K,
{
    #[inline]
    fn take(&mut self, item: &T) {
        let key = self.label.run(|| (self.key)(item));
        let partitions = self.outbox.rings.len() as u64;
        let partition = (self.hasher.hash_one(&key) % partitions) as usize;
        self.outbox.put(partition, (key, item.clone()));
    }

    fn commit(self) -> Result<(), Failure> {
        self.outbox.send();
        Ok(())
    }
}

/// Into this instance's part of a partial state.
pub struct ToState<S, F> {
    pub part: Arc<Mutex<S>>,
    pub step: Arc<F>,
    pub label: Label,
}

impl<T: ?Sized, S, F> Terminal<T> for ToState<S, F>
where
    S: Send + 'static,
    F: Fn(&mut S, &T) + Send + Sync + 'static,
{
    type Slice<'a> = StateSlice<'a, S, F>;

    fn drain(&mut self) -> Result<bool, Failure> {
        Ok(true)
    }

    fn begin(&mut self) -> StateSlice<'_, S, F> {
        StateSlice {
            part: self.part.lock(),
            step: &*self.step,
            label: &self.label,
        }
    }

    fn finish(&mut self, _: InputEnd) -> Result<bool, Failure> {
        Ok(true)
    }
}

/// Holds the part's lock for the time of one slice.
pub struct StateSlice<'a, S, F> {
    part: MutexGuard<'a, S>,
    step: &'a F,
    label: &'a Label,
}

impl<T: ?Sized, S, F: Fn(&mut S, &T)> Slice<T> for StateSlice<'_, S, F> {
    #[inline]
    fn take(&mut self, item: &T) {
        self.label.run(|| (self.step)(&mut self.part, item));
    }

    fn commit(self) -> Result<(), Failure> {
        Ok(())
    }
}

/// Into a sink that all instances of the stage share.
pub struct ToSink<T, K> {
    pub sink: Arc<Mutex<K>>,
    pub waker: Waker,
    pub label: Label,
    pub waiting: Vec<T>,
    /// Items that the sink took since `take_count`.
    pub count: usize,
    /// Whether the sink got something since it was last flushed.
    pub unflushed: bool,
}

impl<T, K: Sink<T>> ToSink<T, K> {
    fn send(&mut self) -> Result<bool, Failure> {
        while !self.waiting.is_empty() {
            let mut sink = self.sink.lock();
            let taken = self
                .label
                .run(|| sink.push(&self.waiting, &self.waker))
                .map_err(|error| self.failure(error))?;
            drop(sink);
            if taken == 0 {
                return Ok(false);
            }
            self.unflushed = true;
            self.count += taken;
            self.waiting.drain(..taken);
        }
        Ok(true)
    }

    fn flush(&mut self) -> Result<bool, Failure> {
        if self.unflushed {
            let mut sink = self.sink.lock();
            let arrived = self
                .label
                .run(|| sink.flush(&self.waker))
                .map_err(|error| self.failure(error))?;
            drop(sink);
            self.unflushed = !arrived;
        }
        Ok(!self.unflushed)
    }

    fn failure(&self, error: BoxError) -> Failure {
        Failure {
            operator: Arc::clone(&self.label.0),
            error,
        }
    }
}

impl<T: Clone + Send + 'static, K: Sink<T>> Terminal<T> for ToSink<T, K> {
    type Slice<'a> = &'a mut Self;

    fn drain(&mut self) -> Result<bool, Failure> {
        self.send()
    }

    fn begin(&mut self) -> &mut Self {
        self
    }

    fn pause(&mut self) -> Result<(), Failure> {
        self.flush()?;
        Ok(())
    }

    fn finish(&mut self, _: InputEnd) -> Result<bool, Failure> {
        Ok(self.send()? && self.flush()?)
    }

    fn take_count(&mut self) -> usize {
        std::mem::take(&mut self.count)
    }
}

impl<T: Clone + Send + 'static, K: Sink<T>> Slice<T> for &mut ToSink<T, K> {
    #[inline]
    fn take(&mut self, item: &T) {
        self.waiting.push(item.clone());
    }

    fn commit(self) -> Result<(), Failure> {
        self.send()?;
        Ok(())
    }
}
