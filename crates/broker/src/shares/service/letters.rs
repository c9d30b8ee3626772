//! Dead letters (KIP-1191): records that a share group rejects, or gets too often, go to a topic.
//!
//! One task writes the letters of all share-partitions, one share-partition after the other. It appends the letters of
//! some dead records, waits until they are durable, and then lets the ledger archive the records. So no record is archived
//! without its letter. A crash in between leaves the record dead: its letter is written again, with the same headers.
//!
//! A letter that cannot be written stays due, and its record stays dead. It counts as in flight, so that a group whose
//! letters fail comes to rest when as many records are dead as may be in flight.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millstream_base::{Offset, Timestamp};
use millstream_log::{AtLeast, LogError, Stream, StreamPartition};
use millstream_record::{Chunk, ChunkBuilder, ChunkError, Chunks, Compression, Header, Record};
use millstream_wire::{ResponseError, Uuid};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::ShareService;
use crate::groups::GroupName;
use crate::shares::record::Key;
use crate::shares::{DEAD_LETTERS_ENABLE, DEAD_LETTERS_PREFIX, DeadRecord, Death, ShareSettings};
use crate::user_streams::stream_of_users;

/// The most letters that are appended together.
const LETTERS_MAX: usize = 100;

/// The bytes of these letters, before the last one.
const LETTERS_BYTES: usize = 1 << 20;

/// The pause before the next try to write letters.
const PAUSE: Duration = Duration::from_secs(5);

/// The pause if only memory was missing.
const SHORT_PAUSE: Duration = Duration::from_millis(100);

/// The most that decompression waits for memory.
const MEMORY_WAIT_MAX: Duration = Duration::ZERO;

/// The headers of a letter that Kafka's brokers write, too.
mod header {
    pub const TOPIC: &[u8] = b"__dlq.errors.topic";
    pub const PARTITION: &[u8] = b"__dlq.errors.partition";
    pub const OFFSET: &[u8] = b"__dlq.errors.offset";
    pub const GROUP: &[u8] = b"__dlq.errors.group";
    pub const DELIVERY_COUNT: &[u8] = b"__dlq.errors.delivery.count";
    pub const MESSAGE: &[u8] = b"__dlq.errors.message";
}

/// The share-partitions with dead records.
#[derive(Default)]
pub struct Letters {
    due: Mutex<BTreeMap<Key, Due>>,
    /// Rung when letters are due.
    bell: Notify,
    written: AtomicU64,
}

/// When a share-partition's letters are tried next.
#[derive(Debug, Clone)]
struct Due {
    at: Instant,
    /// The reason why the last try failed, which the log of the program has.
    failed: Option<String>,
}

/// The reason why letters are not written.
#[derive(Debug, thiserror::Error)]
enum NotWritten {
    #[error(
        "the name of the topic {0:?} does not begin with {DEAD_LETTERS_PREFIX}: change errors.deadletterqueue.topic.name of the group"
    )]
    Name(String),
    #[error("there is no topic {0:?}: create it, with {DEAD_LETTERS_ENABLE}=true")]
    NoTopic(String),
    #[error("the topic {0:?} takes no dead letters: set its {DEAD_LETTERS_ENABLE}=true")]
    NotEnabled(String),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("the ledger of share groups fails: {0}")]
    Ledger(ResponseError),
    #[error("a letter does not fit into a batch: {0}")]
    Chunk(#[from] ChunkError),
}

impl Letters {
    /// Makes the letters of a share-partition due, unless they are.
    pub fn add(&self, key: &Key) {
        let mut due = self.due.lock();
        if !due.contains_key(key) {
            let at = Instant::now();
            due.insert(key.clone(), Due { at, failed: None });
            self.bell.notify_one();
        }
    }

    /// Makes the letters of a group due at once: its settings have changed.
    pub fn hurry(&self, group: &GroupName) {
        let mut due = self.due.lock();
        let of_group = due.iter_mut().filter(|(key, _)| key.group == *group);
        of_group.for_each(|(_, due)| due.at = Instant::now());
        self.bell.notify_one();
    }

    fn next(&self) -> Option<(Instant, Key)> {
        let due = self.due.lock();
        let next = due.iter().min_by_key(|(_, due)| due.at);
        next.map(|(key, due)| (due.at, key.clone()))
    }

