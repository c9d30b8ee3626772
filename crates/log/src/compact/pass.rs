//! One pass over a lane.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millstream_base::{Offset, Timestamp};
use millstream_record::RewriteRules;

use crate::compact::join::join;
use crate::compact::live::{FILES_MAX, GroupLive, LiveReader, RangeKeys, Unreadable};
use crate::compact::rewrite::{EndedValues, Rewritten};
use crate::compact::runs::{RangeGroup, RunBounds, runs};
use crate::compact::stretches::stretches;
use crate::core::Core;
use crate::error::{LogError, Result};
use crate::files::manifest::Record;
use crate::group::Group;
use crate::ids::{GroupName, LaneId};
use crate::keys::file::KeyCounts;
use crate::lane::LaneState;
use crate::lane::holds::HeldOffsets;
use crate::read::keys::cover::give_up_found;
use crate::read::keys::update::check_stored;
use crate::settings::compaction::Compaction;
use crate::stream::StreamState;

/// The order for a pass.
pub struct PassOrder<'a> {
    /// The pass takes groups whose newest record is not newer.
    pub newest_max: Timestamp,
    /// The time of the pass.
    pub now: Timestamp,
    /// How long tombstones and markers stay after their first rewrite.
    pub delete_retention: Duration,
    /// How long the files of replaced groups stay at least.
    pub file_delete_delay: Duration,
    /// Called with the bytes of each read and write. An error stops the pass: groups that it has replaced stay replaced.
    pub pace: &'a dyn Fn(u64) -> Result<()>,
}

impl<'a> PassOrder<'a> {
    /// Returns the order for a pass that goes as far as the settings of its stream allow.
    pub fn new(
        settings: &Compaction,
        now: Timestamp,
        pace: &'a dyn Fn(u64) -> Result<()>,
    ) -> PassOrder<'a> {
        PassOrder {
            newest_max: settings.newest_max(now),
            now,
            delete_retention: settings.delete_retention,
            file_delete_delay: settings.file_delete_delay,
            pace,
        }
    }
}

/// The result of a pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PassReport {
    /// The groups that were replaced.
    pub groups_before: u64,
    /// The groups in their place.
    pub groups_after: u64,
    /// The bytes of chunks in the groups that were replaced.
    pub bytes_before: u64,
    /// The bytes of chunks in the groups in their place.
    pub bytes_after: u64,
    /// The offsets that hold no record any more. Markers, and records of aborted transactions, count too.
    pub records_dropped: u64,
    /// The end of the range, if all of it is compacted now. Joins compact nothing in this sense.
    pub compacted_to: Option<Offset>,
    /// Whether a part of the range is not compacted: a key file could not be read, or groups were taken away.
    pub is_left: bool,
}

/// A pass while it goes on.
pub struct Pass<'a> {
    pub core: &'a Core,
    pub lane: &'a LaneState,
    pub order: &'a PassOrder<'a>,
    pub rules: RewriteRules,
    /// The expired values whose records may change; `None` if all values stay.
    pub ended: Option<EndedValues>,
    /// The offset up to which the lane was compacted before, and the time of that.
    pub compacted: (Offset, Timestamp),
    /// The holds at the moment when the pass had chosen its groups.
    pub held: HeldOffsets,
    /// Whether markers may be removed: no reader has a replaced group.
    may_drop_markers: bool,
}

/// Compacts a lane of a keyed stream. Only one pass of a lane runs at a time: another one does nothing.
///
/// # Errors
/// When groups cannot be read or files cannot be written, the stream is deleted, the log ends, or the pass must stop. The
/// groups that were not replaced stay as they are then.
pub fn pass(core: &Core, lane: &LaneState, order: &PassOrder<'_>) -> Result<PassReport> {
    rewrite(core, lane, order, |pass, groups| pass.run(groups))
}

