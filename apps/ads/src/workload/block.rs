//! Contiguous events in memory.

use super::facts::{AD, EVENT_BYTES_MAX, FORM, Facts, KIND, Kind, LENGTH};
use super::feed::BATCH_EVENTS;

/// The first bytes of an event, with all fields by which events are counted.
pub type Head = [u8; 16];

/// Events in memory, at most [`BATCH_EVENTS`]. A generator fills the same block many times.
#[derive(Debug, Clone)]
pub struct Block {
    bytes: Box<[u8]>,
    /// The length of the events, in bytes.
    len: usize,
}

impl Default for Block {
    fn default() -> Block {
        Block {
            bytes: vec![0; BATCH_EVENTS * EVENT_BYTES_MAX].into(),
            len: 0,
        }
    }
}

impl Block {
    /// Returns a block without room, as a placeholder for another one.
    pub fn empty() -> Block {
        Block {
            bytes: Box::default(),
            len: 0,
        }
    }

    /// Replaces the block's events with new ones.
    #[inline]
    pub(super) fn fill(&mut self, events: impl Iterator<Item = Facts>, time_ms: i64) {
        self.len = 0;
        for facts in events.take(BATCH_EVENTS) {
            let Some(room) = self.bytes[self.len..].first_chunk_mut() else {
                break;
            };
            self.len += facts.write(time_ms, room);
        }
    }

    /// Returns the events, in order.
    #[inline]
    pub fn events(&self) -> Events<'_> {
        Events::new(self.as_bytes())
    }

    /// Returns the bytes of all events.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Iterates over events in place.
#[derive(Debug, Clone)]
pub struct Events<'b> {
    bytes: &'b [u8],
}

impl<'b> Events<'b> {
    /// Returns an iterator over the events of a block.
    #[inline]
    pub fn new(bytes: &'b [u8]) -> Events<'b> {
        Events { bytes }
    }
}

impl<'b> Iterator for Events<'b> {
    type Item = Event<'b>;

    #[inline]
    fn next(&mut self) -> Option<Event<'b>> {
        let event = Event::new(self.bytes.first_chunk()?);
        // A truncated event, or one with too small a length, ends the block.
        let length = event.len_bytes().max(size_of::<Head>());
        self.bytes = self.bytes.get(length..)?;
        Some(event)
    }
}

/// An event in place.
#[derive(Debug, Clone, Copy)]
pub struct Event<'b> {
    head: &'b Head,
}

impl<'b> Event<'b> {
    /// Returns the event that begins with this head.
    #[inline]
    pub fn new(head: &'b Head) -> Event<'b> {
        Event { head }
    }

    /// Returns the event's head.
    #[inline]
    pub fn head(self) -> &'b Head {
        self.head
    }

    /// Returns the event's time, in milliseconds since 1970 UTC.
    #[inline]
    pub fn time_ms(self) -> i64 {
        let [a, b, c, d, e, f, g, h, ..] = *self.head;
        i64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// Returns the ad's number.
    #[inline]
    pub fn ad(self) -> u32 {
        let head = self.head;
        u32::from_le_bytes([head[AD], head[AD + 1], head[AD + 2], head[AD + 3]])
    }

    /// Returns the action on the ad.
    #[inline]
    pub fn kind(self) -> Kind {
        Kind::of(self.head[KIND])
    }

    /// Returns the ad's form: banner, modal, sponsored search, mail, mobile: 0 to 4.
    #[inline]
    pub fn form(self) -> u8 {
        self.head[FORM]
    }

    /// Returns the event's length.
    #[inline]
    pub fn len_bytes(self) -> usize {
        usize::from(u16::from_le_bytes([
            self.head[LENGTH],
            self.head[LENGTH + 1],
        ]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_round_trip() {
        let facts = |number| Facts::new(1, number);
        let mut block = Block::default();
        block.fill((0..10).map(facts), 1);
        block.fill((0..1_000_000).map(facts), 0x0102_0304_0506);
        let mut read = 0;
        let mut bytes = 0;
        for (event, number) in block.events().zip(0..) {
            let facts = facts(number);
            assert_eq!((event.ad(), event.kind()), (facts.ad(), facts.kind()));
            assert_eq!(event.time_ms(), 0x0102_0304_0506);
            assert!(event.form() < 5);
            assert!((112..=160).contains(&event.len_bytes()));
            let event = &block.as_bytes()[bytes..][..event.len_bytes()];
            assert_eq!(event[64..72], *b"Mozilla/");
            read += 1;
            bytes += event.len();
        }
        assert_eq!(bytes, block.as_bytes().len());
        assert_eq!(read, BATCH_EVENTS);
    }

    #[test]
    fn a_truncated_event_ends_a_block() {
        let mut block = Block::default();
        block.fill((0..3).map(|number| Facts::new(0, number)), 7);
        let bytes = block.as_bytes();
        for cut in 0..bytes.len() {
            assert!(Events::new(&bytes[..cut]).count() < 3);
        }
        // An event of length 0 does not hold a reader forever.
        assert_eq!(Events::new(&[0; 64]).count(), 4);
    }
}
