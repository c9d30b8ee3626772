//! The request to find records of keyed streams by their secondary keys.

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;

use super::{KeyVersion, native, nullable};

native! {
    /// Returns the newest committed versions of the keys of a partition that have certain secondary keys, in the order of the
    /// secondary keys, then of the keys.
    FindKeysRequest {
        /// The name of the stream.
        stream: StrBytes,
        /// The partition.
        partition: u32,
        /// The name of the index: one that the stream's setting `millstream.keyed.secondary` has.
        index: StrBytes,
        /// The ranges of secondary keys, at most 256, each behind the one before.
        ranges: Vec<SecondaryRange>,
        /// Where an earlier answer says that the search goes on; null to begin.
        from: Option<SecondaryPlace>,
        /// The most keys in the answer.
        keys_max: u32,
        /// About how many bytes of keys and values the answer may have; the first key always comes.
        bytes_max: u32,
    }

    /// A range of secondary keys.
    SecondaryRange {
        /// The first secondary key.
        from: Bytes,
        /// The secondary key behind the range; null if the range has no end.
        until: Option<Bytes>,
    }

    /// A place in the order of secondary keys and keys.
    SecondaryPlace {
        /// The secondary key.
        secondary: Bytes,
        /// The key.
        key: Bytes,
    }

    /// Answers [`FindKeysRequest`].
    FindKeysResponse: Answer {
        /// The keys, in their order. A key with several of the secondary keys comes once for each.
        keys: Vec<FoundKey>,
        /// Where the search goes on; null at the end of the ranges. The answer may have no keys and say where it goes on.
        next: Option<SecondaryPlace>,
    }

    /// A key that has a secondary key.
    FoundKey {
        /// The secondary key.
        secondary: Bytes,
        /// The key.
        key: Bytes,
        /// Its newest version.
        newest: KeyVersion,
    }

    /// A secondary key of a record.
    SecondaryKey {
        /// The name of its index: 1 to 64 letters, digits, `_` and `-`.
        name: StrBytes,
        /// The secondary key, of at most 4 KiB.
        key: Bytes,
    }
}

nullable!(SecondaryPlace);
