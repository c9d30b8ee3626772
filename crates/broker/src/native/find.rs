//! Finds the streams that native requests name.

use millstream_base::StreamId;
use millstream_log::{Log, LogError, Stream};
use millstream_wire::ResponseError;

use super::refused::Refused;
use crate::user_streams::not_internal;

/// Returns the stream of this id.
pub fn stream_of(log: &Log, id: StreamId) -> Result<Stream, Refused> {
    let stream = log.stream_by_id(id).and_then(not_internal);
    stream.map_err(|_| unknown_id(id))
}

pub fn unknown_id(id: StreamId) -> Refused {
    Refused::new(
        ResponseError::UnknownTopicId,
        format!("there is no stream with id {id}"),
    )
}

/// Returns the stream of this name.
pub fn stream_named(log: &Log, name: &str) -> Result<Stream, Refused> {
    Ok(not_internal(log.stream(name)?)?)
}

/// Returns the stream of this name, if it is keyed.
pub fn keyed_stream(log: &Log, name: &str) -> Result<Stream, Refused> {
    let stream = stream_named(log, name)?;
    match stream.is_keyed() {
        true => Ok(stream),
        false => Err(LogError::NotKeyed {
            stream: stream.name().to_owned(),
        }
        .into()),
    }
}
