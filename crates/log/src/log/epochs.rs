//! The leader epochs at a start: those rise whose lanes may have lost records that consumers have read.

use std::sync::Arc;

use crate::core::Core;
use crate::error::Result;
use crate::files::clean_stop::CleanStop;
use crate::files::manifest::Record;
use crate::lane::LaneState;
use crate::settings::config::Durability;

impl Core {
    /// Raises the leader epoch of each lane whose high watermark may have moved back since the last run: a crash loses records
    /// that were not synced. One write and one sync serve all lanes.
    ///
    /// # Errors
    /// When the manifest cannot be written.
    pub fn raise_epochs(&self, clean_stop: &CleanStop) -> Result<()> {
        let mut lanes = self.made_lanes();
        lanes.retain(|lane| !clean_stop.covers(lane.id) && may_have_gone_back(lane));
        if lanes.is_empty() {
            return Ok(());
        }
        let raised = |lane: &Arc<LaneState>| Record::Epoch {
            lane: lane.id,
            epoch: lane.epochs.current() + 1,
            from: lane.next_offset(),
        };
        let records: Vec<Record> = lanes.iter().map(raised).collect();
        let manifest = self.dir.manifest();
        match manifest
            .append(&records)
            .and_then(|appended| manifest.sync_to(appended))
        {
            Err(error) if error.is_disk_full() => {
                tracing::warn!(%error, "consumers get no truncation error for records that the crash may have lost");
                return Ok(());
            }
            appended => appended?,
        }
        for lane in lanes {
            let epoch = lane.epochs.current() + 1;
            lane.epochs.begin(epoch, lane.next_offset());
        }
        Ok(())
    }
}

/// Returns whether a crash may have lost records that consumers of a lane have read.
fn may_have_gone_back(lane: &LaneState) -> bool {
    match lane.stream.durability {
        Durability::Written | Durability::Async => lane.fault().is_none(),
        // Only damage can lose them.
        Durability::Sync => lane.fault().is_none() && lane.truncated_bytes > 0,
        // It has no files, and begins anew with each start.
        Durability::Memory => false,
    }
}
