//! Readers: each record that they get is right, in its place and once; and where records are missing they get an
//! error.

use std::net::SocketAddr;
use std::ops::{ControlFlow, Range};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use millstream_base::Offset;
use millstream_client::{
    ClientError, Consumer, ConsumerConfig, Decompressor, DeliveryMode, Fetched, OnDamage, Record,
    ResponseError, SkippedRecords, Start,
};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use super::books::{BACKOFF, Books, GROUP, Partition, client};
use crate::stamp::Stamp;

/// Something comes within this time, however busy the machine is: a record, or an error.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// Behind the last offset nothing needs to come; a server that knows of damage there reports it by then, or not at all.
const TAIL_WAIT: Duration = Duration::from_secs(3);

/// The interval between two checks whether the consumer has skipped all remaining records.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How a partition is read.
pub struct How {
    pub delivery: DeliveryMode,
    /// Damage is skipped.
    pub skips: bool,
    /// From its first record on, whichever that is, and not from offset 0.
    pub from_first: bool,
    /// It should hold all records before this offset.
    pub wanted: u64,
}

/// The findings of a reader.
#[derive(Default)]
pub struct Reading {
    /// Behind the last record that it was given.
    pub next: u64,
    /// The error that ended it.
    pub fault: Option<ReadFault>,
    /// Ranges of offsets that errors reported as skipped.
    skipped: Arc<Mutex<Vec<Range<u64>>>>,
    room: Vec<u8>,
}

/// An error that a reader got.
pub struct ReadFault {
    pub text: String,
    /// The server does not know the stream.
    pub is_unknown: bool,
}

/// Reads a partition from its beginning.
///
/// # Errors
/// When the server returns a wrong record, skips one without an error, or returns nothing.
pub async fn read(address: SocketAddr, partition: &Partition, how: &How) -> Result<Reading> {
    let reading = read_all(address, partition, how).await;
    reading.with_context(|| format!("{}, read by {:?}", partition.name(), how.delivery))
}

async fn read_all(address: SocketAddr, partition: &Partition, how: &How) -> Result<Reading> {
    let mut reading = Reading::default();
    let client = client(address);
    let config = ConsumerConfig {
        // A position that is out of range is an error.
        reset: None,
        delivery: how.delivery,
        on_damage: reading.on_damage(how.skips),
        auto_commit: None,
        ..ConsumerConfig::default()
    };
    let begun = async {
        let latest = [(partition.place(), Start::Latest)];
        let ends = client.offsets(&latest, config.isolation).await?;
        let end = ends.values().next().copied().unwrap_or_default();
        let first = match how.from_first {
            true => Start::Earliest,
            false => Start::At(Offset(0)),
        };
        let first = [(partition.place(), first)];
        let consumer = Consumer::assigned(&client, config, &first).await?;
        Ok::<_, ClientError>((end.0, consumer))
    };
    let begun = timeout(ANSWER_MAX, begun).await;
    let (end, mut consumer) = match begun.context("the server does not return the end")? {
        Ok(begun) => begun,
        Err(error) => return reading.ended_by(&error),
    };
    reading.next = consumer.positions().values().next().map_or(0, |at| at.0);
    loop {
        let wait = match reading.next < end {
            true => ANSWER_MAX,
            false if reading.next < how.wanted => TAIL_WAIT,
            false => return Ok(reading),
        };
        let started_at = Instant::now();
        let mut next = pin!(consumer.next());
        let fetched = loop {
            match timeout(LOOK_EVERY, next.as_mut()).await {
                Ok(fetched) => break fetched,
                // An error reported that nothing more can be read, and the consumer now waits for new records.
                Err(_) if reading.next < end && reading.is_skipped(reading.next..end) => {
                    return Ok(reading);
                }
                Err(_) if started_at.elapsed() < wait => {}
                Err(_) if reading.next < end => bail!(
                    "neither records nor an error come within {wait:?} from offset {} on, and it ends at {end}",
                    reading.next
                ),
                Err(_) => return Ok(reading),
            }
        };
        match fetched {
            Ok(fetched) => {
                if let Some(error) = reading.take(partition, &fetched)? {
                    return reading.ended_by(&error);
                }
            }
            Err(error) => return reading.ended_by(&error),
        }
    }
}

