//! Rings of later stages, as an instance of a stage writes them.

use std::mem;
use std::sync::Arc;

use millstream_base::Timestamp;
use millstream_ring::{Ring, WriteSlice};

use crate::stage::channel::{self, Channel, ChannelState};
use crate::stage::terminal::{InputEnd, WritingInstance};
use crate::time::control_event::{ControlEvent, PlacedEvent, WriterId};

/// The output to the next stage: one ring per instance, or one ring for all instances.
pub struct Outbox<T> {
    outlets: Vec<Outlet<T>>,
    /// The channel that the stage reads; none for a source.
    input: Option<Arc<ChannelState>>,
    writer: WriterId,
    /// The open slice of each ring, while a slice of input is processed.
    open: Vec<WriteSlice<T>>,
    /// The indexes of open slices that are smaller than requested.
    small: Vec<usize>,
    /// Something was passed on, or a ring may have grown, since this was last taken.
    has_progress: bool,
}

struct Outlet<T> {
    ring: Arc<Ring<T>>,
    channel: Arc<ChannelState>,
    /// The index of the ring in the channel.
    index: usize,
    /// Control events lie behind all items of the slice: of two outlets in one ring the second one emits them.
    emits_events: bool,
    /// The number of the outbox's outlets in this ring: each leaves room for the others.
    sharing: usize,
}

impl<T> Outlet<T> {
    /// Ends a slice by `end`, which gives back the room that is left in the slice, and emits the event in `emitted`
    /// behind its items.
    fn end_slice(
        &self,
        slice: WriteSlice<T>,
        emitted: Option<(WriterId, ControlEvent)>,
        end: impl FnOnce(WriteSlice<T>),
    ) {
        let begins_at = slice.start();
        let room = slice.end()..slice.end() + slice.room() as u64;
        if !self.channel.wants_events() || (emitted.is_none() && room.is_empty()) {
            end(slice);
        } else {
            let emitted = emitted.map(|(writer, event)| PlacedEvent {
                position: room.start,
                slice: begins_at,
                writer,
                event,
            });
            self.channel.events[self.index].end_slice(emitted, room, || end(slice));
        }
    }
}

impl<T> Outbox<T> {
    /// Makes an outbox into the only ring of each of some channels.
    pub fn of_channels(writing: WritingInstance<'_>, channels: &[Channel<T>]) -> Self {
        let outlets = channels.iter().map(|channel| Outlet {
            ring: Arc::clone(&channel.ring),
            channel: Arc::clone(&channel.state),
            index: 0,
            emits_events: true,
            sharing: 1,
        });
        Outbox::new(writing, outlets.collect())
    }

    /// Makes an outbox into all rings of one channel.
    pub fn of_rings(
        writing: WritingInstance<'_>,
        rings: &[Arc<Ring<T>>],
        channel: &Arc<ChannelState>,
    ) -> Self {
        let outlets = rings.iter().enumerate().map(|(index, ring)| Outlet {
            ring: Arc::clone(ring),
            channel: Arc::clone(channel),
            index,
            emits_events: true,
            sharing: 1,
        });
        Outbox::new(writing, outlets.collect())
    }

    fn new(writing: WritingInstance<'_>, mut outlets: Vec<Outlet<T>>) -> Self {
        for index in 0..outlets.len() {
            let (before, behind) = outlets.split_at_mut(index + 1);
            let is_same = |other: &Outlet<T>| Arc::ptr_eq(&other.ring, &before[index].ring);
            let sharing = before
                .iter()
                .chain(&*behind)
                .filter(|it| is_same(it))
                .count();
            before[index].emits_events = !behind.iter().any(is_same);
            before[index].sharing = sharing;
        }
        Outbox {
            outlets,
            input: writing.input.cloned(),
            writer: writing.writer,
            open: Vec::new(),
            small: Vec::new(),
            has_progress: false,
        }
    }

    /// Returns the number of rings.
    pub fn len(&self) -> usize {
        self.outlets.len()
    }

    /// Reserves room in every ring; `None` when one of them has none to speak of. Returns for how
    /// many items there is room if they spread evenly.
    pub fn reserve(&mut self, results: usize) -> Option<usize> {
        let mut share = results.div_ceil(self.outlets.len()).max(1);
        loop {
            let room = self.try_reserve(share);
            // The second of two in one ring lacks the room that the first takes: a smaller share is tried.
            if room.is_some() || share == 1 || self.outlets.iter().all(|outlet| outlet.sharing == 1)
            {
                return room;
            }
            share /= 2;
        }
    }

