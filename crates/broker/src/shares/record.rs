//! The records of share-partitions in the ledger, byte for byte.
//!
//! [`Writer`] defines the encoding of numbers and texts.
//!
//! ```text
//! kind  key                                   value
//! 1     group: text, topic u128,              share-partition: start offset u64, count u32, and as many runs: records
//!       partition i32                         u64, deliveries i16 (0 finished, -1 never
//!                                             delivered; with a dead letter to write: -2n of n, if the last was rejected,
//!                                             else -2n-1; -32768 in a transaction, followed by deliveries i16, producer
//!                                             id i64, 1 if accepted, 0 if rejected: u8)
//! ```

use millstream_base::{Offset, ProducerId};

use super::partition::{Death, Prepared, SharePartition, StoredRun, StoredState};
use crate::groups::{GroupName, Partition, TopicId};
use crate::ledger::{Reader, Record, RecordError, Writer};

const SHARE_PARTITION: u8 = 1;

const FINISHED: i16 = 0;
const NEVER_DELIVERED: i16 = -1;
const PREPARED: i16 = i16::MIN;

/// The key of a share-partition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub group: GroupName,
    pub topic: TopicId,
    pub partition: Partition,
}

/// The record that stores the state of a share-partition, or removes it.
pub fn record(key: &Key, state: Option<&SharePartition>) -> Record {
    let mut writer = Writer::key(SHARE_PARTITION);
    writer
        .text(&key.group)
        .u128(key.topic.0)
        .i32(key.partition.0);
    Record {
        key: writer.done(),
        value: state.map(|state| {
            let runs = state.to_store();
            let mut writer = Writer::value();
            writer.u64(state.start().0).count(runs.len());
            for run in runs {
                writer.u64(run.records).i16(code_of(run.state));
                if let StoredState::Prepared(prepared) = run.state {
                    writer
                        .i16(number(prepared.deliveries))
                        .i64(prepared.producer.0)
                        .u8(prepared.is_accepted.into());
                }
            }
            writer.done()
        }),
    }
}

/// A delivery count. The limit of deliveries is far below the largest one.
fn number(deliveries: u16) -> i16 {
    i16::try_from(deliveries).unwrap_or(i16::MAX)
}

/// The number that stands for a state.
fn code_of(state: StoredState) -> i16 {
    let dead = |deliveries: u16| number(deliveries).clamp(1, i16::MAX / 2) * -2;
    match state {
        StoredState::Finished => FINISHED,
        StoredState::Unfinished { deliveries: 0 } => NEVER_DELIVERED,
        StoredState::Unfinished { deliveries } => number(deliveries),
        StoredState::Prepared(_) => PREPARED,
        StoredState::Dead {
            deliveries,
            why: Death::Rejected,
        } => dead(deliveries),
        StoredState::Dead {
            deliveries,
            why: Death::Exhausted,
        } => dead(deliveries) - 1,
    }
}

fn read_state(reader: &mut Reader) -> Result<StoredState, RecordError> {
    Ok(match reader.i16("deliveries")? {
        PREPARED => StoredState::Prepared(Prepared {
            deliveries: reader.i16("deliveries")?.unsigned_abs(),
            producer: ProducerId(reader.i64("producer id")?),
            is_accepted: reader.bool("verdict")?,
        }),
        FINISHED => StoredState::Finished,
        NEVER_DELIVERED => StoredState::Unfinished { deliveries: 0 },
        code @ ..NEVER_DELIVERED => StoredState::Dead {
            deliveries: code.unsigned_abs() / 2,
            why: match code % 2 {
                0 => Death::Rejected,
                _ => Death::Exhausted,
            },
        },
        deliveries => StoredState::Unfinished {
            deliveries: deliveries.unsigned_abs(),
        },
    })
}

/// Decodes a record into its key and its state.
pub fn decode(record: Record) -> Result<(Key, Option<SharePartition>), RecordError> {
    let key = Reader::key(record.key, |reader| match reader.u8("kind")? {
        SHARE_PARTITION => Ok(Key {
            group: reader.text("group")?,
            topic: TopicId(reader.u128("topic")?),
            partition: Partition(reader.i32("partition")?),
        }),
        kind => Err(RecordError::unknown("kind", kind)),
    })?;
    let state = record.value.map(|value| {
        Reader::value(value, |reader| {
            let start = Offset(reader.u64("start offset")?);
            let mut runs = Vec::new();
            for _ in 0..reader.count("runs")? {
                let records = reader.u64("records")?;
                let state = read_state(reader)?;
                runs.push(StoredRun { records, state });
            }
            Ok(SharePartition::restore(start, runs))
        })
    });
    Ok((key, state.transpose()?))
}
