//! The requests for holds of keyed streams.

use kafka_protocol::protocol::StrBytes;
use millstream_base::{Offset, Timestamp};

use super::{native, nullable};

native! {
    /// Makes a hold of a keyed stream, or ends one.
    ChangeHoldRequest {
        /// The name of the stream.
        stream: StrBytes,
        /// The name of the hold: 1 to 249 letters, digits and `. _ - / :`.
        name: StrBytes,
        /// Whether to end the hold; else it is made.
        ends: bool,
        /// How long a new hold stays, in milliseconds, at most 366 days; null for 7 days.
        life_ms: Option<i64>,
    }

    /// Answers [`ChangeHoldRequest`].
    ChangeHoldResponse: Answer {
        /// The new hold; null if one was ended.
        hold: Option<ListedHold>,
    }

    /// Lists the holds of a stream.
    ListHoldsRequest {
        /// The name of the stream.
        stream: StrBytes,
    }

    /// Answers [`ListHoldsRequest`].
    ListHoldsResponse: Answer {
        /// The holds, by name; at most 16.
        holds: Vec<ListedHold>,
    }

    /// A hold.
    ListedHold {
        /// Its name.
        name: StrBytes,
        /// The user that made it, as `User:name`.
        owner: StrBytes,
        /// When it was made, in milliseconds since 1970.
        created: Timestamp,
        /// When it ends.
        until: Timestamp,
        /// Whether all is there that it had. Retention and deletions of records remove also held versions.
        is_whole: bool,
        /// For each partition that the stream had, the offset behind the versions that it holds.
        ends: Vec<Offset>,
    }
}

nullable!(ListedHold);
