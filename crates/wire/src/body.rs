//! The bodies of requests and responses, which follow the header.

use kafka_protocol::protocol::{Decodable, Encodable};

use crate::error::Malformed;
use crate::input::Input;
use crate::pieces::Output;

/// A message without its header, of any version that is supported.
pub(crate) trait Body: Sized {
    /// Takes it off the input; what follows stays.
    fn decode(input: &mut Input, version: i16) -> Result<Self, Malformed>;

    /// Writes it. An error says which field does not fit.
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
