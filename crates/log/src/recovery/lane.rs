//! A lane while it is recovered: its groups are completed in their order, from the files and from the journal.

use std::collections::VecDeque;
use std::sync::Arc;

use millstream_base::disk::Access;
use millstream_base::{GroupId, Offset, Position};
use millstream_record::{Chunk, Chunks};

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::ids::GroupName;
use crate::journal::run::RecoveredRun;
use crate::memory::pool::Pool;
use crate::producers::Producers;
use crate::recovery::closed::ClosedGroup;
use crate::recovery::foreign::indexed_end;
use crate::recovery::listed::LaneFiles;
use crate::recovery::producers::producers_after;
use crate::recovery::scan::open;
use crate::recovery::tail::{Tail, TailPlace};
use crate::recovery::truncated::TruncatedTails;

pub struct RecoveredLane {
    /// Whole groups before the tail.
    pub closed: Vec<ClosedGroup>,
    /// The first group that is not whole, or the last one.
    pub tail: Tail,
    /// Groups behind the tail that have files. They were written after the tail, and nothing of
    /// them is given up by the journal before the tail is synced: the journal fills the gap.
    pub waiting: VecDeque<GroupName>,
    /// The last group that the lane is known to have had.
    pub last_group: Option<GroupId>,
    /// Its damage, unless the journal heals it.
    pub damage: Option<Damage>,
    /// Bytes that were truncated from the lane's last file.
    pub truncated_bytes: u64,
    /// Bytes that were read of its files may not be synced; some were written again.
    pub is_unsynced: bool,
    /// No write can have torn its files: bytes that do not fit are damage.
    pub is_untorn: bool,
}

pub struct Damage {
    pub error: LogError,
    /// Data up to here was acknowledged, and must be there for the lane to go on.
    pub healed_at: Position,
    /// The journal holds chunks that cannot be appended, since some before them are missing.
    pub has_gap: bool,
}

/// Whether a run was replayed.
pub enum ReplayStep {
    Done,
    /// The pool has no block for its next chunk: try again when memory came free.
    NeedsBuffer,
}

impl RecoveredLane {
    /// A lane that only the journal knows.
    pub fn begin(first: GroupName) -> RecoveredLane {
        RecoveredLane {
            closed: Vec::new(),
            tail: Tail::begin(first, Producers::default()),
            waiting: VecDeque::new(),
            last_group: None,
            damage: None,
            truncated_bytes: 0,
            is_unsynced: false,
            is_untorn: false,
        }
    }

    /// Truncates the torn end of a write behind the tail, after the journal was replayed.
    pub fn truncate_tail(&mut self, dir: &DataDir, torn: &mut TruncatedTails) -> Result<()> {
        let Tail {
            position,
            truncate_from,
            ..
        } = self.tail;
        let lost = truncate_from.0.saturating_sub(position.0);
        if truncate_from <= self.tail.replayed.from || self.damage.is_some() {
            return Ok(());
        }
        let path = dir.group_path(&self.tail.name);
        let why = if lost > 0 && self.is_untorn {
            Some("the last write to this file ended before the program stopped cleanly".to_owned())
        } else if lost > torn.bytes_max() {
            Some(format!(
                "{lost} bytes are more than an interrupted write leaves"
            ))
        } else {
            None
        };
        if let Some(why) = why {
            let what = format!("the bytes that follow are no whole chunk, and {why}");
            let error = LogError::corrupted(path, position, what);
            self.tail.damage = Some(error.clone());
            self.damage = Some(Damage::for_ever(error));
            return Ok(());
        }
        let file = open(dir, &self.tail.name, Access::Write)?;
        if lost > 0 {
            let lane = self.tail.name.lane;
            torn.keep(dir, lane, &*file, &path, position..truncate_from)?;
            self.truncated_bytes = lost;
        }
        file.set_len(self.tail.replayed.from.0)
            .map_err(|error| LogError::io("truncate", &path, error))?;
        self.is_unsynced = true;
        Ok(())
    }

