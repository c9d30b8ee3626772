//! Reads the changes of a state element in a stream of a server: all of them, or those of single keys.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use millstream_base::{KeyRange, Offset, partition_of_key};
use millstream_client::{
    Client, ClientError, Consumer, ConsumerConfig, Decompressor, Isolation, KeyRecord, Start,
    TopicPartition,
};
use millstream_flow::{BoxError, ChangelogReader, RestoreChange, ValuePage};
use tokio::time::sleep;

use super::changelog::{ChangelogError, Restoring, Unread, is_large, of_stream};
use crate::flow_transactions::FlowTransactionId;
use crate::keys::server::{ServerKeys, unless_stopped};
use crate::network::Network;
use crate::outage::Outage;

/// The number of times that the server is asked whether the transactions of other producers have ended, …
const UNDECIDED_TRIES: u32 = 50;

/// … and the pause between two questions.
const UNDECIDED_PAUSE: Duration = Duration::from_millis(100);

/// The bytes of values at which a page of a range ends.
const PAGE_BYTES_MAX: usize = 1 << 20;

/// A reader of the changes that were committed when it was made.
pub struct ServerReader {
    /// Its connections are its own: nothing waits for its answers.
    client: Client,
    network: Arc<Network>,
    stream: Arc<str>,
    keys: ServerKeys,
    /// By partition: the end of the committed changes when the reader was made. Changes behind it are of this run.
    partitions: Vec<(TopicPartition, Offset)>,
    /// The checkpoint that the flow resumes from, if it does.
    resumed: Option<u64>,
    is_large: bool,
}

impl ServerReader {
    /// Makes a reader, before this rank appends; `own` is the flow's transactions of the element.
    ///
    /// # Errors
    /// When first records were removed, or a transaction of another program hides changes.
    pub async fn new(
        client: &Client,
        network: &Arc<Network>,
        stream: &Arc<str>,
        own: Option<&FlowTransactionId>,
        resumed: Option<u64>,
    ) -> Result<ServerReader, BoxError> {
        let client = client.separate();
        let topic = client.topic(stream).await?;
        let places: Vec<TopicPartition> = topic.partitions().collect();
        let ends = ends(&client, stream, &places, own).await?;
        let starts = at_all(&places, Start::Earliest);
        let earliest = client.offsets(&starts, Isolation::Committed).await?;
        let partitions = places.into_iter().map(|place| {
            let end = ends.get(&place).copied().unwrap_or_default();
            (place, end)
        });
        let mut reader = ServerReader {
            keys: ServerKeys::new(client.clone(), network, stream),
            network: Arc::clone(network),
            stream: Arc::clone(stream),
            partitions: partitions.collect(),
            resumed,
            is_large: false,
            client,
        };
        for (place, earliest) in &earliest {
            reader.restoring(place).check_start(earliest.0)?;
        }
        reader.is_large = reader.has_many_changes().await?;
        Ok(reader)
    }

    async fn has_many_changes(&self) -> Result<bool, ClientError> {
        let records = self.partitions.iter().map(|(_, end)| end.0).sum();
        if is_large(records, 0) {
            return Ok(true);
        }
        let described = self.client.stream(&self.stream).await?;
        let bytes = described.lanes.iter().map(|lane| lane.bytes.0).sum();
        Ok(is_large(records, bytes))
    }

