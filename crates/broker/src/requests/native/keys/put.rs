//! Appends new versions of keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_base::{Offset, Timestamp, partition_of_key};
use millstream_log::{Appended, CHANGE_OVERHEAD_BYTES, Log, LogError, Stream, StreamPartition};
use millstream_record::{ChunkBuilder, Compression, Header, end_header, end_text};
use millstream_wire::native::{KeyToPut, PutKeysRequest, PutKeysResponse, StoredKey};

use super::KEYS_MAX;
use super::change::{change, check, needs_newest, ttl};
use super::secondary::Secondary;
use super::together::put_together;
use crate::broker::Broker;
use crate::client::Client;
use crate::error::response_error;
use crate::key_transactions::KeyTransactions;
use crate::native::keyed_stream;
use crate::native::refused::Refused;
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext};
use crate::requests::handle::{Handle, Refusal, errors, refuse_with_message, tell_throttle};
use crate::requests::rights::{Check, Checked, need_topic};
use crate::security::{Operation, Traffic};

/// An appended chunk that is not as durable yet as it has to be.
struct Waiting {
    /// The places of its records in the request.
    entries: Vec<usize>,
    partition: StreamPartition,
    appended: Appended,
}

/// Puts, changes and deletes keys, also under conditions and together.
impl Handle for PutKeysRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];
    const TRAFFIC: Option<Traffic> = Some(Traffic::Produced);

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_topic(client, Operation::Write, &self.stream)
    }

    refuse_with_message!();
    errors!(error_code, entries.error_code);
    tell_throttle!();

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(self.entries.len())
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        put(broker, self)
    }
}

/// Appends a version of each key, and answers when all are as durable as the stream's setting requires.
fn put(broker: &Arc<Broker>, request: PutKeysRequest) -> Reply {
    let stream = match stream_to_put(broker.log(), &request) {
        Ok(stream) => stream,
        Err(refused) => return refused.answer::<PutKeysResponse>().into(),
    };
    if request.all_or_none {
        return put_together(broker, stream, request.entries);
    }
    if request.entries.iter().any(needs_newest) {
        return change(broker, stream, request.entries);
    }
    let transactions = Arc::clone(broker.key_transactions());
    let now = broker.log().clock().now();
    let mut puts = Puts::new(&stream, &transactions, request.entries.len(), now);
    for (partition, entries) in puts.by_partition(&request.entries) {
        puts.put_partition(partition, &entries, &request.entries);
    }
    let Puts {
        response, waiting, ..
    } = puts;
    match waiting.is_empty() {
        true => response.into(),
        false => Reply::later(acknowledge(transactions, response, waiting)),
    }
}

fn stream_to_put(log: &Log, request: &PutKeysRequest) -> Result<Stream, Refused> {
    if request.entries.len() > KEYS_MAX {
        return Err(Refused::too_many("entries", KEYS_MAX));
    }
    keyed_stream(log, &request.stream)
}

/// The entries of a request, as they are appended.
struct Puts<'a> {
    stream: &'a Stream,
    transactions: &'a KeyTransactions,
    now: Timestamp,
    chunk: ChunkBuilder,
    response: PutKeysResponse,
    waiting: Vec<Waiting>,
}

