//! Items that end in a sink.

use std::mem;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;

use crate::error::{BoxError, Failure};
use crate::sinks::sink::Sink;
use crate::stage::attempt::Attempt;
use crate::stage::terminal::{End, InputEnd, Slice, Terminal};
use crate::stage::user_code::Label;
use crate::time::control_event::ControlEvent;

/// The most pushes to a sink in one activation: an ending flow waits no longer than that, however much there is to push
/// and however little the sink takes.
const PUSHES_MAX: usize = 16;

/// The end in a sink that all instances of the stage share.
pub struct ToSink<T, K> {
    pub sink: Arc<Mutex<K>>,
    pub waker: Waker,
    pub label: Label,
    pub waiting: PendingItems<T>,
    /// Whether the sink got something since it was last flushed.
    pub unflushed: bool,
    /// Whether the sink has taken something since this was last taken.
    pub has_progress: bool,
}

/// Items that the sink has yet to take. They are bounded by the results of one slice of input: nothing is read before
/// the sink has taken them.
pub struct PendingItems<T> {
    items: Vec<T>,
    /// The number of items that the sink has taken.
    taken: usize,
}

/// The outcome of an attempt to send the pending items.
#[derive(PartialEq, Eq)]
enum Sent {
    All,
    /// There was no time for the rest.
    Some,
    /// The sink takes no more for now.
    Full,
}

impl<T> Default for PendingItems<T> {
    fn default() -> Self {
        PendingItems {
            items: Vec::new(),
            taken: 0,
        }
    }
}

impl<T> PendingItems<T> {
    fn rest(&self) -> &[T] {
        &self.items[self.taken..]
    }

    /// Each item is moved once at most, and twice as many as wait are in memory at most.
    fn take(&mut self, count: usize) {
        self.taken += count;
        if self.taken >= self.items.len() - self.taken {
            self.items.drain(..self.taken);
            self.taken = 0;
        }
    }
}

impl<T, K: Sink<T>> ToSink<T, K> {
    fn send(&mut self) -> Result<Sent, Failure> {
        for _ in 0..PUSHES_MAX {
            let rest = self.waiting.rest();
            if rest.is_empty() {
                return Ok(Sent::All);
            }
            let mut sink = self.sink.lock();
            let taken = self.label.run(|| sink.push(rest, &self.waker));
            drop(sink);
            let taken = taken.and_then(|taken| check_taken(taken, rest.len()));
            match taken.map_err(|error| self.failure(error))? {
                0 => return Ok(Sent::Full),
                taken => self.waiting.take(taken),
            }
            self.unflushed = true;
            self.has_progress = true;
        }
        Ok(match self.waiting.rest() {
            [] => Sent::All,
            _ => Sent::Some,
        })
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
        Failure::Error {
            operator: Arc::clone(&self.label.0),
            error,
        }
    }
}

fn check_taken(taken: usize, given: usize) -> Result<usize, BoxError> {
    match taken <= given {
        true => Ok(taken),
        false => Err(format!(
            "the sink was given {given} items and returned that it took {taken}; its push has to return how many it took of those"
        )
        .into()),
    }
}

impl<T: Clone + Send + 'static, K: Sink<T>> End for ToSink<T, K> {
    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        Ok((self.send()? == Sent::All).then_some(results))
    }

    fn cancel(&mut self) {}

    fn commit(&mut self, _: u64, _: Option<ControlEvent>) -> Result<usize, Failure> {
        let count = self.waiting.items.len();
        self.send()?;
        Ok(count)
    }

    fn pause(&mut self) -> Result<bool, Failure> {
        let sent = self.send()?;
        // A sink that takes no more may have to flush first.
        if sent != Sent::Some {
            self.flush()?;
        }
        Ok(sent == Sent::All)
    }

    /// A worker comes again after progress: the sink wakes the waker only after it has taken fewer items than it was given.
    fn take_progress(&mut self) -> bool {
        mem::take(&mut self.has_progress)
    }

    fn waits_outside(&self) -> bool {
        !self.waiting.items.is_empty()
    }

    fn is_at_rest(&self) -> bool {
        self.waiting.items.is_empty() && !self.unflushed
    }

    fn finish(&mut self, _: InputEnd) -> Result<Option<usize>, Failure> {
        Ok((self.send()? == Sent::All && self.flush()?).then_some(0))
    }
}

impl<T: Clone + Send + 'static, K: Sink<T>> Terminal<T> for ToSink<T, K> {
    type Slice<'a> = &'a mut Vec<T>;

    fn begin(&mut self) -> &mut Vec<T> {
        &mut self.waiting.items
    }
}

impl<T: Clone> Slice<T> for &mut Vec<T> {
    #[inline]
    fn take<A: Attempt>(&mut self, _: &A, item: &T) {
        self.push(item.clone());
    }
}
