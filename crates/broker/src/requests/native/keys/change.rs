//! Changes keys under conditions, and adds to their values.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Offset, partition_of_key};
use millstream_log::{
    ChangeError, Changed, KeyChange, KeyCondition, NewValue, Stream, StreamPartition,
};
use millstream_record::Header;
use millstream_wire::ResponseError;
use millstream_wire::native::{self, KeyToPut, PutKeysResponse, StoredKey};

use super::put::{refuse, refuse_stored};
use super::secondary::{Secondary, check_secondary};
use super::{check_key, not_done};
use crate::broker::Broker;
use crate::error::response_error;
use crate::key_transactions::KeyTransactions;
use crate::native::refused::Refused;
use crate::reply::Reply;

/// Returns whether an entry depends on the newest version of its key.
pub fn needs_newest(entry: &KeyToPut) -> bool {
    entry.add.is_some() || entry.condition != native::KeyCondition::None
}

/// Returns how long the new value of an entry lives; `None` for as long as the stream's setting says.
pub fn ttl(entry: &KeyToPut) -> Option<Duration> {
    let ms = entry.ttl_ms.and_then(|ms| u64::try_from(ms).ok());
    ms.map(Duration::from_millis)
}

/// The entries of one partition.
struct Share {
    partition: StreamPartition,
    /// Their places in the request.
    places: Vec<usize>,
}

/// The changes of a partition, which are answered when the records before an offset are as durable as they have to be.
struct Waiting {
    share: Share,
    answer_at: Offset,
}

/// Changes the keys whose conditions hold. Later requests of the connection come after that; the answer comes when everything
/// is as durable as the stream's setting requires.
pub fn change(broker: &Arc<Broker>, stream: Stream, entries: Vec<KeyToPut>) -> Reply {
    let (reads, threads) = (Arc::clone(broker.key_reads()), broker.key_changes().clone());
    let transactions = Arc::clone(broker.key_transactions());
    Reply::Alone(Box::pin(async move {
        let mut response = PutKeysResponse {
            entries: vec![StoredKey::default(); entries.len()],
            ..PutKeysResponse::default()
        };
        let shares = shares(&stream, &entries, &mut response);
        let partitions = shares.iter().map(|share| share.partition.clone());
        let partitions: Vec<StreamPartition> = partitions.collect();
        reads.catch_up(&partitions).await;
        let changed = threads.run(move || {
            let change = |share| change_share(share, &entries, &mut response);
            let waiting: Vec<Waiting> = shares.into_iter().filter_map(change).collect();
            (response, waiting)
        });
        match changed.await {
            Some((response, waiting)) => Reply::later(answer(transactions, response, waiting)),
            None => not_done().answer::<PutKeysResponse>().into(),
        }
    }))
}

/// Returns the entries that may change keys, by partition, and refuses the others.
fn shares(stream: &Stream, entries: &[KeyToPut], response: &mut PutKeysResponse) -> Vec<Share> {
    let partitions = stream.partition_count() as usize;
    let mut shares: BTreeMap<u32, Share> = BTreeMap::new();
    for (place, entry) in entries.iter().enumerate() {
        let index = partition_of_key(&entry.key, partitions) as u32;
        response.entries[place].partition = index;
        if let Err(refused) = check(entry) {
            refuse(response, &[place], &refused);
            continue;
        }
        if let Some(share) = shares.get_mut(&index) {
            share.places.push(place);
            continue;
        }
        let places = vec![place];
        match stream.partition(index) {
            Ok(partition) => drop(shares.insert(index, Share { partition, places })),
            Err(error) => refuse(response, &places, &error.into()),
        }
    }
    shares.into_values().collect()
}