impl<'a> Puts<'a> {
    fn new(
        stream: &'a Stream,
        transactions: &'a KeyTransactions,
        count: usize,
        now: Timestamp,
    ) -> Puts<'a> {
        Puts {
            stream,
            transactions,
            now,
            // The stream's own codec takes effect when the chunk is appended.
            chunk: ChunkBuilder::new(Compression::None),
            response: PutKeysResponse {
                entries: vec![StoredKey::default(); count],
                ..PutKeysResponse::default()
            },
            waiting: Vec::new(),
        }
    }

    /// Returns the places of the entries that can be put, by their partitions, and refuses the others.
    fn by_partition(&mut self, entries: &[KeyToPut]) -> BTreeMap<u32, Vec<usize>> {
        let partitions = self.stream.partition_count() as usize;
        let mut places: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (place, entry) in entries.iter().enumerate() {
            let partition = partition_of_key(&entry.key, partitions) as u32;
            self.response.entries[place].partition = partition;
            match check(entry) {
                Ok(()) => places.entry(partition).or_default().push(place),
                Err(refused) => refuse(&mut self.response, &[place], &refused),
            }
        }
        places
    }

    fn put_partition(&mut self, partition: u32, places: &[usize], entries: &[KeyToPut]) {
        let partition = match self.stream.partition(partition) {
            Ok(partition) => partition,
            Err(error) => return refuse(&mut self.response, places, &error.into()),
        };
        let bytes_max = partition.changes_bytes_max();
        let mut begun = Vec::new();
        for &place in places {
            let KeyToPut { key, value, .. } = &entries[place];
            let value = value.as_deref();
            let secondary = Secondary::of(&entries[place]);
            let bytes = CHANGE_OVERHEAD_BYTES + key.len() + value.map_or(0, <[u8]>::len);
            let bytes = bytes + secondary.bytes();
            if self.chunk.len() + bytes > bytes_max {
                self.append(&partition, std::mem::take(&mut begun));
            }
            let end = ttl(&entries[place]).map(|ttl| end_text(partition.keyed_now(), ttl));
            let end = end.as_deref().map(end_header).into_iter();
            let headers: Vec<Header<'_>> = end.chain(secondary.headers()).collect();
            let pushed = self.chunk.push(self.now, Some(key), value, &headers);
            match pushed {
                Ok(()) => begun.push(place),
                Err(error) => {
                    let refused = LogError::from(error).into();
                    refuse(&mut self.response, &[place], &refused);
                }
            }
        }
        self.append(&partition, begun);
    }

    /// Appends the chunk with the entries at these places, if there are any.
    fn append(&mut self, partition: &StreamPartition, places: Vec<usize>) {
        if places.is_empty() {
            return;
        }
        let chunk = self.chunk.finish(None).map_err(LogError::from);
        let appended = chunk.and_then(|chunk| partition.append(chunk));
        self.chunk.clear();
        match appended {
            Ok(appended) => {
                for (place, offset) in places.iter().zip(appended.base_offset.0..) {
                    self.response.entries[*place].version = Offset(offset);
                }
                if !partition.answers_at_once() || self.transactions.are_open() {
                    self.waiting.push(Waiting {
                        entries: places,
                        partition: partition.clone(),
                        appended,
                    });
                }
            }
            Err(error) => refuse(&mut self.response, &places, &error.into()),
        }
    }
}

/// Refuses the entries at these places.
pub fn refuse(response: &mut PutKeysResponse, places: &[usize], refused: &Refused) {
    for place in places {
        let entry = &mut response.entries[*place];
        *entry = StoredKey {
            partition: entry.partition,
            error_code: refused.code(),
            error_message: refused.clone().message(),
            ..StoredKey::default()
        };
    }
}

/// Waits until everything is as durable as it has to be before the answer, and look-ups see it.
async fn acknowledge(
    transactions: Arc<KeyTransactions>,
    mut response: PutKeysResponse,
    waiting: Vec<Waiting>,
) -> PutKeysResponse {
    for Waiting {
        entries,
        partition,
        appended,
    } in waiting
    {
        match partition.acknowledged(&appended).await {
            Ok(()) => transactions.seen(&partition, appended.next_offset).await,
            Err(error) => refuse_stored(&mut response, &entries, error),
        }
    }
    response
}

/// Refuses the entries at these places, which are stored but not as durable as they have to be. A change may take effect all the
/// same; a condition that does not hold has stored nothing.
pub fn refuse_stored(response: &mut PutKeysResponse, places: &[usize], error: LogError) {
    let plain = Refused::from(error.clone());
    let told = match error {
        LogError::UnknownStream { .. } => plain.clone(),
        error => Refused::new(
            response_error(&error),
            format!("{error}; the write may take effect all the same: read the key first"),
        ),
    };
    for place in places {
        let is_stored = response.entries[*place].error_code == 0;
        refuse(response, &[*place], if is_stored { &told } else { &plain });
    }
}
