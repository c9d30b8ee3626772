//! Copies of events, as an operator keeps them that shares nothing.

use std::sync::Arc;

use millstream_base::Timestamp;
use millstream_connect::StoredChunks;
use millstream_flow::Parts;

/// The events of some chunks, each an object of its own.
#[derive(Debug, Clone)]
pub struct Copies(Arc<[Event]>);

#[derive(Debug)]
pub struct Event {
    pub time: Timestamp,
    pub value: Box<[u8]>,
}

impl Copies {
    pub fn of(chunks: &StoredChunks) -> Copies {
        let mut events = Vec::new();
        chunks.for_each_part(|record| {
            events.push(Event {
                time: record.timestamp,
                value: record.value.unwrap_or_default().into(),
            });
        });
        Copies(events.into())
    }
}

impl Parts for Copies {
    type Part<'a> = Event;

    fn for_each_part(&self, visit: impl FnMut(&Event)) {
        self.0.iter().for_each(visit);
    }
}
