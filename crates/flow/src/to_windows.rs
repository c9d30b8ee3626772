//! The place of keys: partial results of all instances and ranks are merged, and windows released.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use crate::attempt::Attempt;
use crate::error::Failure;
use crate::marks::Mark;
use crate::outbox::Outbox;
use crate::terminal::{End, InputEnd, Slice, Terminal};
use crate::windowed::{Key, SharedStore, WindowSpec};
use crate::windows::{Arrival, Combine, Partial, WindowResult, WindowStore};

/// Into the windows of one partition, and from them on to the next stage.
pub struct ToWindows<K, A: Combine> {
    pub spec: Arc<WindowSpec<A>>,
    pub store: SharedStore<K, A>,
    pub outbox: Outbox<WindowResult<K, A::Out>>,
    /// When the newest item entered the flow.
    pub stamp: u64,
}

impl<K: Key, A: Combine> End for ToWindows<K, A> {
    fn goes_by_time(&self) -> bool {
        true
    }

    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        Ok(self.outbox.reserve(results))
    }

    fn cancel(&mut self) {
        self.outbox.cancel();
    }

    fn commit(&mut self, stamp: u64, mark: Option<Mark>) -> Result<usize, Failure> {
        self.stamp = stamp;
        let (aggregate, outbox) = (&self.spec.aggregate, &mut self.outbox);
        let mut store = self.store.lock();
        let time = match mark {
            Some(Mark::Watermark(time) | Mark::Idle(time)) => time,
            // Results may be due by their count.
            Some(Mark::End) | None => store.watermark(),
        };
        store.advance(aggregate, time, &mut |result| outbox.put(0, result));
        drop(store);
        Ok(self.outbox.commit(stamp, mark))
    }

    /// The end of a bounded input closes all windows; a flow that is stopped leaves them open.
    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure> {
        if end == InputEnd::Stopped {
            return Ok(Some(0));
        }
        if self.outbox.reserve(1).is_none() {
            return Ok(None);
        }
        let (aggregate, outbox) = (&self.spec.aggregate, &mut self.outbox);
        self.store
            .lock()
            .close_all(aggregate, &mut |result| outbox.put(0, result));
        Ok(Some(self.outbox.commit(self.stamp, Some(Mark::End))))
    }
}

impl<K: Key, A: Combine> Terminal<Partial<K, A::State>> for ToWindows<K, A> {
    type Slice<'a> = WindowSlice<'a, K, A>;

    fn begin(&mut self) -> WindowSlice<'_, K, A> {
        WindowSlice {
            spec: &self.spec,
            store: self.store.lock(),
        }
    }
}

/// Holds the partition's lock for the time of one slice.
pub struct WindowSlice<'a, K: Key, A: Combine> {
    spec: &'a WindowSpec<A>,
    store: MutexGuard<'a, WindowStore<K, A::State>>,
}

impl<K: Key, A: Combine> Slice<Partial<K, A::State>> for WindowSlice<'_, K, A> {
    #[inline]
    fn take<Try: Attempt>(&mut self, _: &Try, partial: &Partial<K, A::State>) {
        let arrival = self.store.merge(&self.spec.aggregate, partial.clone());
        if let Arrival::Late = arrival {
            self.spec.late.fetch_add(partial.events, Ordering::Relaxed);
        }
    }
}
