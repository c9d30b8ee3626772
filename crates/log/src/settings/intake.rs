//! Changes and checks of chunks before they are stored, if the settings of their stream ask for them.
//!
//! The settings are Kafka's topic settings, under Kafka's names. Without any of them an append pays one load for it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_record::{
    Chunk, ChunkError, ChunkHeader, Compression, Records, recompressed, set_append_time,
};

use crate::error::{LogError, Result};
use crate::memory::decompression::Decompression;

/// The codec of stored chunks: `producer` for the producer's own, or the name of a codec.
pub const COMPRESSION: &str = "compression.type";
/// The level of gzip; -1 for the codec's own choice.
pub const GZIP_LEVEL: &str = "compression.gzip.level";
/// The level of zstd.
pub const ZSTD_LEVEL: &str = "compression.zstd.level";
/// The kind of a record's timestamp: `CreateTime` or `LogAppendTime`.
pub const TIMESTAMP_TYPE: &str = "message.timestamp.type";
/// How many milliseconds before the broker's time a record may be of.
pub const TIMESTAMP_BEFORE_MAX: &str = "message.timestamp.before.max.ms";
/// How many milliseconds after the broker's time a record may be of.
pub const TIMESTAMP_AFTER_MAX: &str = "message.timestamp.after.max.ms";

/// The value of [`COMPRESSION`] where chunks stay compressed as they came …
pub const COMPRESSION_OF_PRODUCER: &str = "producer";
/// … and where they are stored without compression.
pub const UNCOMPRESSED: &str = "uncompressed";
/// The value of [`TIMESTAMP_TYPE`] where the broker gives records their time.
pub const LOG_APPEND_TIME: &str = "LogAppendTime";

/// The time of a record that has none: it is in no one's bounds.
const NO_TIMESTAMP: Timestamp = Timestamp(-1);

/// A stream's changes and checks of chunks before they are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Intake {
    compression: Option<Compression>,
    level: Option<i32>,
    stamps: bool,
    before_max_ms: Option<i64>,
    after_max_ms: Option<i64>,
}

/// A chunk as it is stored.
pub struct TakenIn<'a> {
    pub header: ChunkHeader,
    pub chunk: Cow<'a, [u8]>,
    /// The time of its append, if its records have that.
    pub append_time: Option<Timestamp>,
}