impl Reading {
    fn on_damage(&self, skips: bool) -> OnDamage {
        if !skips {
            return OnDamage::Fail;
        }
        let skipped = Arc::clone(&self.skipped);
        OnDamage::Skip(Arc::new(move |records: &SkippedRecords| {
            let Range { start, end } = records.offsets;
            skipped.lock().push(start.0..end.0);
        }))
    }

    /// Checks records; returns the client's error about them.
    fn take(&mut self, partition: &Partition, fetched: &Fetched) -> Result<Option<ClientError>> {
        let before = self.next;
        let mut wrong = None;
        let given = fetched.each(&mut Decompressor::default(), |record| {
            if wrong.is_none() {
                wrong = self.check(partition, record).err();
            }
            ControlFlow::Continue(())
        });
        match given {
            // It may have been overwritten while it was looked at, and comes again.
            Err(ClientError::TakenBack { .. }) => {
                self.next = before;
                return Ok(None);
            }
            Err(error) => return Ok(Some(error)),
            Ok(()) => {}
        }
        match wrong {
            Some(wrong) => Err(wrong),
            None => Ok(None),
        }
    }

    fn check(&mut self, partition: &Partition, record: &Record<'_>) -> Result<()> {
        let offset = record.offset.0;
        let due = self.next;
        let is_reported = self.is_skipped(due..offset);
        ensure!(
            offset >= due && is_reported,
            "offset {offset} comes where {due} is due, without an error"
        );
        self.next = offset + 1;
        let stamp = Stamp::read(record.value.unwrap_or_default(), &mut self.room)
            .with_context(|| format!("the record at offset {offset}"))?;
        ensure!(
            stamp.writer == partition.writer && stamp.sequence == offset,
            "{stamp:?} at offset {offset} of writer {}",
            partition.writer
        );
        ensure!(offset < partition.sent(), "{stamp:?} was never sent");
        Ok(())
    }

    /// Returns whether errors have reported all these offsets as skipped.
    fn is_skipped(&self, offsets: Range<u64>) -> bool {
        let skipped = self.skipped.lock();
        let mut at = offsets.start;
        while at < offsets.end {
            let Some(range) = skipped.iter().find(|range| range.contains(&at)) else {
                return false;
            };
            at = range.end;
        }
        true
    }

    /// Notes an error about missing records.
    ///
    /// # Errors
    /// When the error is none of the server's.
    fn ended_by(mut self, error: &ClientError) -> Result<Reading> {
        let is_of_server = match error {
            ClientError::Refused { .. } | ClientError::Damaged { .. } => true,
            ClientError::Timeout {
                trouble: Some(trouble),
                ..
            } => trouble.response_error().is_some(),
            _ => false,
        };
        ensure!(is_of_server, "from offset {} on: {error}", self.next);
        self.fault = Some(ReadFault {
            text: error.to_string(),
            is_unknown: matches!(
                error.response_error(),
                Some(ResponseError::UnknownTopicOrPartition | ResponseError::UnknownTopicId)
            ),
        });
        Ok(self)
    }
}

/// The positions that the group has committed are there.
pub async fn check_positions(books: &Books, address: SocketAddr) -> Result<()> {
    let committed = books.committed.lock().clone();
    if committed.is_empty() {
        return Ok(());
    }
    let client = client(address);
    let started_at = Instant::now();
    let found = loop {
        match client.group_offsets(GROUP).await {
            Ok(found) => break found.offsets,
            Err(error) if error.is_retriable() && started_at.elapsed() < ANSWER_MAX => {
                sleep(BACKOFF).await;
            }
            Err(error) => return Err(error).context("the group's positions"),
        }
    };
    for (place, offset) in committed {
        ensure!(
            found.get(&place) == Some(&offset),
            "the group has committed offset {offset} of {place:?}, and has {:?}",
            found.get(&place)
        );
    }
    Ok(())
}
