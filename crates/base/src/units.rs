//! Sizes in the form that people write.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes; written and read as `65536`, `64KiB`, `8MiB`, `1.5GiB`, `10MB`.
///
/// ```
/// use millstream_base::ByteSize;
/// assert_eq!("64KiB".parse(), Ok(ByteSize(65536)));
/// assert_eq!(ByteSize(1_610_612_736).to_string(), "1.5 GiB");
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// A text is not a [`ByteSize`].
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is not a size; write a number and a unit, for instance 64KiB, 256MiB or 4GiB")]
pub struct ByteSizeError {
    text: String,
}

crate::debug_as_display!(ByteSizeError);

/// Unit names (lower case) and their bytes; the longest names stand first.
const UNITS: [(&str, u64); 14] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
    ("", 1),
];

impl ByteSize {
    /// The bytes as a length in memory.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ByteSizeError {
            text: text.to_owned(),
        };
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = &lower[digits.len()..];
        let (_, factor) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(error)?;
        let digits = digits.trim();
        if let Ok(whole) = digits.parse::<u64>() {
            return whole.checked_mul(*factor).map(ByteSize).ok_or_else(error);
        }
        let number: f64 = digits.parse().map_err(|_| error())?;
        let bytes = number * *factor as f64;
        // From 2^53 on, a float has no fractions of a byte.
        if !(0.0..9_007_199_254_740_992.0).contains(&bytes) {
            return Err(error());
        }
        Ok(ByteSize(bytes as u64))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut number = self.0 as f64;
        let mut unit = 0;
        while number >= 1024.0 && unit + 1 < NAMES.len() {
            number /= 1024.0;
            unit += 1;
        }
        if number.fract() == 0.0 {
            write!(f, "{number} {}", NAMES[unit])
        } else {
            write!(f, "{number:.1} {}", NAMES[unit])
        }
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    /// Takes a number of bytes or a text with a unit.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Bytes(u64),
            Text(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Bytes(bytes) => Ok(ByteSize(bytes)),
            Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_and_other_text_is_refused() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64KiB", 65536),
            ("64 kib", 65536),
            ("8M", 8 << 20),
            ("1.5GiB", 1_610_612_736),
            ("10MB", 10_000_000),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in [
            "",
            "KiB",
            "-1",
            "1e300GiB",
            "12 parsecs",
            "99999999999TiB",
            "nan",
            "1.2.3",
        ] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }
}
