//! The lives of values in keyed streams: a value may end at a time, from which on its key is absent.

use std::time::Duration;

use millstream_base::Timestamp;

use crate::{Header, Record};

/// The header of a record that names the end of its value, in decimal milliseconds since 1970. A value with another text in it
/// has no end.
pub const EXPIRES: &str = "millstream.expires";

/// The properties of a record that determine when its value expires.
///
/// ```
/// use std::time::Duration;
/// use millstream_base::Timestamp;
/// use millstream_record::Life;
///
/// let life = Life { timestamp: Timestamp(1000), expires: None };
/// let ttl = Some(Duration::from_secs(5));
/// assert_eq!((life.end(None), life.end(ttl)), (None, Some(Timestamp(6000))));
/// let named = Life { expires: Some(Timestamp(9000)), ..life };
/// assert_eq!(named.end(ttl), Some(Timestamp(9000)));
/// assert!(named.is_over(ttl, Timestamp(9000)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    /// The time of the record.
    pub timestamp: Timestamp,
    /// The end that the record names.
    pub expires: Option<Timestamp>,
}

impl Life {
    /// The life of a record's value. Of several headers that name an end the last one counts.
    pub fn of(record: &Record<'_>) -> Life {
        let headers = record.headers();
        let named = headers.filter(|header| header.name == EXPIRES.as_bytes());
        let text = named.last().and_then(|header| header.value);
        let text = text.and_then(|text| std::str::from_utf8(text).ok());
        Life {
            timestamp: record.timestamp,
            expires: text.and_then(|text| text.parse().ok().map(Timestamp)),
        }
    }

    /// Returns when the value expires in a stream whose values live for `ttl`. A value without a time never does.
    pub fn end(&self, ttl: Option<Duration>) -> Option<Timestamp> {
        let of_stream = ttl.filter(|_| self.has_time());
        let of_stream = of_stream.map(|ttl| later(self.timestamp, ttl));
        self.expires.or(of_stream)
    }

    /// Returns whether the value has ended.
    pub fn is_over(&self, ttl: Option<Duration>, now: Timestamp) -> bool {
        self.end(ttl).is_some_and(|end| end <= now)
    }

    /// Returns whether the value ends when its stream says so, and not by its own record.
    pub fn follows_stream(&self) -> bool {
        self.expires.is_none() && self.has_time()
    }

    fn has_time(&self) -> bool {
        self.timestamp.0 >= 0
    }
}

/// Returns the text of the header [`EXPIRES`] for a value that lives for `ttl` from a time on.
pub fn end_text(from: Timestamp, ttl: Duration) -> String {
    later(from, ttl).0.to_string()
}

/// Returns the header with this text.
pub fn end_header(text: &str) -> Header<'_> {
    Header {
        name: EXPIRES.as_bytes(),
        value: Some(text.as_bytes()),
    }
}

/// Returns the time that is `wait` later, at most the largest one.
pub fn later(time: Timestamp, wait: Duration) -> Timestamp {
    let wait = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
    Timestamp(time.0.saturating_add(wait))
}