    /// Reserves room for `share` items in each ring.
    fn try_reserve(&mut self, share: usize) -> Option<usize> {
        let mut room_min = share;
        for (index, outlet) in self.outlets.iter().enumerate() {
            let Outlet {
                ring,
                channel,
                sharing,
                ..
            } = outlet;
            let is_led_back = channel.is_led_back_from(self.input.as_deref());
            // Items that come into a cycle from outside leave room for items that are led back: those may have to
            // find a place before the ring's own reader can go on.
            if is_led_back == Some(false) && ring.readable() > ring.capacity_max() / 2 {
                self.cancel();
                return None;
            }
            let wanted = match sharing {
                1 => share,
                _ => share.min(ring.lane_capacity() / sharing).max(1),
            };
            let slice = ring.try_write_at_least(channel::room_min(ring, wanted), wanted);
            let room = slice.as_ref().map_or(0, WriteSlice::room);
            let may_grow = room < share && channel.may_grow(ring.capacity());
            let Some(slice) = slice else {
                // There may be room now.
                self.has_progress |= may_grow && ring.grow();
                self.cancel();
                return None;
            };
            self.open.push(slice);
            if may_grow {
                self.small.push(index);
            }
            room_min = room_min.min(room);
        }
        Some(room_min * self.outlets.len())
    }

    /// From the last to the first: where two are in one ring, the first can give back its room only
    /// when nothing is reserved behind it.
    pub fn cancel(&mut self) {
        while let Some(slice) = self.open.pop() {
            self.outlets[self.open.len()].end_slice(slice, None, drop);
        }
        self.small.clear();
    }

    #[inline]
    pub fn put(&mut self, ring: usize, item: T) {
        self.open[ring].push(item);
    }

    /// Passes the results on, and emits `event` behind them.
    pub fn commit(&mut self, stamp: u64, event: Option<ControlEvent>) -> usize {
        let mut count = 0;
        self.has_progress |= event.is_some();
        for (outlet, mut slice) in self.outlets.iter().zip(self.open.drain(..)) {
            count += slice.len();
            slice.set_stamp(stamp);
            let event = event.filter(|_| outlet.emits_events);
            let emitted = event.map(|event| (self.writer, event));
            outlet.end_slice(slice, emitted, WriteSlice::commit);
        }
        self.has_progress |= count > 0;
        // Not before there are results: a source that finds nothing needs no room.
        for index in self.small.drain(..).filter(|_| count > 0) {
            self.outlets[index].ring.grow();
        }
        count
    }

    /// Whether something was passed on, or a ring may have grown, since the last call.
    pub fn take_progress(&mut self) -> bool {
        mem::take(&mut self.has_progress)
    }

    /// Makes readers wait for this writer again, if it was idle. Returns the latest watermark that readers of any ring
    /// have observed: it stays until the writer's next event.
    pub fn rejoin(&self) -> Timestamp {
        let outlets = self.outlets.iter();
        let times = outlets.map(|it| it.channel.events[it.index].rejoin(self.writer));
        times.max().unwrap_or(Timestamp(i64::MIN))
    }

    /// Whether a stage further on needs event time.
    pub fn wants_events(&self) -> bool {
        let mut outlets = self.outlets.iter();
        outlets.any(|outlet| outlet.channel.wants_events())
    }

    /// Emits the end of its output; `false` when there is no room for that.
    pub fn finish(&mut self, end: InputEnd) -> bool {
        if end == InputEnd::Stopped || !self.wants_events() {
            return true;
        }
        let has_room = self.reserve(1).is_some();
        if has_room {
            self.commit(0, Some(ControlEvent::End));
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use millstream_ring::RingConfig;

    use super::*;
    use crate::stage::channel::AnyRing;

    /// The room of a writer without items lay behind the room of another writer. The other writer gave its room back,
    /// and the event lay where no reader came until more items did: windows stayed open.
    #[test]
    fn a_reader_observes_an_event_without_items_behind_room_that_a_writer_gave_back() {
        let ring = Ring::<u64>::new(RingConfig {
            capacity_min: NonZeroUsize::new(64).expect("not zero"),
            capacity_max: NonZeroUsize::new(64).expect("not zero"),
            lanes: NonZeroUsize::MIN,
        });
        let rings: Vec<Arc<dyn AnyRing>> = vec![Arc::new(Arc::clone(&ring))];
        let channel = ChannelState::new("c", rings);
        channel.add_writer(&[1, 2]);
        channel.want_events();
        let outbox = |writer| {
            let writing = WritingInstance {
                input: None,
                writer,
            };
            Outbox::of_rings(writing, std::slice::from_ref(&ring), &channel)
        };
        let (mut earlier, mut later) = (outbox(1), outbox(2));
        let time = ControlEvent::Watermark(Timestamp(7));
        earlier.reserve(8).expect("the ring is empty");
        later.reserve(8).expect("there is room");
        later.commit(0, Some(time));
        earlier.put(0, 5);
        earlier.commit(0, Some(time));
        let slice = ring.try_read(8).expect("an item");
        assert_eq!((slice.len(), slice.end()), (1, ring.read_to()));
        assert_eq!(channel.events[0].observe(slice.end()), Some(time));
    }
}