    /// Tries the letters of a share-partition again later.
    fn postpone(&self, key: &Key, error: &NotWritten) {
        let is_short = matches!(
            error,
            NotWritten::Log(LogError::ReadBudget | LogError::DecompressionBusy { .. })
        );
        let why = error.to_string();
        let mut due = self.due.lock();
        let Some(due) = due.get_mut(key) else {
            return;
        };
        due.at = match is_short {
            true => Instant::now() + SHORT_PAUSE,
            false => Instant::now() + PAUSE,
        };
        if !is_short && due.failed.as_ref() != Some(&why) {
            let (group, partition) = (&key.group, key.partition.0);
            tracing::warn!(
                "dead letters of the share group {group:?} wait, of partition {partition}: {why}"
            );
            due.failed = Some(why);
        }
    }
}

impl ShareService {
    /// Returns how many dead letters were written since the start.
    pub fn dead_letters_written(&self) -> u64 {
        self.letters.written.load(Ordering::Relaxed)
    }

    /// Returns how many share-partitions have records whose dead letters have to be written.
    pub fn dead_letters_due(&self) -> usize {
        self.letters.due.lock().len()
    }

    /// Writes the letters of dead records, as long as the broker runs.
    pub async fn write_dead_letters(self: Arc<Self>) {
        loop {
            let rung = self.letters.bell.notified();
            let key = match self.letters.next() {
                None => {
                    rung.await;
                    continue;
                }
                Some((at, _)) if at > Instant::now() => {
                    // Either way there is a next one to look at.
                    let _ = timeout_at(at, rung).await;
                    continue;
                }
                Some((_, key)) => key,
            };
            match self.write_some(&key).await {
                Ok(true) => {}
                Ok(false) => self.done(&key),
                Err(error) => self.letters.postpone(&key, &error),
            }
        }
    }

    /// Forgets a share-partition whose letters are written.
    fn done(&self, key: &Key) {
        self.letters.due.lock().remove(key);
        // A record may have died since.
        if let Some(entry) = self.find(key) {
            let entry = entry.lock();
            if entry.shares.has_dead() && !entry.is_gone {
                self.letters.add(key);
            }
        }
    }

    /// Writes some letters of a share-partition; returns whether there may be more.
    async fn write_some(&self, key: &Key) -> Result<bool, NotWritten> {
        let Some(entry) = self.find(key) else {
            return Ok(false);
        };
        let mut dead: Vec<DeadRecord> = {
            let entry = entry.lock();
            match entry.is_gone {
                true => Vec::new(),
                false => entry.shares.dead().take(LETTERS_MAX).collect(),
            }
        };
        let id = Uuid::from_u128(key.topic.0);
        if dead.is_empty() {
            return Ok(false);
        }
        let source = self.log.stream_by_uuid(id)?;
        let settings = self.settings(&key.group);
        if let Some(topic) = &settings.dead_letter_topic {
            let lane = self.letter_box(topic, key)?;
            let chunk = Letter::chunk(key, &source, &lane, &settings, &mut dead, self)?;
            let appended = lane.append(&chunk)?;
            lane.durable(appended.next_offset).await?;
            let written = &self.letters.written;
            written.fetch_add(dead.len() as u64, Ordering::Relaxed);
        }
        let mut entry = entry.lock();
        if entry.is_gone {
            return Ok(false);
        }
        let mut draft = entry.shares.draft();
        for record in &dead {
            draft.bury(record.offset);
        }
        self.put(key, &mut entry, draft)
            .map_err(NotWritten::Ledger)?;
        drop(entry);
        // There is room for other records, and the next ones of their keys may be available.
        self.sessions.ring(&key.group);
        Ok(true)
    }

    /// The partition for the letters of a share-partition.
    fn letter_box(&self, topic: &str, key: &Key) -> Result<StreamPartition, NotWritten> {
        if !topic.starts_with(DEAD_LETTERS_PREFIX) {
            return Err(NotWritten::Name(topic.to_owned()));
        }
        let stream = match stream_of_users(&self.log, topic) {
            Err(LogError::UnknownStream { .. }) => {
                return Err(NotWritten::NoTopic(topic.to_owned()));
            }
            stream => stream?,
        };
        let enabled = stream.config().settings.get(DEAD_LETTERS_ENABLE).cloned();
        if !enabled.is_some_and(|enabled| enabled.eq_ignore_ascii_case("true")) {
            return Err(NotWritten::NotEnabled(topic.to_owned()));
        }
        let partition = key.partition.0.unsigned_abs() % stream.partition_count();
        Ok(stream.partition(partition)?)
    }
}

/// The parts of a letter that its record does not have.
struct Letter<'a> {
    key: &'a Key,
    topic: &'a str,
    dead: DeadRecord,
}

