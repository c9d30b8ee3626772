//! The compressions of a chunk's records, and their framings that Kafka's clients read and write.

use std::fmt;
use std::str::FromStr;

/// The compression of the records of a chunk; the format defines the values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// No compression.
    #[default]
    None = 0,
    /// gzip.
    Gzip = 1,
    /// Snappy; written in the framing of snappy-java, as Kafka's Java client does.
    Snappy = 2,
    /// LZ4 in its frame format.
    Lz4 = 3,
    /// Zstandard.
    Zstd = 4,
}

impl Compression {
    /// All compressions, in the order of their values.
    pub const ALL: [Compression; 5] = [
        Compression::None,
        Compression::Gzip,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Zstd,
    ];

    pub(crate) fn from_codec(codec: u8) -> Option<Compression> {
        Compression::ALL.get(usize::from(codec)).copied()
    }

    fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Snappy => "snappy",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text is not the name of a [`Compression`].
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a compression; use none, gzip, snappy, lz4 or zstd")]
pub struct UnknownCompression(String);

millstream_base::debug_as_display!(UnknownCompression);

impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Compression::ALL
            .into_iter()
            .find(|compression| compression.name() == text)
            .ok_or_else(|| UnknownCompression(text.to_owned()))
    }
}

/// snappy-java's header: its magic, then its version and the oldest compatible one.
pub(crate) const XERIAL_MAGIC: &[u8; 8] = b"\x82SNAPPY\0";
pub(crate) const XERIAL_VERSIONS: &[u8; 8] = b"\0\0\0\x01\0\0\0\x01";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for compression in Compression::ALL {
            assert_eq!(compression.to_string().parse(), Ok(compression));
        }
        let error = "brotli".parse::<Compression>().unwrap_err();
        assert!(error.to_string().contains("brotli"), "{error}");
    }
}
