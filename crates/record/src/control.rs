//! Control chunks: the markers that end a transaction in a partition, as Kafka's brokers write them.

use millstream_base::{ProducerEpoch, ProducerId, Sequence, Timestamp};

use crate::header;
use crate::{Chunk, ChunkBuilder, ChunkError, Compression, Decompressor, Producer};

/// The version of the key's and value's format. Later versions append fields.
const VERSION: i16 = 0;

/// The outcome of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransactionEnd {
    /// The transaction is aborted: consumers of committed data skip its records.
    Abort = 0,
    /// The transaction is committed.
    Commit = 1,
}

/// The content of a control chunk: one producer's transaction ends here.
///
/// ```
/// use millstream_base::{ProducerEpoch, ProducerId, Timestamp};
/// use millstream_record::{Chunk, EndMarker, TransactionEnd};
///
/// let marker = EndMarker {
///     producer_id: ProducerId(7),
///     producer_epoch: ProducerEpoch(1),
///     end: TransactionEnd::Commit,
///     coordinator_epoch: 3,
/// };
/// let bytes = marker.to_chunk(Timestamp(1000))?;
/// let chunk = Chunk::parse(&bytes)?;
/// assert!(chunk.header().attributes.is_control());
/// assert_eq!(EndMarker::of(&chunk), Some(marker));
/// # Ok::<(), millstream_record::ChunkError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EndMarker {
    /// The producer of the transaction.
    pub producer_id: ProducerId,
    /// The producer's incarnation.
    pub producer_epoch: ProducerEpoch,
    /// The outcome.
    pub end: TransactionEnd,
    /// The epoch of the coordinator that wrote the marker.
    pub coordinator_epoch: i32,
}

impl EndMarker {
    /// Makes the control chunk of this marker, with one record.
    ///
    /// # Errors
    /// The errors of a [`ChunkBuilder`]; one small record causes none of them.
    pub fn to_chunk(&self, timestamp: Timestamp) -> Result<Vec<u8>, ChunkError> {
        let mut key = [0; 4];
        key[..2].copy_from_slice(&VERSION.to_be_bytes());
        key[2..].copy_from_slice(&(self.end as i16).to_be_bytes());
        let mut value = [0; 6];
        value[..2].copy_from_slice(&VERSION.to_be_bytes());
        value[2..].copy_from_slice(&self.coordinator_epoch.to_be_bytes());
        let mut builder = ChunkBuilder::new(Compression::None);
        builder.set_transactional(true);
        builder.push(timestamp, Some(&key), Some(&value), &[])?;
        let producer = Producer {
            id: self.producer_id,
            epoch: self.producer_epoch,
            sequence: Sequence(-1),
        };
        let mut chunk = builder.finish(Some(producer))?.to_vec();
        header::set_control(&mut chunk);
        Ok(chunk)
    }

    /// Returns the content of a control chunk; `None` if the chunk is not a control chunk, or does not end a
    /// transaction.
    pub fn of(chunk: &Chunk<'_>) -> Option<EndMarker> {
        let header = chunk.header();
        if !header.attributes.is_control() {
            return None;
        }
        let mut decompressor = Decompressor::default();
        let record = chunk.records(&mut decompressor).ok()?.next()?.ok()?;
        let (_, key) = record.key?.split_first_chunk::<2>()?;
        let end = match i16::from_be_bytes(*key.first_chunk()?) {
            0 => TransactionEnd::Abort,
            1 => TransactionEnd::Commit,
            _ => return None,
        };
        let (_, value) = record.value?.split_first_chunk::<2>()?;
        Some(EndMarker {
            producer_id: header.producer_id,
            producer_epoch: header.producer_epoch,
            end,
            coordinator_epoch: i32::from_be_bytes(*value.first_chunk()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::set_place;
    use millstream_base::Offset;

    fn marker(end: TransactionEnd) -> EndMarker {
        EndMarker {
            producer_id: ProducerId(0x1122),
            producer_epoch: ProducerEpoch(5),
            end,
            coordinator_epoch: 9,
        }
    }

    /// A marker, byte by byte as Kafka describes record batches, control records and the marker's value.
    #[test]
    fn golden_bytes() {
        let mut bytes = marker(TransactionEnd::Abort)
            .to_chunk(Timestamp(0x0102_0304))
            .expect("it fits");
        set_place(&mut bytes, Offset(66), 0);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let crc = millstream_base::crc32c(&bytes[21..]);
        assert_eq!(
            hex,
            format!(
                "0000000000000042\
                 00000042\
                 00000000\
                 02\
                 {crc:08x}\
                 0030\
                 00000000\
                 0000000001020304\
                 0000000001020304\
                 0000000000001122\
                 0005\
                 ffffffff\
                 00000001\
                 20\
                 00\
                 00\
                 00\
                 0800000000\
                 0c000000000009\
                 00"
            )
        );
    }

    #[test]
    fn only_whole_end_markers_parse_as_markers() {
        for end in [TransactionEnd::Abort, TransactionEnd::Commit] {
            let bytes = marker(end).to_chunk(Timestamp(1)).expect("it fits");
            let chunk = Chunk::parse(&bytes).expect("it is whole");
            assert_eq!(EndMarker::of(&chunk), Some(marker(end)));
            assert!(chunk.header().attributes.is_transactional());
            // Another type, and a key that is too short for one.
            let type_at = bytes.len() - 9;
            for (at, byte) in [(type_at, 2), (61, 0x7f)] {
                let mut other = bytes.clone();
                other[at] = byte;
                let chunk = Chunk::trusted(&other).expect("the header is whole");
                assert_eq!(EndMarker::of(&chunk), None, "byte {at}");
            }
        }
        let mut builder = ChunkBuilder::new(Compression::None);
        let pushed = builder.push(Timestamp(0), Some(&[0; 4]), Some(&[0; 6]), &[]);
        pushed.expect("it fits");
        let data = builder.finish(None).expect("it has a record");
        let chunk = Chunk::parse(data).expect("it is whole");
        assert_eq!(EndMarker::of(&chunk), None);
    }
}
