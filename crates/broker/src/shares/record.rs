//! The records of share-partitions in the ledger, byte for byte.
//!
//! [`Writer`] defines the encoding of numbers and texts.
//!
//! ```text
//! kind  key                                   value, of version 2
//! 1     group: text, topic u128,              share-partition: start offset u64, count u32, and as many runs: records
//!       partition i32                         varint, deliveries i16 as varint (0 finished, -1 never
//!                                             delivered; with a dead letter to write: -2n of n, if the last was rejected,
//!                                             else -2n-1; -32768 in a transaction, followed by deliveries i16, producer
//!                                             id i64, 1 if accepted, 0 if rejected: u8)
//! ```
//!
//! A number with a sign becomes a varint in zigzag: 0, -1, 1, -2 are 0, 1, 2, 3. So most runs take two bytes. In version 1
//! records were a u64, and deliveries an i16.

use millstream_base::{Offset, ProducerId};

use super::partition::{Death, Prepared, SharePartition, StoredRun, StoredState};
use crate::groups::{GroupName, Partition, TopicId};
use crate::ledger::{Reader, Record, RecordError, VERSION, Writer};

const SHARE_PARTITION: u8 = 1;

/// The version of values whose runs are varints.
const WITH_VARINTS: u8 = VERSION + 1;

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
            let mut writer = Writer::value_of(WITH_VARINTS);
            writer.u64(state.start().0).count(runs.len());
            for run in runs {
                let code = zigzag(code_of(run.state));
                writer.varint(run.records).varint(code.into());
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

fn zigzag(number: i16) -> u16 {
    ((number << 1) ^ (number >> 15)).cast_unsigned()
}

fn of_zigzag(number: u16) -> i16 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
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

fn read_run(version: u8, reader: &mut Reader) -> Result<StoredRun, RecordError> {
    const DELIVERIES: &str = "deliveries";
    if version < WITH_VARINTS {
        let records = reader.u64("records")?;
        let code = reader.i16(DELIVERIES)?;
        let state = read_state(code, reader)?;
        return Ok(StoredRun { records, state });
    }
    let records = reader.varint("records")?;
    let code = u16::try_from(reader.varint(DELIVERIES)?);
    let code = code.map_err(|_| RecordError::Invalid { field: DELIVERIES })?;
    let state = read_state(of_zigzag(code), reader)?;
    Ok(StoredRun { records, state })
}

fn read_state(code: i16, reader: &mut Reader) -> Result<StoredState, RecordError> {
    Ok(match code {
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
        Reader::value_up_to(WITH_VARINTS, value, |version, reader| {
            let start = Offset(reader.u64("start offset")?);
            let mut runs = Vec::new();
            for _ in 0..reader.count("runs")? {
                runs.push(read_run(version, reader)?);
            }
            Ok(SharePartition::restore(start, runs))
        })
    });
    Ok((key, state.transpose()?))
}
