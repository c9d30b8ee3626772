//! A join of two keyed streams by a secondary key: the size of its index, and a change that leads to very many rows.

mod fan_out;
mod space;

use anyhow::Result;
use millstream_base::{ProducerId, Timestamp, partition_of_key};
use millstream_connect::StreamProducer;
use millstream_log::{CLEANUP_POLICY, COMPACT, Log, SECONDARY, Stream, StreamConfig};
use millstream_record::Header;

use crate::measure::Bench;
use crate::report::Case;

pub use fan_out::FanOut;

pub const KEY_JOIN: &str = "key-join";

/// The index of the orders by their users, and its header.
const USER: &str = "user";
const USER_HEADER: &[u8] = b"k.user";

/// The partitions of each stream.
const PARTITIONS: u32 = 4;

pub fn key_join(bench: &Bench) -> Result<Vec<Case>> {
    let mut cases = space::space(bench)?;
    cases.extend(fan_out::fan_out(bench)?);
    Ok(cases)
}

/// Creates a keyed stream; orders also have the index of their users.
fn create(log: &Log, name: &str, has_index: bool, config: StreamConfig) -> Result<Stream> {
    let mut settings = vec![(CLEANUP_POLICY, COMPACT)];
    if has_index {
        settings.push((SECONDARY, USER));
    }
    let settings = settings.into_iter();
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Ok(log.create_stream(
        name,
        StreamConfig {
            streamlets: PARTITIONS,
            settings: settings.collect(),
            ..config
        },
    )?)
}

/// Puts records of keys that are numbers.
struct Writer {
    producers: Vec<StreamProducer>,
}

impl Writer {
    fn new(stream: &Stream) -> Result<Writer> {
        let producer =
            |partition| StreamProducer::for_partition(stream, partition, ProducerId::NONE);
        let producers = (0..PARTITIONS).map(producer);
        Ok(Writer {
            producers: producers.collect::<Result<_, _>>()?,
        })
    }

    /// Puts a record, an order with its user. It is appended with the next ones, or by [`flush`](Self::flush).
    fn put(&mut self, key: u64, user: Option<u64>, value: &[u8]) -> Result<()> {
        let key = key.to_be_bytes();
        let user = user.map(u64::to_be_bytes);
        let header = user.as_ref().map(|user| Header {
            name: USER_HEADER,
            value: Some(user),
        });
        let producer = &mut self.producers[partition_of_key(&key, PARTITIONS as usize)];
        let time = Timestamp(1_700_000_000_000);
        Ok(producer.push(time, Some(&key), Some(value), header.as_slice())?)
    }

    /// Appends the records, without waiting for the disk.
    fn send(&mut self) -> Result<()> {
        for producer in &mut self.producers {
            producer.send()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        for producer in &mut self.producers {
            producer.flush()?;
        }
        Ok(())
    }
}
