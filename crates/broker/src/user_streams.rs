//! The streams that clients see: all but the broker's internal ones.

use millstream_log::{Log, LogError, Stream};

/// Returns the stream of this name, unless it is internal.
pub fn stream_of_users(log: &Log, name: &str) -> Result<Stream, LogError> {
    not_internal(log.stream(name)?)
}

/// Hides a stream that is internal to the broker.
pub fn not_internal(stream: Stream) -> Result<Stream, LogError> {
    match stream.is_internal() {
        true => Err(LogError::UnknownStream {
            name: stream.name().to_owned(),
        }),
        false => Ok(stream),
    }
}
