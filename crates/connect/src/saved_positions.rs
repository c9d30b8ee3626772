//! The positions of sources, as checkpoints hold them.

use std::collections::BTreeMap;

use millstream_base::Offset;
use millstream_flow::BoxError;
use millstream_log::Share;
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

/// The positions of a source: by partition, the first offset that was not given, and the leader epoch of the records before
/// it; -1 if that is not known.
pub type PositionsWithEpochs = BTreeMap<i32, (Offset, i32)>;

/// Reads the positions of a source of a server. Earlier versions saved no epochs.
pub fn restore_of_server(
    name: &str,
    stream: [u8; 16],
    saved: &[u8],
) -> Result<PositionsWithEpochs, SourceError> {
    match restore(name, stream, saved) {
        Err(SourceError::Unreadable { .. }) => {
            let positions: BTreeMap<i32, Offset> = restore(name, stream, saved)?;
            let positions = positions.into_iter();
            Ok(positions
                .map(|(partition, next)| (partition, (next, -1)))
                .collect())
        }
        restored => restored,
    }
}

/// Reads the positions of a source of a log. Earlier versions saved no epochs, and the partitions of the share in order.
pub fn restore_of_share(
    name: &str,
    stream: [u8; 16],
    saved: &[u8],
    share: Share,
) -> Result<PositionsWithEpochs, SourceError> {
    match restore(name, stream, saved) {
        Err(SourceError::Unreadable { .. }) => {
            let positions: Vec<Offset> = restore(name, stream, saved)?;
            let positions = (0..).zip(positions);
            Ok(positions
                .map(|(place, next)| (share.partition(place) as i32, (next, -1)))
                .collect())
        }
        restored => restored,
    }
}

/// Reads positions, which have to be in the stream of this identity.
fn restore<P: DeserializeOwned>(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_without_epochs_are_read_as_positions_with_unknown_ones() {
        for partitions in 0..4 {
            let with: PositionsWithEpochs = (0..partitions)
                .map(|partition| (partition, (Offset(300), partition)))
                .collect();
            let without: BTreeMap<i32, Offset> = with
                .iter()
                .map(|(partition, (next, _))| (*partition, *next))
                .collect();
            let restore = |saved: Vec<u8>| restore_of_server("s", [7; 16], &saved).unwrap();
            assert_eq!(restore(save([7; 16], &with).unwrap()), with);
            let unknown = with
                .iter()
                .map(|(partition, (next, _))| (*partition, (*next, -1)));
            let unknown: PositionsWithEpochs = unknown.collect();
            assert_eq!(restore(save([7; 16], &without).unwrap()), unknown);
            let in_order: Vec<Offset> = without.into_values().collect();
            let in_order = save([7; 16], in_order).unwrap();
            let restore = |saved: &[u8]| restore_of_share("s", [7; 16], saved, Share::ALL);
            assert_eq!(restore(&save([7; 16], &with).unwrap()).unwrap(), with);
            assert_eq!(restore(&in_order).unwrap(), unknown);
            // Programs that know no epochs refuse them, and do not take them for something else.
            let of_earlier =
                super::restore::<Vec<Offset>>("s", [7; 16], &save([7; 16], &with).unwrap());
            assert_eq!(of_earlier.is_err(), partitions > 0);
        }
    }
}
