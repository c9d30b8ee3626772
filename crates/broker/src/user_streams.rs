//! The streams that clients see: all but those that the broker keeps for itself.

use millstream_log::{Log, LogError, Stream};

/// The stream of this name, unless the broker keeps it for itself.
pub fn stream_of_users(log: &Log, name: &str) -> Result<Stream, LogError> {
    not_internal(log.stream(name)?)
}

/// What the broker keeps for itself is nobody else's.
pub fn not_internal(stream: Stream) -> Result<Stream, LogError> {
    match stream.is_internal() {
        true => Err(LogError::UnknownStream {
            name: stream.name().to_owned(),
        }),
        false => Ok(stream),
    }
}