/// Rewrites groups of a lane by `run`, which gets the groups that a pass takes.
///
/// # Errors
/// As [`pass`].
pub fn rewrite(
    core: &Core,
    lane: &LaneState,
    order: &PassOrder<'_>,
    run: impl FnOnce(Pass<'_>, &[Arc<Group>]) -> Result<PassReport>,
) -> Result<PassReport> {
    let Some(_one) = lane.compacting.try_lock() else {
        return Ok(PassReport::default());
    };
    // The log does not end, and the stream's folder stays, before this is given back.
    let Some(_building) = core.reads.key_files.begin_build() else {
        return Err(LogError::Closed);
    };
    check_stored(lane)?;
    let groups = range(lane, order.newest_max);
    if groups.is_empty() {
        return Ok(PassReport::default());
    }
    // Taken behind the groups, which end before each hold that is made from here on.
    let held = lane.holds.held();
    run(Pass::new(core, lane, order, held), &groups)
}

/// Returns the groups that a pass takes at this moment, oldest first: the first ones of the lane, as far as they are closed,
/// whole on disk, and have key files, and all of their transactions have ended for good.
pub fn range(lane: &LaneState, newest_max: Timestamp) -> Vec<Arc<Group>> {
    if lane.is_memory_only() || lane.fault().is_some() || lane.is_removed() {
        return Vec::new();
    }
    let stable = lane.stable_for_good();
    let mut groups = lane.groups();
    // The last group is not compacted: its index has the producers at the lane's end.
    groups.pop();
    // Groups whose records are all deleted get no key files, and retention still has to remove them.
    let earliest = lane.earliest_offset();
    let is_deleted = |group: &&Arc<Group>| group.end().is_some_and(|end| end.offset <= earliest);
    let deleted = groups.iter().take_while(is_deleted).count();
    groups.drain(..deleted);
    let count = groups.iter().take_while(|group| {
        let is_before = group
            .end()
            .is_some_and(|end| end.offset <= stable && end.max_timestamp <= newest_max);
        let is_whole = group.is_settled() && group.has_file() && group.damage().is_none();
        is_before && is_whole && !group.is_removed() && group.key_counts().is_some()
    });
    let count = count.count();
    groups.truncate(count);
    groups
}

impl Core {
    /// Compacts the lanes of all keyed streams, whether they are due or not. Returns the sum of all passes.
    ///
    /// # Errors
    /// The first one of a lane. Others are compacted all the same.
    pub fn compact_all(&self) -> Result<PassReport> {
        let streams: Vec<Arc<StreamState>> = self.streams.read().by_id.values().cloned().collect();
        let now = self.compactor.time.now(&*self.clock);
        let mut all = Ok(PassReport::default());
        for stream in streams {
            let config = self.effective(stream.kind, stream.shared.config.read().clone());
            let Some(settings) = Compaction::of(&config.settings) else {
                continue;
            };
            let order = PassOrder::new(&settings, now, &|_| Ok(()));
            for lane in stream.made_lanes() {
                let report = compact_and_join(self, &lane, &order, settings.joins);
                all = all.and_then(|sum| Ok(sum.plus(&report?)));
            }
        }
        all
    }
}

/// Makes a pass over a lane, and then all joins that are due.
fn compact_and_join(
    core: &Core,
    lane: &LaneState,
    order: &PassOrder<'_>,
    joins: bool,
) -> Result<PassReport> {
    let mut report = pass(core, lane, order)?;
    if !joins {
        return Ok(report);
    }
    loop {
        let joined = join(core, lane, order)?;
        report = report.plus(&joined);
        if joined.groups_before == 0 {
            return Ok(report);
        }
    }
}

impl PassReport {
    /// Takes note of groups with this many records that another one has replaced.
    pub fn note(&mut self, run: &[Arc<Group>], records: u64, by: &Group, rewritten: &Rewritten) {
        self.groups_before += run.len() as u64;
        self.groups_after += 1;
        self.bytes_before += run.iter().map(|old| old.durable().0).sum::<u64>();
        self.bytes_after += by.durable().0;
        let after = rewritten.keys.keys + rewritten.keys.without_key;
        self.records_dropped += records.saturating_sub(after);
    }

    /// Returns the sum of two reports.
    pub fn plus(&self, other: &PassReport) -> PassReport {
        PassReport {
            groups_before: self.groups_before + other.groups_before,
            groups_after: self.groups_after + other.groups_after,
            bytes_before: self.bytes_before + other.bytes_before,
            bytes_after: self.bytes_after + other.bytes_after,
            records_dropped: self.records_dropped + other.records_dropped,
            compacted_to: self.compacted_to.max(other.compacted_to),
            is_left: self.is_left | other.is_left,
        }
    }
}

/// Returns up to where a lane is compacted, and when that was; 0 if it never was.
pub fn compacted(core: &Core, lane: LaneId) -> (Offset, Timestamp) {
    let found = core
        .dir
        .manifest()
        .look_at(|listed| listed.lane(lane)?.compacted());
    found.unwrap_or((Offset(0), Timestamp(0)))
}

impl<'a> Pass<'a> {
    fn new(
        core: &'a Core,
        lane: &'a LaneState,
        order: &'a PassOrder<'a>,
        held: HeldOffsets,
    ) -> Pass<'a> {
        let compacted = compacted(core, lane.id);
        let may_drop_markers = !core.replaced.has_any_of(lane.id);
        let retention = i64::try_from(order.delete_retention.as_millis()).unwrap_or(i64::MAX);
        let intake = lane.stream.limits.intake();
        Pass {
            core,
            lane,
            order,
            rules: RewriteRules {
                compression: intake.and_then(|intake| intake.codec()),
                now: order.now,
                // The wall clock may be ahead: then the time would already be over when that is trusted.
                horizon: Timestamp(order.now.max(core.clock.now()).0.saturating_add(retention)),
                begins_tombstones: true,
                tombstones_end: compacted.0,
                markers_end: match may_drop_markers {
                    true => compacted.0,
                    false => Offset(0),
                },
            },
            ended: Some(EndedValues::of(&lane.stream.limits, order.now, retention)),
            compacted,
            held,
            may_drop_markers,
        }
    }

    fn run(mut self, groups: &[Arc<Group>]) -> Result<PassReport> {
        let mut report = PassReport::default();
        let Some(bounds) = bounds(groups) else {
            report.is_left = true;
            return Ok(report);
        };
        let stretches = stretches(&bounds, &self.held);
        for (n, stretch) in stretches.iter().enumerate() {
            // Behind a hold, older records of their keys stay.
            self.rules.begins_tombstones = n == 0;
            if n > 0 {
                self.ended = self.ended.and_then(EndedValues::above_older);
            }
            if !stretch.is_split {
                report = report.plus(&self.run_stretch(&groups[stretch.groups.clone()])?);
            }
        }
        if report.is_left {
            return Ok(report);
        }
        let end = bounds.last().map_or(Offset(0), |(_, end)| *end);
        // Behind the first hold, keys have several records, so nothing counts as compacted for tombstones there.
        let first = stretches.first().filter(|first| !first.is_split);
        let to = first.map_or(self.compacted.0, |first| bounds[first.groups.end - 1].1);
        self.note_compacted(to.max(self.compacted.0), report.groups_before > 0)?;
        self.lane.holds.note_passed(end, &self.held);
        report.compacted_to = Some(end);
        Ok(report)
    }

    /// Rewrites groups between which there is no hold, so that the newest record of each key in them stays.
    fn run_stretch(&self, groups: &[Arc<Group>]) -> Result<PassReport> {
        let mut report = PassReport::default();
        let (Some(named), Some(counts)) = (named(groups), counts(groups)) else {
            // A lookup found a damaged key file just now.
            report.is_left = true;
            return Ok(report);
        };
        // Deleted records are not live.
        let from = self.lane.earliest_offset();
        let firsts: Vec<Offset> = groups.iter().map(|group| group.first_offset).collect();
        let opened = RangeKeys::open(&self.core.dir, &named, FILES_MAX);
        let counted = opened.and_then(|keys| Ok((keys.count(from, &firsts)?, keys)));
        let (live, keys) = match counted {
            Ok(counted) => counted,
            Err(unreadable) => return self.give_up(groups, unreadable, report),
        };
        let ranged: Vec<RangeGroup> = (0..groups.len())
            .map(|n| self.range_group(&groups[n], named[n].1, counts[n], live[n]))
            .collect();
        let bounds = RunBounds::new(may_join(self.lane));
        let mut reader = LiveReader::new(&keys, from, self.core.reads.memory.live_offsets);
        let mut ended = self.ended;
        for run in runs(&ranged, &bounds) {
            let (ranged, run) = (&ranged[run.clone()], &groups[run]);
            let replaced = match self.replace(run, &mut reader, ended) {
                Err(error) => {
                    return match reader.take_unreadable() {
                        Some(unreadable) => self.give_up(groups, unreadable, report),
                        None => Err(error),
                    };
                }
                Ok(replaced) => replaced,
            };
            let Some((group, rewritten)) = replaced else {
                report.is_left = true;
                // Its groups may have older records of the keys of later runs.
                ended = ended.and_then(EndedValues::above_older);
                continue;
            };
            let records = ranged.iter().map(RangeGroup::records).sum();
            report.note(run, records, &group, &rewritten);
        }
        Ok(report)
    }

    fn range_group(
        &self,
        group: &Group,
        end: Offset,
        counts: KeyCounts,
        live: GroupLive,
    ) -> RangeGroup {
        RangeGroup {
            first_offset: group.first_offset,
            end,
            counts,
            live,
            is_rewritten: group.is_rewritten(),
            has_new_tombstones: self.has_new_tombstones(group, &live),
            has_expired: self.has_expired(group, end, &counts),
        }
    }

    /// Whether a group has tombstones whose time begins with its next rewrite: it was never rewritten, or before a hold was
    /// released.
    fn has_new_tombstones(&self, group: &Group, live: &GroupLive) -> bool {
        let horizons = group.horizons().filter(|_| group.is_rewritten());
        let is_new = !group.is_rewritten() || horizons.is_some_and(|at| at.tombstones.is_none());
        self.rules.begins_tombstones && live.tombstones > 0 && is_new
    }

    /// Whether a group has tombstones or markers that a rewrite drops, or many values that have ended.
    fn has_expired(&self, group: &Group, end: Offset, counts: &KeyCounts) -> bool {
        let has_ended =
            |ended: EndedValues| values_end(group, ended.ttl).is_some_and(|end| end <= ended.until);
        if self.ended.is_some_and(has_ended) {
            return true;
        }
        let (compacted_to, compacted_at) = self.compacted;
        if !group.is_rewritten() || end > compacted_to {
            return false;
        }
        let has_passed =
            |horizon: Option<Timestamp>| horizon.is_some_and(|at| at <= self.order.now);
        match group.horizons() {
            Some(horizons) => {
                has_passed(horizons.tombstones)
                    || (self.may_drop_markers && has_passed(horizons.markers))
            }
            // An earlier program has made its key file. It was rewritten no later than at the last compaction.
            None => {
                let retention = self.rules.horizon.0.saturating_sub(self.order.now.0);
                counts.tombstones > 0
                    && has_passed(Some(Timestamp(compacted_at.0.saturating_add(retention))))
            }
        }
    }

    /// Whether a run may be replaced that was rewritten: a shared group may have been made meanwhile.
    pub fn may_replace(&self, run: &[Arc<Group>]) -> bool {
        !self.lane.is_removed() && (run.len() == 1 || may_join(self.lane))
    }

    /// Notes up to where the lane is compacted.
    fn note_compacted(&self, to: Offset, has_changed: bool) -> Result<()> {
        if to <= self.compacted.0 && !has_changed {
            return Ok(());
        }
        let noted = Record::Compacted {
            lane: self.lane.id,
            to,
            at: self.order.now,
            deletions_from: Some(self.lane.deletions_from()),
        };
        let manifest = self.core.dir.manifest();
        manifest.sync_to(manifest.append(&[noted])?)
    }

    /// Returns the record that says from where on the lane has all deletions that are newest versions, and nothing else.
    pub fn note_of_dropped(&self, deletions_from: Offset) -> Record {
        Record::Compacted {
            lane: self.lane.id,
            to: self.compacted.0,
            at: self.compacted.1,
            deletions_from: Some(deletions_from),
        }
    }

    /// Drops a key file that cannot be read, so that it is rebuilt.
    pub fn give_up(
        &self,
        groups: &[Arc<Group>],
        unreadable: Unreadable,
        report: PassReport,
    ) -> Result<PassReport> {
        let path = |group: &Group| self.core.dir.keys_path(&group.name());
        let Some(group) = groups.iter().find(|group| path(group) == unreadable.path) else {
            // A temporary file.
            return Err(LogError::from(&unreadable));
        };
        let index = self.lane.key_index(self.lane.stream.partition_count());
        give_up_found(&self.core.reads, self.lane, index, group, unreadable.error)?;
        Ok(PassReport {
            is_left: true,
            ..report
        })
    }
}