impl Intake {
    /// Reads the settings that `setting` returns by their names. `None` where chunks are stored as they come. Values that
    /// have no meaning are passed over: the server checks them before it stores them.
    pub fn of<'a>(setting: impl Fn(&str) -> Option<&'a str>) -> Option<Intake> {
        let compression = match setting(COMPRESSION) {
            Some(UNCOMPRESSED) => Some(Compression::None),
            Some(COMPRESSION_OF_PRODUCER) | None => None,
            Some(name) => name.parse().ok(),
        };
        let level_of = |name| setting(name).and_then(|level| level.parse().ok());
        let bound_of = |name| {
            let bound: Option<i64> = setting(name).and_then(|bound| bound.parse().ok());
            bound.filter(|bound| (0..i64::MAX).contains(bound))
        };
        let intake = Intake {
            compression,
            level: match compression {
                // -1 is gzip's own choice.
                Some(Compression::Gzip) => level_of(GZIP_LEVEL).filter(|level| *level > 0),
                Some(Compression::Zstd) => level_of(ZSTD_LEVEL),
                _ => None,
            },
            stamps: setting(TIMESTAMP_TYPE) == Some(LOG_APPEND_TIME),
            before_max_ms: bound_of(TIMESTAMP_BEFORE_MAX),
            after_max_ms: bound_of(TIMESTAMP_AFTER_MAX),
        };
        (intake != Intake::default()).then_some(intake)
    }

    /// Returns the codec that chunks are stored with, and its level, if the stream has one.
    pub fn codec(&self) -> Option<(Compression, Option<i32>)> {
        Some((self.compression?, self.level))
    }

    /// Checks a chunk, whose header and checksum are right, and makes the chunk to be stored of it.
    ///
    /// # Errors
    /// When a record is too old or of the future, or the records cannot be decompressed.
    pub fn take_in<'a>(
        &self,
        decompression: &Arc<Decompression>,
        wait_max: Duration,
        now: Timestamp,
        header: &ChunkHeader,
        chunk: &'a [u8],
    ) -> Result<TakenIn<'a>> {
        let mut taken = TakenIn {
            header: *header,
            chunk: Cow::Borrowed(chunk),
            append_time: self.stamps.then_some(now),
        };
        let chunk = Chunk::trusted(chunk)?;
        // Records get the time of the append, whatever they came with.
        if !self.stamps && (self.before_max_ms.is_some() || self.after_max_ms.is_some()) {
            let check = |records: Records<'_>| self.check_times(records, now);
            decompression.with_records(&chunk, wait_max, check)??;
        }
        if let Some(codec) = self.compression
            && codec != header.attributes.compression()
        {
            let recompress = |records: Records<'_>| {
                records.clone().check()?;
                recompressed(&chunk, &records, codec, self.level)
            };
            let made: std::result::Result<_, ChunkError> =
                decompression.with_records(&chunk, wait_max, recompress)?;
            taken.chunk = Cow::Owned(made?);
        }
        if self.stamps {
            set_append_time(taken.chunk.to_mut(), now);
        }
        if let Cow::Owned(bytes) = &taken.chunk {
            taken.header = ChunkHeader::parse(bytes)?;
        }
        Ok(taken)
    }

    fn check_times(&self, records: Records<'_>, now: Timestamp) -> Result<()> {
        let least = self
            .before_max_ms
            .map_or(i64::MIN, |max| now.0.saturating_sub(max));
        let most = self
            .after_max_ms
            .map_or(i64::MAX, |max| now.0.saturating_add(max));
        for record in records {
            let timestamp = record?.timestamp;
            if timestamp != NO_TIMESTAMP && !(least..=most).contains(&timestamp.0) {
                return Err(LogError::TimestampOutOfRange {
                    timestamp,
                    least: Timestamp(least),
                    most: Timestamp(most),
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intake(settings: &[(&str, &'static str)]) -> Option<Intake> {
        Intake::of(|name| {
            settings
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| *value)
        })
    }

    #[test]
    fn settings_with_default_values_need_no_intake() {
        assert_eq!(intake(&[]), None);
        let idle = [
            (COMPRESSION, "producer"),
            (GZIP_LEVEL, "9"),
            (TIMESTAMP_TYPE, "CreateTime"),
            (TIMESTAMP_BEFORE_MAX, "9223372036854775807"),
            (TIMESTAMP_AFTER_MAX, "9223372036854775807"),
        ];
        assert_eq!(intake(&idle), None);
    }

    #[test]
    fn each_setting_is_read() {
        let of = |name, value| intake(&[(name, value)]).unwrap();
        assert_eq!(
            of(COMPRESSION, "uncompressed").compression,
            Some(Compression::None)
        );
        assert_eq!(of(COMPRESSION, "lz4").compression, Some(Compression::Lz4));
        assert!(of(TIMESTAMP_TYPE, "LogAppendTime").stamps);
        assert_eq!(of(TIMESTAMP_BEFORE_MAX, "0").before_max_ms, Some(0));
        assert_eq!(of(TIMESTAMP_AFTER_MAX, "5").after_max_ms, Some(5));
        let gzip = intake(&[(COMPRESSION, "gzip"), (GZIP_LEVEL, "-1"), (ZSTD_LEVEL, "4")]);
        assert_eq!(gzip.unwrap().level, None);
        let zstd = intake(&[(COMPRESSION, "zstd"), (GZIP_LEVEL, "1"), (ZSTD_LEVEL, "-4")]);
        assert_eq!(zstd.unwrap().level, Some(-4));
    }
}
