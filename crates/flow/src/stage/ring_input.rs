//! The input of a stage that reads the rings that other stages write.

use std::sync::Arc;

use millstream_base::Timestamp;
use millstream_ring::{ReadSlice, Ring};

use crate::error::Failure;
use crate::stage::channel::ChannelState;
use crate::stage::input::{Input, Took};
use crate::stage::row::RowStart;
use crate::time::control_event::ControlEvent;

/// The input of a stage that reads a ring: see [`Operators`](crate::Operators).
pub struct RingInput<T> {
    pub(crate) ring: Arc<Ring<T>>,
    pub(crate) channel: Arc<ChannelState>,
    /// The index of the ring in the channel.
    pub(crate) index: usize,
    pub(crate) slice: Option<ReadSlice<T>>,
    /// The stamp of the last item that was sampled.
    pub(crate) stamp: u64,
}

impl<T> RingInput<T> {
    /// Reads the ring of this index of a channel.
    pub(crate) fn new(ring: &Arc<Ring<T>>, channel: &Arc<ChannelState>, index: usize) -> Self {
        RingInput {
            ring: Arc::clone(ring),
            channel: Arc::clone(channel),
            index,
            slice: None,
            stamp: 0,
        }
    }
}

impl<T: Send + 'static> RowStart for RingInput<T> {
    type Item = T;

    const IS_SHARED: bool = true;
}

impl<T: Send + 'static> Input for RingInput<T> {
    fn readable(&self) -> usize {
        self.ring.readable()
    }

    /// Items that another worker has in hand may come back.
    fn is_finished(&self) -> bool {
        self.channel.is_closed() && self.ring.is_empty()
    }

    fn has_due_event(&self) -> bool {
        self.channel.events[self.index].has_due(self.ring.read_to())
    }

    /// Observes events behind the items of the open slice, or, without one, behind all items that any reader has taken.
    fn observe_event(&mut self) -> Option<ControlEvent> {
        let slice = self.slice.as_ref();
        let position = slice.map_or_else(|| self.ring.read_to(), ReadSlice::end);
        self.channel.events[self.index].observe(position)
    }

    fn items_before_event(&self) -> usize {
        let event = self.channel.events[self.index].first_position();
        // An event at the present place is observed with the next items.
        match event.saturating_sub(self.ring.read_to()) {
            0 => usize::MAX,
            items => usize::try_from(items).unwrap_or(usize::MAX),
        }
    }

    fn time(&self) -> Timestamp {
        self.channel.events[self.index].time()
    }

    fn take(&mut self, budget: usize) -> Result<Took, Failure> {
        self.slice = self.ring.try_read(budget);
        Ok(match &self.slice {
            Some(_) => Took::Items,
            // It was empty room that counted as readable, or another worker has taken the items.
            None if self.ring.readable() == 0 => Took::Passed,
            None => Took::Idle,
        })
    }

    fn parts(&self) -> [&[T]; 2] {
        self.slice.as_ref().map_or([&[], &[]], ReadSlice::parts)
    }

    fn stamp(&mut self) -> u64 {
        if let Some(stamp) = self.slice.as_ref().and_then(|slice| slice.stamps().last()) {
            self.stamp = stamp;
        }
        self.stamp
    }

    fn sample(&mut self, mut visit: impl FnMut(u64, u64)) {
        if let Some(slice) = &self.slice {
            slice.stamps().for_each(|stamp| visit(stamp, 1));
        }
    }

    fn done(&mut self) {
        if let Some(slice) = self.slice.take() {
            slice.done();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use millstream_ring::RingConfig;

    use super::*;
    use crate::stage::channel::AnyRing;

    /// A worker that passed empty room found nothing to read and slept, although the input was finished from then on.
    #[test]
    fn an_input_says_that_it_has_passed_room_that_a_writer_left_empty() {
        let ring = Ring::<u64>::new(RingConfig {
            capacity_min: NonZeroUsize::new(8).expect("not zero"),
            capacity_max: NonZeroUsize::new(8).expect("not zero"),
            lanes: NonZeroUsize::MIN,
        });
        let rings: Vec<Arc<dyn AnyRing>> = vec![Arc::new(Arc::clone(&ring))];
        let channel = ChannelState::new("c", rings);
        let mut input = RingInput::new(&ring, &channel, 0);
        let earlier = ring.try_write(3).expect("the ring is empty");
        let later = ring.try_write(3).expect("there is room");
        drop(earlier);
        drop(later);
        channel.close();
        assert!(!input.is_finished());
        assert!(input.readable() > 0, "empty room counts until it is passed");
        assert_eq!(input.take(8).ok(), Some(Took::Passed));
        assert_eq!((input.readable(), input.is_finished()), (0, true));
    }
}