/// Checks key and value of an entry.
pub fn check(entry: &KeyToPut) -> Result<(), Refused> {
    check_key(&entry.key)?;
    check_secondary(entry)?;
    let refused = |why| Err(Refused::new(ResponseError::InvalidRequest, why));
    match entry.ttl_ms {
        Some(..=0) => return refused("a time to live must have 1 ms or more"),
        Some(_) if entry.value.is_none() && entry.add.is_none() => {
            return refused("the entry deletes its key, so it cannot have a time to live");
        }
        _ => {}
    }
    match (&entry.value, entry.add) {
        (Some(_), Some(_)) => {
            refused("the entry has a value and a number to add, and may have only one of them")
        }
        _ => Ok(()),
    }
}

/// Changes the keys of a partition. Returns what the answer waits for.
fn change_share(
    share: Share,
    entries: &[KeyToPut],
    response: &mut PutKeysResponse,
) -> Option<Waiting> {
    let secondary = share.places.iter();
    let secondary = secondary.map(|place| Secondary::of(&entries[*place]));
    let secondary: Vec<Secondary<'_>> = secondary.collect();
    let headers = secondary.iter().map(|keys| keys.headers().collect());
    let headers: Vec<Vec<Header<'_>>> = headers.collect();
    let changes = share.places.iter().zip(&headers);
    let changes = changes.map(|(place, headers)| of_entry(&entries[*place], headers));
    let changes: Vec<KeyChange<'_>> = changes.collect();
    match share.partition.change(&changes) {
        Ok(changed) => {
            for (place, outcome) in share.places.iter().zip(changed.outcomes) {
                fill(&mut response.entries[*place], outcome);
            }
            let answer_at = changed.answer_at;
            Some(Waiting { share, answer_at })
        }
        Err(error) => {
            refuse(response, &share.places, &error.into());
            None
        }
    }
}

pub fn condition(entry: &KeyToPut) -> KeyCondition {
    match entry.condition {
        native::KeyCondition::None => KeyCondition::Any,
        native::KeyCondition::Absent => KeyCondition::Absent,
        native::KeyCondition::Version => KeyCondition::Version(entry.version),
        native::KeyCondition::Present => KeyCondition::Present,
    }
}

fn of_entry<'a>(entry: &'a KeyToPut, secondary: &'a [Header<'a>]) -> KeyChange<'a> {
    KeyChange {
        key: &entry.key,
        condition: condition(entry),
        value: match (&entry.value, entry.add) {
            (_, Some(number)) => NewValue::Add(number),
            (Some(value), None) => NewValue::Put(value),
            (None, None) => NewValue::Delete,
        },
        ttl: ttl(entry),
        secondary,
    }
}

pub fn fill(entry: &mut StoredKey, outcome: Result<Changed, ChangeError>) {
    let refused = match outcome {
        Ok(changed) => {
            entry.version = changed.version;
            entry.sum = changed.sum;
            return;
        }
        Err(refused) => refused,
    };
    let code = match &refused {
        ChangeError::OtherVersion { newest } => {
            entry.newest = *newest;
            ResponseError::InvalidUpdateVersion
        }
        ChangeError::NotANumber { .. } | ChangeError::Overflow { .. } => {
            ResponseError::InvalidRequest
        }
        ChangeError::Undecided => ResponseError::ConcurrentTransactions,
        ChangeError::NotAlone => ResponseError::OperationNotAttempted,
        ChangeError::Log(error) => response_error(error),
    };
    let refused = Refused::new(code, refused.to_string());
    entry.error_code = refused.code();
    entry.error_message = refused.message();
}

/// Waits until everything is as durable as it has to be before the answer, also the versions because of which conditions do
/// not hold.
async fn answer(
    transactions: Arc<KeyTransactions>,
    mut response: PutKeysResponse,
    waiting: Vec<Waiting>,
) -> PutKeysResponse {
    for Waiting { share, answer_at } in waiting {
        match share.partition.answered(answer_at).await {
            Ok(()) => transactions.seen(&share.partition, answer_at).await,
            Err(error) => refuse_stored(&mut response, &share.places, error),
        }
    }
    response
}
