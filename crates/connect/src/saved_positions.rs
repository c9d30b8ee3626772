//! The positions of sources, as checkpoints hold them.

use millstream_flow::BoxError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::source_error::SourceError;

#[derive(Serialize, Deserialize)]
struct SavedPositions<P> {
    /// The identity of the stream.
    stream: [u8; 16],
    /// By partition, the first offset that was not given.
    next: P,
}

/// Returns the bytes of positions in the stream of this identity.
pub fn save<P: Serialize>(stream: [u8; 16], next: P) -> Result<Vec<u8>, BoxError> {
    Ok(postcard::to_stdvec(&SavedPositions { stream, next })?)
}

/// Reads positions, which have to be in the stream of this identity.
pub fn restore<P: DeserializeOwned>(
    name: &str,
    stream: [u8; 16],
    saved: &[u8],
) -> Result<P, SourceError> {
    let saved = postcard::take_from_bytes::<SavedPositions<P>>(saved);
    // Positions of the other form may decode as fewer of this one.
    let saved = saved.and_then(|(saved, rest)| match rest {
        [] => Ok(saved),
        _ => Err(postcard::Error::DeserializeBadEncoding),
    });
    let saved = saved.map_err(|error| SourceError::Unreadable {
        stream: name.to_owned(),
        error,
    })?;
    match saved.stream == stream {
        true => Ok(saved.next),
        false => Err(SourceError::Other {
            stream: name.to_owned(),
        }),
    }
}
