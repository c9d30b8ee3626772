//! The log's own tables: the catalog of streams and objects, and the positions of shared groups.
//!
//! A [`table`] lives in a stream of the log itself. The catalog has an entry for each stream and object, one for each
//! lane that begins behind deleted records ([`lane_starts`]), and one for each hold ([`holds`]).
//! Entries for lanes that have data belong to format 2 ([`lanes_with_data`]).
//!
//! A stream is used only after its entry is durable, and its files are removed only after the entry's end is. The tables
//! do not know how streams are made or deleted.

pub mod holds;
pub mod lane_starts;
pub mod lanes_with_data;
pub mod table;

use millstream_base::StreamId;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::settings::config::StreamConfig;
use crate::stream::{Shape, StreamKind};

/// The stream of the catalog: which streams and objects there are.
pub const CATALOG: StreamId = StreamId(0);

/// The stream of the positions that shared_groups committed.
pub const POSITIONS: StreamId = StreamId(1);

/// The first id of a user's stream.
pub const FIRST_STREAM: u64 = 16;

/// The key that a salvaged catalog has: streams that it does not name were lost, not deleted.
pub const SALVAGED: &str = "salvaged";

/// The entry of a stream in the catalog.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CatalogEntry {
    pub id: StreamId,
    pub uuid: Uuid,
    pub kind: StreamKind,
    pub config: StreamConfig,
    pub shapes: Vec<Shape>,
}