impl Letter<'_> {
    /// A chunk of letters, and only of as many records as fit: `dead` keeps these.
    fn chunk(
        key: &Key,
        source: &Stream,
        lane: &StreamPartition,
        settings: &ShareSettings,
        dead: &mut Vec<DeadRecord>,
        service: &ShareService,
    ) -> Result<Vec<u8>, NotWritten> {
        let now = service.clock.now();
        let bytes_max = lane.chunk_bytes_max();
        let mut builder = ChunkBuilder::new(Compression::None);
        let mut count = 0;
        for record in &*dead {
            let letter = Letter {
                key,
                topic: source.name(),
                dead: *record,
            };
            let copy = match settings.copies_dead_records {
                true => copy_of(source, key, record.offset)?,
                false => None,
            };
            let copy = copy.unwrap_or_default();
            let bytes = builder.len() + copy.bytes();
            if count > 0 && bytes > bytes_max.min(LETTERS_BYTES) {
                break;
            }
            // A record that the topic does not take leaves at least its origin.
            match bytes + HEADERS_BYTES > bytes_max {
                true => letter.push(&mut builder, now, &Copy::default())?,
                false => letter.push(&mut builder, now, &copy)?,
            }
            count += 1;
        }
        dead.truncate(count);
        Ok(builder.finish(None)?.to_vec())
    }

    fn push(
        &self,
        builder: &mut ChunkBuilder,
        now: Timestamp,
        copy: &Copy,
    ) -> Result<(), ChunkError> {
        let deliveries = self.dead.deliveries;
        let partition = self.key.partition.0.to_string();
        let offset = self.dead.offset.0.to_string();
        let count = deliveries.to_string();
        let message = match self.dead.why {
            Death::Rejected => "a member rejected the record".to_owned(),
            Death::Exhausted => format!("no member accepted the record in {deliveries} deliveries"),
        };
        let headers = copy.headers.iter().map(|(name, value)| Header {
            name,
            value: value.as_deref(),
        });
        let origin = [
            (header::TOPIC, self.topic.as_bytes()),
            (header::PARTITION, partition.as_bytes()),
            (header::OFFSET, offset.as_bytes()),
            (header::GROUP, self.key.group.as_bytes()),
            (header::DELIVERY_COUNT, count.as_bytes()),
            (header::MESSAGE, message.as_bytes()),
        ];
        let origin = origin.map(|(name, value)| Header {
            name,
            value: Some(value),
        });
        let headers: Vec<Header<'_>> = headers.chain(origin).collect();
        let (key, value) = (copy.key.as_deref(), copy.value.as_deref());
        builder.push(now, key, value, &headers)
    }
}

/// More than the headers of a letter take.
const HEADERS_BYTES: usize = 2 << 10;

/// A copied record.
#[derive(Default)]
struct Copy {
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Copy {
    fn of(record: &Record<'_>) -> Copy {
        let headers = record.headers();
        Copy {
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            headers: headers
                .map(|header| (header.name.to_vec(), header.value.map(<[u8]>::to_vec)))
                .collect(),
        }
    }

    fn bytes(&self) -> usize {
        let len = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let headers = self.headers.iter();
        let headers = headers.map(|(name, value)| name.len() + len(value) + 16);
        len(&self.key) + len(&self.value) + headers.sum::<usize>() + 64
    }
}

/// A copy of a record; `None` if the log has it no more, or cannot read it.
fn copy_of(source: &Stream, key: &Key, offset: Offset) -> Result<Option<Copy>, LogError> {
    let lane = source.partition(key.partition.0.unsigned_abs())?;
    let next = Offset(offset.0 + 1);
    let fetched = match lane.fetch(offset, next, 0, AtLeast::OneChunk) {
        Err(LogError::OffsetOutOfRange { .. }) => return Ok(None),
        fetched => fetched?,
    };
    for piece in fetched.into_bytes() {
        for chunk in Chunks::trusted(&piece) {
            match find(&lane, &chunk?, offset) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(error @ LogError::DecompressionBusy { .. }) => return Err(error),
                Err(error) => {
                    tracing::warn!(
                        "the dead letter of record {offset} of {} has no copy of it: {error}",
                        source.name()
                    );
                    return Ok(None);
                }
            }
        }
    }
    Ok(None)
}

fn find(
    lane: &StreamPartition,
    chunk: &Chunk<'_>,
    offset: Offset,
) -> Result<Option<Copy>, LogError> {
    lane.with_records(chunk, MEMORY_WAIT_MAX, |records| {
        for record in records {
            let record = record?;
            if record.offset == offset {
                return Ok(Some(Copy::of(&record)));
            }
        }
        Ok(None)
    })?
}