    fn restoring(&self, place: &TopicPartition) -> Restoring<'_> {
        Restoring {
            stream: &self.stream,
            partition: place.partition.unsigned_abs(),
            partitions: self.partitions.len(),
            resumed: self.resumed,
        }
    }

    /// Hands over all changes.
    pub async fn read(&self, each: &mut RestoreChange<'_>) -> Result<(), BoxError> {
        let left = self.partitions.iter().filter(|(_, end)| end.0 > 0);
        let mut left: BTreeMap<&TopicPartition, Offset> =
            left.map(|(place, end)| (place, *end)).collect();
        let starts = at_all(left.keys().copied(), Start::At(Offset(0)));
        let config = ConsumerConfig {
            // Missing changes are an error.
            reset: None,
            ..ConsumerConfig::default()
        };
        let mut consumer = Consumer::assigned(&self.client, config, &starts).await?;
        let mut read_whole = BTreeSet::new();
        let mut decompressor = Decompressor::default();
        let mut unread = Unread::default();
        while !left.is_empty() {
            let fetched = consumer.next().await?;
            let place = fetched.place().clone();
            let Some(end) = left.get(&place).copied() else {
                continue;
            };
            let restoring = self.restoring(&place);
            let mut restored = Ok(());
            fetched.each(&mut decompressor, |record| {
                if record.offset < end {
                    restored = restoring.restore(record, each, &mut unread);
                }
                match restored {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            })?;
            restored?;
            if fetched.next() >= end {
                left.remove(&place);
                // This run appends behind the end.
                read_whole.insert(place);
                consumer.set_paused(read_whole.clone());
            }
        }
        Ok(unread.check()?)
    }

    async fn get_all(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, BoxError> {
        let found = keys.iter().zip(self.keys.get(keys).await?);
        let values =
            found.map(|(key, found)| found.map(|found| self.value(key, found)).transpose());
        Ok(values.collect::<Result<_, _>>()?)
    }

    async fn range_of_all(&self, range: &KeyRange, limit: usize) -> Result<ValuePage, BoxError> {
        let mut page = ValuePage::default();
        let mut bytes = 0;
        let mut scan = self.client.keyed(&self.stream).scan(range.clone());
        let mut outage = Outage::new(self.client.config());
        loop {
            let entry = match scan.next().await {
                Ok(Some(entry)) => entry,
                Ok(None) => break,
                Err(error) => {
                    outage.wait(error).await?;
                    continue;
                }
            };
            outage.end();
            if page.values.len() == limit || bytes > PAGE_BYTES_MAX {
                page.next = Some(entry.key.to_vec());
                break;
            }
            bytes += entry.newest.value.len();
            let value = entry.newest.value.to_vec();
            page.values.push((entry.key.to_vec(), value));
        }
        Ok(page)
    }

    /// Returns the ends of the partitions, in their order.
    async fn ends_of(&self, isolation: Isolation) -> Result<Vec<u64>, BoxError> {
        let places = self.partitions.iter().map(|(place, _)| place);
        let asked = at_all(places.clone(), Start::Latest);
        let mut outage = Outage::new(self.client.config());
        let ends = loop {
            match self.client.offsets(&asked, isolation).await {
                Ok(ends) => break ends,
                Err(error) => outage.wait(error).await?,
            }
        };
        Ok(places
            .map(|it| ends.get(it).map_or(0, |end| end.0))
            .collect())
    }

    /// Waits for an answer of the server.
    fn wait<T>(
        &self,
        is_stopped: &AtomicBool,
        work: impl Future<Output = Result<T, BoxError>>,
    ) -> Result<T, BoxError> {
        let done = self.keys.wait(is_stopped, work);
        done.map_err(|error| of_stream(&self.stream, error))
    }

    fn value(&self, key: &[u8], found: KeyRecord) -> Result<Vec<u8>, ChangelogError> {
        let (place, end) = &self.partitions[partition_of_key(key, self.partitions.len())];
        // Later ones are of this run.
        if found.newest.version < *end {
            let headers = found.headers.iter();
            let headers = headers.map(|it| (&it.name[..], it.value.as_deref()));
            let restoring = self.restoring(place);
            restoring.check_checkpoint(found.newest.version, headers)?;
        }
        Ok(found.newest.value.to_vec())
    }
}

impl ChangelogReader for ServerReader {
    fn is_large(&self) -> bool {
        self.is_large
    }

    fn get(
        &self,
        keys: &[Vec<u8>],
        is_stopped: &AtomicBool,
    ) -> Result<Vec<Option<Vec<u8>>>, BoxError> {
        self.wait(is_stopped, self.get_all(keys))
    }

    fn read_all(
        &self,
        is_stopped: &AtomicBool,
        each: &mut RestoreChange<'_>,
    ) -> Result<(), BoxError> {
        let read = self
            .network
            .wait(unless_stopped(is_stopped, self.read(each)));
        read.map(drop)
            .map_err(|error| of_stream(&self.stream, error))
    }

    fn range(
        &self,
        range: &KeyRange,
        limit: usize,
        is_stopped: &AtomicBool,
    ) -> Result<ValuePage, BoxError> {
        self.wait(is_stopped, self.range_of_all(range, limit))
    }

    fn ends(&self, is_stopped: &AtomicBool) -> Result<Vec<u64>, BoxError> {
        self.wait(is_stopped, self.ends_of(Isolation::Uncommitted))
    }

    fn is_stable(&self, ends: &[u64], is_stopped: &AtomicBool) -> Result<bool, BoxError> {
        let stable = self.wait(is_stopped, self.ends_of(Isolation::Committed))?;
        Ok(stable.iter().zip(ends).all(|(stable, end)| stable >= end))
    }
}

fn at_all<'a>(
    places: impl IntoIterator<Item = &'a TopicPartition>,
    start: Start,
) -> Vec<(TopicPartition, Start)> {
    let places = places.into_iter();
    places.map(|place| (place.clone(), start)).collect()
}

/// Returns the ends of the committed changes. Fails if a transaction of another program hides changes; other ranks of
/// this flow may have begun already.
async fn ends(
    client: &Client,
    stream: &str,
    places: &[TopicPartition],
    own: Option<&FlowTransactionId>,
) -> Result<HashMap<TopicPartition, Offset>, BoxError> {
    let asked = at_all(places, Start::Latest);
    let undecided = |place: &TopicPartition, producer: &str| ChangelogError::Undecided {
        stream: stream.to_owned(),
        partition: place.partition.unsigned_abs(),
        producer: producer.to_owned(),
    };
    let mut last_open = None;
    for _ in 0..UNDECIDED_TRIES {
        // In this order, so that new records look undecided, and not the other way round.
        let committed = client.offsets(&asked, Isolation::Committed).await?;
        let all = client.offsets(&asked, Isolation::Uncommitted).await?;
        let open = places
            .iter()
            .find(|place| committed.get(place) < all.get(place));
        let Some(open) = open else {
            return Ok(committed);
        };
        let transactions = client.transactions().await?;
        let here = transactions
            .iter()
            .filter(|it| it.is_open() && it.partitions.iter().any(|at| at.topic == open.topic));
        let (own, others): (Vec<_>, Vec<_>) = here.partition(|it| is_own(&it.id, own));
        if let Some(other) = others.first() {
            return Err(undecided(open, &other.id).into());
        }
        if !own.is_empty() {
            return Ok(committed);
        }
        last_open = Some(open);
        sleep(UNDECIDED_PAUSE).await;
    }
    match last_open {
        Some(open) => Err(undecided(open, "another user").into()),
        None => unreachable!("each try found one"),
    }
}

fn is_own(id: &str, own: Option<&FlowTransactionId>) -> bool {
    let parsed = FlowTransactionId::parse(id);
    parsed
        .zip(own)
        .is_some_and(|(one, own)| (&one.flow, &one.sink) == (&own.flow, &own.sink))
}
