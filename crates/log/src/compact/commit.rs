//! Puts a rewritten group in the place of the groups of its run.
//!
//! The files of the new group are durable before one record of the manifest replaces the old ones. So a crash leaves either the
//! old groups or the new one, and files that are not listed, which a start removes.

use std::sync::Arc;

use millstream_base::{Offset, Position};

use crate::compact::live::LiveReader;
use crate::compact::output::NewFiles;
use crate::compact::pass::Pass;
use crate::compact::rewrite::{EndedValues, Rewrite, Rewritten, producers_at};
use crate::compact::runs::records_of;
use crate::error::{LogError, Result};
use crate::files::manifest::Record;
use crate::group::Group;
use crate::group::stored::StoredGroup;
use crate::ids::{Generation, GroupName};
use crate::keys::kind::KeyKind;
use crate::read::keys::update::check_stored;
use crate::read::seek::position_in;

/// Whether a rewritten group lacks records of the groups of its run, perhaps only markers or aborted ones.
fn lacks_records(run: &[Arc<Group>], rewritten: &Rewritten) -> bool {
    let records = run.iter().map(|group| {
        let (counts, end) = (group.key_counts()?, group.end()?);
        let offsets = group.first_offset..end.offset;
        Some(records_of(group.is_rewritten(), &counts, offsets))
    });
    let left = rewritten.keys.keys + rewritten.keys.without_key;
    records.sum::<Option<u64>>() != Some(left)
}

impl Pass<'_> {
    /// Rewrites the groups of a run into one, and puts it in their place; `ended` says which values go. `None` if groups of it were taken away meanwhile, or
    /// must not be joined any more: then nothing has changed.
    ///
    /// # Errors
    /// When groups cannot be read, files cannot be written, or the pass must stop. The old groups stay then.
    pub fn replace(
        &self,
        run: &[Arc<Group>],
        live: &mut LiveReader<'_>,
        ended: Option<EndedValues>,
    ) -> Result<Option<(Arc<Group>, Rewritten)>> {
        let (core, lane) = (self.core, self.lane);
        // The next start may find new files in the list that an earlier pass has left: they stay as they are.
        core.dir.manifest().check()?;
        let (first, last) = (&run[0], &run[run.len() - 1]);
        let Some(behind) = lane.group_after(last.id) else {
            return Ok(None);
        };
        if !behind.has_file() {
            // The list then has a group behind the run: files of replaced groups are no begun ones for the next start.
            core.persist(vec![Arc::clone(&behind)]);
            core.found(lane, &behind)?;
        }
        let generations = run.iter().map(|group| group.name().generation);
        let name = GroupName {
            generation: generations.max().unwrap_or(Generation::FIRST).rewritten(),
            ..first.name()
        };
        let mut files = NewFiles::create(&core.dir, name, first.identity(), first.leader_epoch())?;
        let rewrite = Rewrite {
            reads: &core.reads,
            lane,
            groups: run,
            name,
            keys_path: core.dir.unfinished_keys_path(&name),
            rules: self.rules,
            ended,
            producers: [
                producers_at(&core.reads, lane, first)?,
                producers_at(&core.reads, lane, &behind)?,
            ],
            pace: &|bytes| self.pace(bytes),
        };
        let rewritten = rewrite.run(live, &mut files)?;
        files.finish(&rewritten, last.id)?;
        let group = self.group_of(name, first, &rewritten);

        let _no_removal = lane.changing_groups.lock();
        if !lane.has_groups(run) || !self.may_replace(run) {
            return Ok(None);
        }
        let start = self.start_in(&group)?;
        let replaced = Record::Replaced {
            by: name,
            last: last.id,
        };
        let versions_from = live.range_end();
        let is_lossy = lane.versions_from() < versions_from && lacks_records(run, &rewritten);
        // Listed first, so that no crash leaves a group without the notes of its missing records.
        let noted = rewritten
            .dropped_to
            .map(|to| self.note_of_dropped(lane.deletions_from().max(to)));
        let versions = is_lossy.then_some(Record::VersionsFrom {
            lane: lane.id,
            from: versions_from,
        });
        let noted = noted.into_iter().chain(versions);
        let records: Vec<Record> = noted.chain([replaced]).collect();
        let manifest = core.dir.manifest();
        let appended = match manifest.append(&records) {
            Err(error) if error.is_disk_full() => return Err(error),
            appended => appended,
        };
        // From here on the list may have the new files, even after a failure.
        files.keep();
        manifest.sync_to(appended?)?;
        // A reader that finds the new group then also finds the notes of its missing records.
        if let Some(to) = rewritten.dropped_to {
            lane.raise_deletions_from(to);
        }
        if is_lossy {
            lane.raise_versions_from(versions_from);
        }
        lane.replace_groups(run, &group, start);
        let now = core.clock.monotonic();
        let stay_until = now.saturating_add(self.order.file_delete_delay);
        core.replaced.add(run, stay_until);
        Ok(Some((group, rewritten)))
    }

    /// Returns the rewritten group, whose files are durable.
    fn group_of(&self, name: GroupName, first: &Group, rewritten: &Rewritten) -> Arc<Group> {
        let stored = StoredGroup {
            position: rewritten.end.position,
            synced: rewritten.end.position,
            end: Some(rewritten.end),
            // Nothing is added to its index any more.
            index_len: 0,
            segments: Vec::new(),
            buffers: Vec::new(),
            entries: Vec::new(),
            index: None,
            has_file: true,
            damage: None,
        };
        let group = Group::stored(name, first.identity(), first.leader_epoch(), stored);
        group.note_key_file(&KeyKind::Primary, rewritten.keys);
        Arc::new(group)
    }

    /// The position of the lane's start in a group, if it is in there.
    fn start_in(&self, group: &Arc<Group>) -> Result<Option<Position>> {
        let start = self.lane.start.offset();
        let end = group.end().map_or(Offset(0), |end| end.offset);
        match (group.first_offset..end).contains(&start) && start > Offset(0) {
            true => position_in(&self.core.reads, self.lane, group, start).map(Some),
            false => Ok(None),
        }
    }

    fn pace(&self, bytes: u64) -> Result<()> {
        check_stored(self.lane)?;
        if self.core.reads.key_files.is_closing() {
            return Err(LogError::Closed);
        }
        (self.order.pace)(bytes)
    }
}
