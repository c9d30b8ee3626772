//! Joins the small groups of a lane.

use std::ops::Range;
use std::sync::Arc;

use millstream_base::Offset;

use crate::compact::joins::{JoinGroup, joins};
use crate::compact::live::{FILES_MAX, LiveReader, RangeKeys};
use crate::compact::pass::{Pass, PassOrder, PassReport, bounds, counts, may_join, named, rewrite};
use crate::compact::runs::records_of;
use crate::compact::stretches::stretches;
use crate::core::Core;
use crate::error::Result;
use crate::group::Group;
use crate::lane::LaneState;
use crate::lane::holds::HeldOffsets;

/// Joins the first run of small groups of a lane, so that a more urgent lane need not wait for all of them. Nothing counts as
/// compacted by that.
///
/// # Errors
/// As [`pass`](crate::compact::pass::pass).
pub fn join(core: &Core, lane: &LaneState, order: &PassOrder<'_>) -> Result<PassReport> {
    rewrite(core, lane, order, |pass, groups| pass.join(groups))
}

/// Returns the runs of groups to join, as indexes of the groups that a pass takes. `compacted_to` is the end of the last one.
pub fn runs_to_join(
    lane: &LaneState,
    groups: &[Arc<Group>],
    compacted_to: Offset,
    held: &HeldOffsets,
) -> Vec<Range<usize>> {
    if !may_join(lane) {
        return Vec::new();
    }
    let Some(bounds) = bounds(groups) else {
        return Vec::new();
    };
    let mut begins_stretch = vec![false; groups.len()];
    for stretch in stretches(&bounds, held) {
        begins_stretch[stretch.groups.start] = true;
    }
    let groups = groups.iter().zip(begins_stretch);
    let groups = groups.map(|(group, begins_stretch)| {
        let (end, counts) = (group.end()?, group.key_counts()?);
        Some(JoinGroup {
            first_offset: group.first_offset,
            end: end.offset,
            begins_stretch,
            bytes: end.position.0,
            keys: counts.keys,
            tombstones: counts.tombstones,
        })
    });
    // A lookup may have given up a damaged key file just now.
    let groups: Option<Vec<JoinGroup>> = groups.collect();
    groups.map_or_else(Vec::new, |groups| joins(&groups, compacted_to))
}

impl Pass<'_> {
    fn join(&self, groups: &[Arc<Group>]) -> Result<PassReport> {
        let mut report = PassReport::default();
        let runs = runs_to_join(self.lane, groups, self.compacted.0, &self.held);
        let Some(run) = runs.into_iter().next().map(|run| &groups[run]) else {
            return Ok(report);
        };
        let (Some(named), Some(counts)) = (named(run), counts(run)) else {
            report.is_left = true;
            return Ok(report);
        };
        let keys = match RangeKeys::open(&self.core.dir, &named, FILES_MAX) {
            Ok(keys) => keys,
            Err(unreadable) => return self.give_up(run, unreadable, report),
        };
        // Deleted records are not live.
        let from = self.lane.earliest_offset();
        let mut live = LiveReader::new(&keys, from, self.core.reads.memory.live_offsets);
        match self.replace(run, &mut live, None) {
            Ok(Some((group, rewritten))) => {
                let records = run.iter().zip(&named).zip(&counts);
                let records = records.map(|((group, (name, end)), counts)| {
                    records_of(group.is_rewritten(), counts, name.first_offset..*end)
                });
                report.note(run, records.sum(), &group, &rewritten);
            }
            Ok(None) => report.is_left = true,
            Err(error) => match live.take_unreadable() {
                Some(unreadable) => return self.give_up(run, unreadable, report),
                None => return Err(error),
            },
        }
        Ok(report)
    }
}
