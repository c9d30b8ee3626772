//! The letters of a stream, up to where it ends now.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::time::Duration;

use millstream_base::Offset;
use millstream_client::{
    Consumer, ConsumerConfig, DeliveryMode, Isolation, Scratch, Start, TopicPartition,
};
use millstream_connect::StoredLetter;
use tokio::time::timeout;

use super::{group_of, stream_of};
use crate::remote::{Remote, explained};
use crate::stop::Stop;

/// How long it waits for records before it looks whether it is time to end.
const PAUSE: Duration = Duration::from_millis(100);

/// A letter, and where it is.
pub struct Letter {
    pub place: TopicPartition,
    pub offset: Offset,
    pub letter: StoredLetter,
}

/// How far the letters of a flow are replayed. What was committed of another stream of this name says nothing: a flow that
/// begins anew begins its dead letters anew.
pub fn replayed(remote: &Remote, flow: &str) -> anyhow::Result<HashMap<TopicPartition, Offset>> {
    let id = stream_id(remote, flow)?;
    let found = remote.wait(remote.client().group_offsets(&group_of(flow)))?;
    let of_stream = |place: &TopicPartition| found.metadata.get(place) == Some(&id);
    let mut done = found.offsets.clone();
    done.retain(|place, _| of_stream(place));
    Ok(done)
}

/// What tells the stream of a flow's letters from others that had its name.
pub fn stream_id(remote: &Remote, flow: &str) -> anyhow::Result<String> {
    let topic = remote.wait(remote.client().topic(&stream_of(flow)))?;
    Ok(topic.id.to_string())
}

pub struct Letters<'a> {
    remote: &'a Remote,
    consumer: Consumer,
    ends: HashMap<TopicPartition, Offset>,
}

impl<'a> Letters<'a> {
    /// Begins behind what `done` says of a partition, and at the beginning of others, or where records are gone.
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
            // What is handed out stays valid, whatever the server does.
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

    /// Some letters, in the order of their partitions, of which there is one; `None` at the end.
    ///
    /// # Errors
    /// When the server does not give them.
    pub fn next(&mut self, stop: &Stop) -> anyhow::Result<Option<Vec<Letter>>> {
        while !stop.is_set() && !self.is_at_end() {
            let next = async { timeout(PAUSE, self.consumer.next()).await };
            let Ok(fetched) = self.remote.runtime().block_on(next) else {
                continue;
            };
            let fetched = fetched.map_err(explained)?;
            let end = self.ends.get(fetched.place()).copied().unwrap_or_default();
            let mut letters = Vec::new();
            let read = fetched.each(&mut Scratch::default(), |record| {
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