/// Returns when enough values of a group have expired to make a rewrite worth it. In a stream with a `ttl`, values without
/// an expiry of their own expire after it.
pub fn values_end(group: &Group, ttl: Option<Duration>) -> Option<Timestamp> {
    let newest = group.end()?.max_timestamp;
    group.horizons()?.values_end(newest, ttl)
}

/// Whether groups of a lane may be joined: no cursor of a shared group names them, and no other lane has the ids between.
pub fn may_join(lane: &LaneState) -> bool {
    let stream = &lane.stream;
    stream.config.read().lanes == 1 && !stream.has_shared_groups.load(Ordering::Acquire)
}

/// The first offsets of closed groups, with their ends.
pub fn bounds(groups: &[Arc<Group>]) -> Option<Vec<(Offset, Offset)>> {
    let bounds = groups
        .iter()
        .map(|group| Some((group.first_offset, group.end()?.offset)));
    bounds.collect()
}

/// The names of closed groups, with their ends.
pub fn named(groups: &[Arc<Group>]) -> Option<Vec<(GroupName, Offset)>> {
    let named = groups
        .iter()
        .map(|group| Some((group.name(), group.end()?.offset)));
    named.collect()
}

pub fn counts(groups: &[Arc<Group>]) -> Option<Vec<KeyCounts>> {
    groups.iter().map(|group| group.key_counts()).collect()
}
