//! A position in a partition, as users write it.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use humantime::{format_rfc3339_millis, parse_duration, parse_rfc3339_weak};
use millstream_base::{Offset, Timestamp};
use millstream_client::Start;

/// A position in a partition: its start, its end, an offset, or a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    Start,
    End,
    At(Offset),
    /// The first record that is not older.
    Since(Timestamp),
}

impl Position {
    /// Parses a position; ages such as `-10m` count from `now`.
    fn parse_at(text: &str, now: SystemTime) -> Result<Position, String> {
        match text {
            "start" | "earliest" => return Ok(Position::Start),
            "end" | "latest" => return Ok(Position::End),
            _ => {}
        }
        if let Ok(offset) = text.parse() {
            return Ok(Position::At(Offset(offset)));
        }
        let time = match text.strip_prefix('-') {
            Some(age) => parse_duration(age)
                .ok()
                .and_then(|age| now.checked_sub(age)),
            // A date or a minute stands for its beginning.
            None => parse_rfc3339_weak(text)
                .or_else(|_| parse_rfc3339_weak(&format!("{text}:00")))
                .or_else(|_| parse_rfc3339_weak(&format!("{text}T00:00:00")))
                .ok(),
        };
        time.map(|time| Position::Since(timestamp(time)))
            .ok_or_else(|| {
                "must be start, end, an offset, a time in UTC such as 2026-05-01T12:30:00Z, or an age such as -10m"
                    .to_owned()
            })
    }
}

fn timestamp(time: SystemTime) -> Timestamp {
    let millis = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(millis.as_millis()).unwrap_or(i64::MAX))
}

impl FromStr for Position {
    type Err = String;

    fn from_str(text: &str) -> Result<Position, String> {
        Position::parse_at(text, SystemTime::now())
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Position::Start => f.write_str("start"),
            Position::End => f.write_str("end"),
            Position::At(offset) => write!(f, "offset {offset}"),
            Position::Since(Timestamp(millis)) => {
                let millis = u64::try_from(*millis).unwrap_or_default();
                let time = UNIX_EPOCH.checked_add(Duration::from_millis(millis));
                write!(f, "{}", format_rfc3339_millis(time.unwrap_or(UNIX_EPOCH)))
            }
        }
    }
}

impl From<Position> for Start {
    fn from(position: Position) -> Start {
        match position {
            Position::Start => Start::Earliest,
            Position::End => Start::Latest,
            Position::At(offset) => Start::At(offset),
            Position::Since(time) => Start::Since(time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_words_offsets_times_and_ages() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let since = |millis| Ok(Position::Since(Timestamp(millis)));
        for (text, expected) in [
            ("start", Ok(Position::Start)),
            ("earliest", Ok(Position::Start)),
            ("end", Ok(Position::End)),
            ("latest", Ok(Position::End)),
            ("17", Ok(Position::At(Offset(17)))),
            ("-10m", since(999_400_000)),
            ("1970-01-02", since(86_400_000)),
            ("1970-01-02 00:01", since(86_460_000)),
            ("1970-01-02T00:00:01.5Z", since(86_401_500)),
        ] {
            assert_eq!(Position::parse_at(text, now), expected, "{text}");
        }
        for wrong in ["", "begin", "-1", "1.5", "2026-13-01", "-"] {
            assert!(Position::parse_at(wrong, now).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_shown_in_utc() {
        let shown = Position::Since(Timestamp(86_401_500)).to_string();
        assert_eq!(shown, "1970-01-02T00:00:01.500Z");
    }
}
