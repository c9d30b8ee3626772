//! Encoding and decoding of bodies, which follow the header.

use kafka_protocol::protocol::{Decodable, Encodable};

use crate::error::Malformed;
use crate::input::Input;
use crate::pieces::Output;

/// A message without its header, in any supported version.
pub(crate) trait Body: Sized {
    /// Decodes it from the input, and leaves the bytes behind it.
    fn decode(input: &mut Input, version: i16) -> Result<Self, Malformed>;

    /// Writes it. An error names the field that does not fit.
    fn encode(&self, output: &mut Output, version: i16) -> Result<(), String>;
}

/// The generated messages.
impl<T: Decodable + Encodable> Body for T {
    fn decode(input: &mut Input, version: i16) -> Result<T, Malformed> {
        input.message(version)
    }

    fn encode(&self, output: &mut Output, version: i16) -> Result<(), String> {
        Encodable::encode(self, output.copied(), version).map_err(|error| error.to_string())
    }
}

/// Fails if a field that the version lacks does not have the value of that version.
pub(crate) fn needed(is_missing: bool, name: &str, from: i16) -> Result<(), String> {
    match is_missing {
        true => Ok(()),
        false => Err(format!("{name} needs version {from}")),
    }
}
