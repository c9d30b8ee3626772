//! The letters of a stream, up to its current end.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::time::Duration;

use millstream_base::Offset;
use millstream_client::{
    Consumer, ConsumerConfig, Decompressor, DeliveryMode, Isolation, Start, TopicPartition,
};
use millstream_connect::StoredLetter;
use tokio::time::timeout;

use super::group_of;
use crate::remote::{Remote, explained};
use crate::stop::Stop;

/// How long the reader waits for records before it checks for a stop signal.
const PAUSE: Duration = Duration::from_millis(100);

/// A letter and its position.
pub struct Letter {
    pub place: TopicPartition,
    pub offset: Offset,
    pub letter: StoredLetter,
}

/// Returns the position up to which a flow's letters in a stream are replayed. Ignores positions of an earlier stream
/// with this name, since a flow that starts anew also starts its dead letters anew.
pub fn replayed(
    remote: &Remote,
    flow: &str,
    stream: &str,
) -> anyhow::Result<HashMap<TopicPartition, Offset>> {
    let id = stream_id(remote, stream)?;
    let found = remote.wait(remote.client().group_offsets(&group_of(flow)))?;
    let of_stream = |place: &TopicPartition| found.metadata.get(place) == Some(&id);
    let mut done = found.offsets.clone();
    done.retain(|place, _| of_stream(place));
    Ok(done)
}

/// Returns the ID that distinguishes a stream of letters from earlier ones with the same name.
pub fn stream_id(remote: &Remote, stream: &str) -> anyhow::Result<String> {
    let topic = remote.wait(remote.client().topic(stream))?;
    Ok(topic.id.to_string())
}

pub struct Letters<'a> {
    remote: &'a Remote,
    consumer: Consumer,
    ends: HashMap<TopicPartition, Offset>,
}

impl<'a> Letters<'a> {
    /// Starts each partition at its position in `done`; starts at the earliest record if there is none, or if
    /// retention has removed that record.
    pub fn open(
        remote: &'a Remote,
        stream: &str,
        done: &HashMap<TopicPartition, Offset>,
    ) -> anyhow::Result<Letters<'a>> {
        let client = remote.client();
        let topic = remote.wait(client.topic(stream))?;
        let places: Vec<TopicPartition> = topic.partitions().collect();
        let asked = |start| -> Vec<_> {
            let places = places.iter();
            places.map(|place| (place.clone(), start)).collect()
        };
        let firsts = remote.wait(client.offsets(&asked(Start::Earliest), Isolation::Committed))?;
        let ends = remote.wait(client.offsets(&asked(Start::Latest), Isolation::Committed))?;
        let start = |place: &TopicPartition| {
            let of = |offsets: &HashMap<_, Offset>| offsets.get(place).copied();
            let first = of(&firsts).unwrap_or_default();
            let kept = first..=of(&ends).unwrap_or_default();
            let start = of(done).filter(|done| kept.contains(done)).unwrap_or(first);
            (place.clone(), Start::At(start))
        };
        let starts: Vec<_> = places.iter().map(start).collect();
        let config = ConsumerConfig {
            // Records already returned stay valid, whatever the server does.
            delivery: DeliveryMode::Pull,
            reset: None,
            ..ConsumerConfig::default()
        };
        Ok(Letters {
            consumer: remote.wait(Consumer::assigned(client, config, &starts))?,
            ends,
            remote,
        })
    }

    /// Returns the next letters, in the order of their partition; `None` at the end.
    ///
    /// # Errors
    /// If the server fails the fetch.
    pub fn next(&mut self, stop: &Stop) -> anyhow::Result<Option<Vec<Letter>>> {
        while !stop.is_set() && !self.is_at_end() {
            let next = async { timeout(PAUSE, self.consumer.next()).await };
            let Ok(fetched) = self.remote.runtime().block_on(next) else {
                continue;
            };
            let fetched = fetched.map_err(explained)?;
            let end = self.ends.get(fetched.place()).copied().unwrap_or_default();
            let mut letters = Vec::new();
            let read = fetched.each(&mut Decompressor::default(), |record| {
                if record.offset >= end {
                    return ControlFlow::Break(());
                }
                letters.push(Letter {
                    place: fetched.place().clone(),
                    offset: record.offset,
                    letter: StoredLetter::read(record),
                });
                ControlFlow::Continue(())
            });
            read.map_err(explained)?;
            if !letters.is_empty() {
                return Ok(Some(letters));
            }
        }
        Ok(None)
    }

    fn is_at_end(&self) -> bool {
        let positions: BTreeMap<TopicPartition, Offset> = self.consumer.positions();
        let is_at_end = |(place, next): (&TopicPartition, &Offset)| {
            self.ends.get(place).is_none_or(|end| next >= end)
        };
        positions.iter().all(is_at_end)
    }
}