    pub fn read(dir: &DataDir, files: LaneFiles, is_untorn: bool) -> Result<RecoveredLane> {
        let LaneFiles {
            lane,
            listed,
            mut begun,
            first,
            mut foreign,
        } = files;
        if is_untorn {
            // A clean stop leaves no file that was just begun.
            foreign = foreign.or(begun.first().copied());
            begun.clear();
        }
        let (id, offset) = first.unwrap_or((foreign.map_or(GroupId(0), |name| name.id), Offset(0)));
        let last = listed.last().map(|name| name.id);
        // A crash may have interrupted the syncs of those that were begun.
        let is_unsynced = !begun.is_empty();
        for name in &begun {
            let written = dir.write_head_again(name);
            written.map_err(|error| LogError::io("write", dir.group_path(name), error))?;
        }
        let waiting: VecDeque<GroupName> = listed.into_iter().chain(begun).collect();
        let begin = waiting.front().copied();
        let begin = begin.unwrap_or_else(|| GroupName::of_new(lane, id, offset));
        let mut recovered = RecoveredLane {
            waiting,
            last_group: last.max(first.map(|(first, _)| first)),
            is_unsynced,
            is_untorn,
            ..RecoveredLane::begin(begin)
        };
        recovered.read_files(dir)?;
        if let Some(name) = foreign {
            let what = format!(
                "group {name} is not in the list of files, and was not begun by the last run: it was copied here, or the list \
                 is an older one"
            );
            let error = LogError::corrupted(dir.group_path(&name), Position(0), what);
            let damage = recovered.tail.damage.get_or_insert(error);
            recovered.damage = Some(Damage::for_ever(damage.clone()));
        }
        Ok(recovered)
    }

    /// Returns the groups that have files, in their order, up to the first one that has none.
    pub fn with_files(&self) -> impl Iterator<Item = GroupName> {
        let closed = self.closed.iter();
        let closed = closed.map(|group| (&group.name, &group.replayed));
        let all = closed.chain([(&self.tail.name, &self.tail.replayed)]);
        all.take_while(|(_, replayed)| replayed.has_file)
            .map(|(name, _)| *name)
    }

    /// Reads the groups that wait, up to the first one that is not whole.
    fn read_files(&mut self, dir: &DataDir) -> Result<()> {
        // The producers behind the closed groups, unless the last group was not read.
        let mut producers = Some(std::mem::take(&mut self.tail.producers));
        while let Some(name) = self.waiting.pop_front() {
            if let Some(next) = self.waiting.front()
                && let Some((end, identity)) = indexed_end(dir, &name)?
                && end.offset == next.first_offset
            {
                self.closed.push(ClosedGroup::stored(name, end, identity));
                producers = None;
                continue;
            }
            let place = match (self.waiting.is_empty(), self.is_untorn) {
                (true, false) => TailPlace::LastMayBeTorn,
                (true, true) => TailPlace::Last,
                (false, _) => TailPlace::Before,
            };
            let known = || match producers.take() {
                Some(producers) => Ok(producers),
                None => producers_after(dir, &self.closed),
            };
            let (mut tail, damage) = Tail::read(dir, name, place, known)?;
            tail.damage = damage.as_ref().map(|damage| damage.error.clone());
            // A file that has an index was synced, with its name, up to the last entry.
            self.is_unsynced |=
                tail.index_len == 0 || !tail.buffer.is_empty() || place == TailPlace::LastMayBeTorn;
            self.tail = tail;
            self.damage = self.damage.take().or(damage);
            if !self.close_if_whole(dir)? {
                break;
            }
            producers = Some(std::mem::take(&mut self.tail.producers));
        }
        Ok(())
    }

    /// Closes the tail if the lane's next file goes on where it ends.
    fn close_if_whole(&mut self, dir: &DataDir) -> Result<bool> {
        if self
            .waiting
            .front()
            .is_none_or(|next| self.tail.offset != next.first_offset)
        {
            return Ok(false);
        }
        self.tail.close();
        self.tail.flush(dir)?;
        self.begin_group(self.tail.name.id, self.tail.offset);
        Ok(true)
    }

    /// Begins the next group behind the tail, which is closed.
    fn begin_group(&mut self, id: GroupId, first_offset: Offset) {
        let producers = std::mem::take(&mut self.tail.producers);
        let name = GroupName::of_new(self.tail.name.lane, id, first_offset);
        let next = Tail::begin(name, producers);
        let closed = std::mem::replace(&mut self.tail, next);
        self.closed.push(closed.into_closed());
    }

    /// Moves the replayed runs into the files.
    pub fn write_out(&mut self, dir: &DataDir) -> Result<()> {
        for group in &mut self.closed {
            group.replayed.write_out(dir, &mut group.name)?;
        }
        self.tail.flush(dir)?;
        self.tail.replayed.write_out(dir, &mut self.tail.name)
    }

