//! The holds of streams: the catalog has one entry for each.

use std::sync::Arc;

use millstream_base::{Offset, StreamId};

use crate::catalog::table::Table;
use crate::core::Core;
use crate::error::Result;
use crate::hold::Hold;

/// The prefix of the keys of these entries in the catalog.
const PREFIX: &str = "hold/";

/// The entries as a start finds them.
#[derive(Debug, Default)]
pub struct StoredHolds {
    /// Keys of entries of streams that are deleted.
    pub stale: Vec<String>,
    /// The highest number of a stream that an entry names.
    pub last_stream: u64,
}

/// Returns the key of a hold's entry.
pub fn hold_key(stream: StreamId, name: &str) -> String {
    format!("{PREFIX}{stream}/{name}")
}

/// Puts the holds of the catalog in force. The epochs of all lanes are known.
pub fn restore_holds(core: &Core, catalog: &Table) -> Result<StoredHolds> {
    let mut found = StoredHolds::default();
    for (key, mut hold) in catalog.list::<Hold>(PREFIX)? {
        let id = key[PREFIX.len()..].split('/').next();
        let id = id.and_then(|id| id.parse().ok()).unwrap_or_default();
        found.last_stream = found.last_stream.max(id);
        let Some(stream) = core.stream(StreamId(id)) else {
            found.stale.push(key);
            continue;
        };
        for held in &mut hold.held {
            let Some(lane) = stream.partition(held.partition) else {
                continue;
            };
            // Records appended since a loss have the offsets of lost records.
            let end = lane.epochs.end_of(held.epoch, lane.next_offset());
            let is_known = lane.fault().is_none();
            if let Some((_, end)) = end.filter(|_| is_known) {
                held.end = held.end.min(end);
            }
        }
        core.note_hold_end(hold.until);
        let hold = Arc::new(hold);
        let id = stream.shared.holds.restore(Arc::clone(&hold));
        for held in &hold.held {
            if let Some(lane) = stream.partition(held.partition) {
                lane.holds.add(id, held.first, || held.end);
            }
        }
    }
    Ok(found)
}

/// Removes the entries of a stream that is deleted. The removal need not be durable: the next start finds no such
/// stream.
pub fn forget_holds(core: &Core, catalog: &Table, stream: StreamId) -> Result<()> {
    for (key, _) in catalog.list::<serde_json::Value>(&hold_key(stream, ""))? {
        catalog.put::<Offset>(core, &key, None)?;
    }
    Ok(())
}
