//! Items that end in a sink.

use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;

use crate::attempt::{Attempt, Label};
use crate::error::{BoxError, Failure};
use crate::marks::Mark;
use crate::sink::Sink;
use crate::terminal::{End, InputEnd, Slice, Terminal};

/// Into a sink that all instances of the stage share.
pub struct ToSink<T, K> {
    pub sink: Arc<Mutex<K>>,
    pub waker: Waker,
    pub label: Label,
    /// Bounded by what one slice of input expands to: nothing is read before the sink has taken
    /// these.
    pub waiting: Vec<T>,
    /// Whether the sink got something since it was last flushed.
    pub unflushed: bool,
}

impl<T, K: Sink<T>> ToSink<T, K> {
    /// Whether the sink has taken everything.
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
        Failure::Error {
            operator: Arc::clone(&self.label.0),
            error,
        }
    }
}

impl<T: Clone + Send + 'static, K: Sink<T>> End for ToSink<T, K> {
    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        Ok(self.send()?.then_some(results))
    }

    fn cancel(&mut self) {}

    fn commit(&mut self, _: u64, _: Option<Mark>) -> Result<usize, Failure> {
        let count = self.waiting.len();
        self.send()?;
        Ok(count)
    }

    fn pause(&mut self) -> Result<bool, Failure> {
        let is_taken = self.send()?;
        self.flush()?;
        Ok(is_taken)
    }

    fn is_at_rest(&self) -> bool {
        self.waiting.is_empty() && !self.unflushed
    }

    fn save(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let saved = self.label.run(|| self.sink.lock().save());
        saved.map(Some).map_err(|error| self.failure(error))
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        self.label.run(|| self.sink.lock().restore(saved))
    }

    fn finish(&mut self, _: InputEnd) -> Result<Option<usize>, Failure> {
        Ok((self.send()? && self.flush()?).then_some(0))
    }
}

impl<T: Clone + Send + 'static, K: Sink<T>> Terminal<T> for ToSink<T, K> {
    type Slice<'a> = &'a mut Vec<T>;

    fn begin(&mut self) -> &mut Vec<T> {
        &mut self.waiting
    }
}

impl<T: Clone> Slice<T> for &mut Vec<T> {
    #[inline]
    fn take<A: Attempt>(&mut self, _: &A, item: &T) {
        self.push(item.clone());
    }
}