    /// Goes on behind a gap before `to` that nothing has filled: the lane can be read but not written.
    pub fn skip_missing(&mut self, dir: &DataDir, to: GroupId) -> Result<()> {
        while let Some(next) = self.waiting.front()
            && next.id <= to
        {
            let tail = &mut self.tail;
            let error = tail.damage.get_or_insert_with(|| {
                let what = format!(
                    "the group ends before offset {}, the lane's next file, {next}, begins with {}",
                    tail.offset, next.first_offset
                );
                let path = dir.group_path(&tail.name);
                LogError::corrupted(path, tail.position, what)
            });
            let forever = || Damage::for_ever(error.clone());
            let damage = self.damage.get_or_insert_with(forever);
            damage.healed_at = Position(u64::MAX);
            tail.close();
            // The index of a damaged group shows the next start the missing bytes.
            tail.entries.clear();
            self.begin_group(self.tail.name.id, self.tail.offset);
            self.read_files(dir)?;
            self.tail.flush(dir)?;
        }
        Ok(())
    }

    /// Adds the chunks of a run that the lane lacks. Done again, it goes on where it stopped.
    pub fn replay(
        &mut self,
        dir: &DataDir,
        pool: &Arc<Pool>,
        run: RecoveredRun,
        data: &[u8],
    ) -> Result<ReplayStep> {
        let first = self
            .closed
            .first()
            .map_or(self.tail.name.id, |group| group.name.id);
        // Groups before the first are removed, those before the last are whole.
        if run.group < first || run.group < self.tail.name.id {
            return Ok(ReplayStep::Done);
        }
        if run.group > self.tail.name.id {
            self.skip_missing(dir, run.group)?;
        }
        if run.group < self.tail.name.id {
            return Ok(ReplayStep::Done);
        }
        if run.group == self.tail.name.id && self.tail.name.generation.is_rewritten() {
            // It is whole without the journal: the run is of a file that it has replaced.
            return Ok(ReplayStep::Done);
        }
        if run.group == self.tail.name.id && self.tail.is_foreign {
            // Runs of a file that is not the lane's stay in the journal.
            self.note_gap(dir, run);
            return Ok(ReplayStep::Done);
        }
        if run.group > self.tail.name.id {
            let fits = self.tail.offset == run.group_first_offset && run.position == Position(0);
            if !fits || self.damage.is_some() {
                self.note_gap(dir, run);
                return Ok(ReplayStep::Done);
            }
            match self.tail.is_blank() {
                // The list names a group that was never begun.
                true => {
                    let name = GroupName::of_new(run.lane, run.group, run.group_first_offset);
                    let producers = std::mem::take(&mut self.tail.producers);
                    self.tail = Tail::begin(name, producers);
                }
                false => {
                    self.tail.close();
                    self.begin_group(run.group, run.group_first_offset);
                }
            }
        }
        if run.position > self.tail.position {
            self.note_gap(dir, run);
            return Ok(ReplayStep::Done);
        }
        let known = (self.tail.position.0 - run.position.0) as usize;
        if known >= data.len() {
            return Ok(ReplayStep::Done);
        }
        for chunk in Chunks::trusted(&data[known..]) {
            let fits = |chunk: &Chunk<'_>| chunk.header().base_offset == self.tail.offset;
            let Some(chunk) = chunk.ok().filter(fits) else {
                self.note_gap(dir, run);
                return Ok(ReplayStep::Done);
            };
            if !self.tail.make_room(pool, chunk.bytes().len()) {
                return Ok(ReplayStep::NeedsBuffer);
            }
            self.tail.replay(&chunk);
        }
        if self
            .damage
            .as_ref()
            .is_some_and(|damage| !damage.has_gap && damage.healed_at <= self.tail.position)
        {
            self.damage = None;
            self.tail.damage = None;
        }
        if self.damage.is_none() && self.close_if_whole(dir)? {
            self.read_files(dir)?;
            self.tail.flush(dir)?;
        }
        Ok(ReplayStep::Done)
    }

    fn note_gap(&mut self, dir: &DataDir, run: RecoveredRun) {
        let path = dir.group_path(&self.tail.name);
        let damage = self.damage.get_or_insert_with(|| {
            let what = format!(
                "the journal goes on at byte {} of group {}, and the bytes before it are missing",
                run.position, run.group
            );
            Damage::for_ever(LogError::corrupted(path, self.tail.position, what))
        });
        damage.has_gap = true;
        self.tail.damage.get_or_insert_with(|| damage.error.clone());
    }
}

impl Damage {
    pub fn for_ever(error: LogError) -> Damage {
        Damage {
            error,
            healed_at: Position(u64::MAX),
            has_gap: false,
        }
    }
}
