//! The files that the manifest lists, as its records leave them.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use millstream_base::{GroupId, Offset, Position, StreamId, Timestamp};

use crate::files::manifest::record::Record;
use crate::ids::{Generation, GroupName, LaneId};
use crate::lane::epochs::begin;

/// All files that are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    lanes: HashMap<LaneId, ListedLane>,
    /// The journal's files, by their sequences.
    journal: BTreeMap<u64, ListedJournalFile>,
}

/// A file of the journal that is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedJournalFile {
    pub secret: u64,
    /// The end of its blocks, once a start has found it.
    pub end: Option<Position>,
}

/// The files of a lane that are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedLane {
    /// The group and the offset that the lane begins with. `None` where no group was ever removed: it begins with
    /// its first file.
    first: Option<(GroupId, Offset)>,
    /// In the order of their ids.
    groups: Vec<ListedGroup>,
    /// The leader epochs, each with the offset that it begins at. Both rise.
    epochs: Vec<(i32, Offset)>,
    compacted: Option<ListedCompaction>,
    /// See [`Record::VersionsFrom`]. `None` where no compaction of this program has dropped a record.
    versions_from: Option<Offset>,
}

/// The compaction state of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ListedCompaction {
    /// The offset up to which the lane is compacted.
    to: Offset,
    /// The time of that compaction.
    at: Timestamp,
    /// See [`Record::Compacted`].
    deletions_from: Option<Offset>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ListedGroup {
    id: GroupId,
    first_offset: Offset,
    generation: Generation,
}

impl Listed {
    /// Takes a record over.
    ///
    /// # Errors
    /// When it does not follow from the records before it. Nothing is changed then.
    pub fn apply(&mut self, record: Record) -> Result<(), String> {
        match record {
            Record::Group(name) => self.lanes.entry(name.lane).or_default().add(name),
            Record::First {
                lane,
                group,
                offset,
            } => self.lanes.entry(lane).or_default().begin_at(group, offset),
            Record::Replaced { by, last } => match self.lanes.get_mut(&by.lane) {
                Some(lane) => lane.replace(by, last),
                None => Err(format!("{by} replaces groups of a lane that is not listed")),
            },
            Record::Epoch { lane, epoch, from } => {
                let known = self.lane(lane).and_then(|lane| lane.epochs.last());
                let rises = epoch > known.map_or(0, |last| last.0);
                check(rises, || {
                    format!("leader epoch {epoch} does not follow the former")
                })?;
                let lane = self.lanes.entry(lane).or_default();
                begin(&mut lane.epochs, epoch, from);
                Ok(())
            }
            Record::Compacted {
                lane,
                to,
                at,
                deletions_from,
            } => {
                self.lanes.entry(lane).or_default().compacted = Some(ListedCompaction {
                    to,
                    at,
                    deletions_from,
                });
                Ok(())
            }
            Record::VersionsFrom { lane, from } => {
                self.lanes.entry(lane).or_default().versions_from = Some(from);
                Ok(())
            }
            Record::JournalFile {
                sequence,
                secret,
                end,
            } => {
                let end = (end > Position(0)).then_some(end);
                let known = self.journal_file(sequence);
                let follows = known.is_none_or(|known| {
                    known.secret == secret && (known.end.is_none() || known.end == end)
                });
                check(follows, || {
                    format!("journal file {sequence} is listed twice")
                })?;
                self.journal
                    .insert(sequence, ListedJournalFile { secret, end });
                Ok(())
            }
            Record::JournalReleased { sequence } => {
                let removed = self.journal.remove(&sequence);
                check(removed.is_some(), || {
                    format!("journal file {sequence} is released and not listed")
                })
            }
            Record::End { .. } => Ok(()),
        }
    }

    /// Returns the files of a lane, if anything of it is listed.
    pub fn lane(&self, lane: LaneId) -> Option<&ListedLane> {
        self.lanes.get(&lane)
    }

    /// Returns the leader epochs of a lane behind epoch 0, each with the offset that it begins at.
    pub fn epochs(&self, lane: LaneId) -> Vec<(i32, Offset)> {
        let lane = self.lanes.get(&lane);
        lane.map_or_else(Vec::new, |lane| lane.epochs.clone())
    }

    /// Returns from where on a lane has all deletions: see [`ListedLane::deletions_from`].
    pub fn deletions_from(&self, lane: LaneId) -> Offset {
        let lane = self.lanes.get(&lane);
        lane.map_or(Offset(0), ListedLane::deletions_from)
    }

    /// Returns from where on a lane has all versions of keys: see [`ListedLane::versions_from`].
    pub fn versions_from(&self, lane: LaneId) -> Offset {
        let lane = self.lanes.get(&lane);
        lane.map_or(Offset(0), ListedLane::versions_from)
    }

    /// Returns the files of the journal with their sequences, in the order of these.
    pub fn journal(&self) -> impl Iterator<Item = (u64, ListedJournalFile)> {
        let files = self.journal.iter();
        files.map(|(sequence, file)| (*sequence, *file))
    }

    /// Returns the file of the journal with this sequence, if it is listed.
    pub fn journal_file(&self, sequence: u64) -> Option<ListedJournalFile> {
        self.journal.get(&sequence).copied()
    }

    /// Takes a file of the journal out of the list.
    pub fn forget_journal_file(&mut self, sequence: u64) {
        self.journal.remove(&sequence);
    }

    /// Returns the lanes of which anything is listed, in no particular order.
    pub fn lanes(&self) -> impl Iterator<Item = (LaneId, &ListedLane)> {
        self.lanes.iter().map(|(id, lane)| (*id, lane))
    }

    /// Takes the files of a lane from a group on out of the list.
    pub fn forget_from(&mut self, lane: LaneId, from: GroupId) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.groups.retain(|group| group.id < from);
        }
    }

    /// Takes note that a lane now ends at an offset: compaction has not seen the records that come behind it.
    pub fn limit_compacted(&mut self, lane: LaneId, end: Offset) {
        let lane = self.lanes.get_mut(&lane);
        if let Some(compacted) = lane.and_then(|lane| lane.compacted.as_mut()) {
            compacted.to = compacted.to.min(end);
        }
    }

    /// Forgets the streams that do not exist.
    pub fn retain_streams(&mut self, exists: impl Fn(StreamId) -> bool) {
        self.lanes.retain(|lane, _| exists(lane.stream));
    }

    /// Returns the records that leave this list, lane by lane.
    pub fn records(&self) -> Vec<Record> {
        let mut lanes: Vec<_> = self.lanes.iter().collect();
        lanes.sort_unstable_by_key(|(id, _)| **id);
        let mut records = Vec::new();
        for (id, lane) in lanes {
            records.extend(lane.records(*id));
        }
        let journal = self.journal();
        records.extend(journal.map(|(sequence, file)| Record::JournalFile {
            sequence,
            secret: file.secret,
            end: file.end.unwrap_or(Position(0)),
        }));
        records
    }
}

impl ListedLane {
    /// Returns the group and the offset that the lane begins with, where groups before them were removed.
    pub fn first(&self) -> Option<(GroupId, Offset)> {
        self.first
    }

    /// Returns up to where the lane is compacted, and when that was.
    pub fn compacted(&self) -> Option<(Offset, Timestamp)> {
        self.compacted.map(|known| (known.to, known.at))
    }

    /// Returns the offset from which on no deletion was dropped that is the newest version of its key. Where an earlier program
    /// has compacted the lane, it may have dropped all up to the end of that.
    pub fn deletions_from(&self) -> Offset {
        let known = self.compacted.as_ref();
        known.map_or(Offset(0), |known| known.deletions_from.unwrap_or(known.to))
    }

    /// Returns the offset before which all records are that made compaction drop older ones of their keys. Where an earlier
    /// program has rewritten a group, or a repair has made the list anew, they may be anywhere.
    pub fn versions_from(&self) -> Offset {
        let is_rewritten = |group: &ListedGroup| group.generation.is_rewritten();
        self.versions_from
            .unwrap_or_else(|| match self.groups.iter().any(is_rewritten) {
                true => Offset(u64::MAX),
                false => Offset(0),
            })
    }

    /// Returns the names of the groups' files, in the order of the groups.
    pub fn groups(&self, lane: LaneId) -> impl Iterator<Item = GroupName> {
        self.groups.iter().map(move |group| GroupName {
            lane,
            id: group.id,
            first_offset: group.first_offset,
            generation: group.generation,
        })
    }

    /// Returns the last group that the lane has, or has had.
    pub fn last_group(&self) -> Option<GroupId> {
        let last = self.groups.last().map(|group| group.id);
        last.max(self.first.map(|(first, _)| first))
    }

    /// Returns whether a group's file is listed.
    pub fn contains(&self, name: &GroupName) -> bool {
        let found = self.groups.binary_search_by_key(&name.id, |group| group.id);
        found.is_ok_and(|at| self.groups[at] == ListedGroup::of(*name))
    }

    fn records(&self, lane: LaneId) -> impl Iterator<Item = Record> {
        let first = self.first.map(|(group, offset)| Record::First {
            lane,
            group,
            offset,
        });
        let epochs = self.epochs.iter();
        let epochs = epochs.map(move |(epoch, from)| Record::Epoch {
            lane,
            epoch: *epoch,
            from: *from,
        });
        let compacted = self.compacted.map(|known| Record::Compacted {
            lane,
            to: known.to,
            at: known.at,
            deletions_from: known.deletions_from,
        });
        let versions = self.versions_from;
        let versions = versions.map(|from| Record::VersionsFrom { lane, from });
        first
            .into_iter()
            .chain(self.groups(lane).map(Record::Group))
            .chain(epochs)
            .chain(compacted)
            .chain(versions)
    }

    fn add(&mut self, name: GroupName) -> Result<(), String> {
        let last = self.groups.last().map(|last| (last.id, last.first_offset));
        let follows = last.is_none_or(|(id, offset)| id < name.id && offset <= name.first_offset)
            && self.first.is_none_or(|(first, _)| first <= name.id);
        check(follows, || {
            format!("group {name} does not follow those before it")
        })?;
        self.groups.push(ListedGroup::of(name));
        Ok(())
    }

    fn begin_at(&mut self, group: GroupId, offset: Offset) -> Result<(), String> {
        let rises = self
            .first
            .is_none_or(|first| first.0 <= group && first.1 <= offset);
        check(rises, || {
            format!("group {group} as the lane's first is before the former one")
        })?;
        self.groups.retain(|listed| listed.id >= group);
        // The epoch of the new first record stays.
        let behind = self.epochs.partition_point(|start| start.1 <= offset);
        self.epochs.drain(..behind.saturating_sub(1));
        self.first = Some((group, offset));
        Ok(())
    }

    fn replace(&mut self, by: GroupName, last: GroupId) -> Result<(), String> {
        let start = self.groups.partition_point(|group| group.id < by.id);
        let end = self.groups.partition_point(|group| group.id <= last);
        let replaced = self.groups.get(start..end).unwrap_or_default();
        let fits = replaced
            .first()
            .is_some_and(|first| first.id == by.id && first.first_offset == by.first_offset)
            && replaced
                .iter()
                .all(|group| group.generation < by.generation);
        check(fits, || {
            format!("{by} replaces groups up to {last} that are not listed")
        })?;
        self.groups.splice(start..end, [ListedGroup::of(by)]);
        Ok(())
    }
}

impl ListedGroup {
    fn of(name: GroupName) -> ListedGroup {
        ListedGroup {
            id: name.id,
            first_offset: name.first_offset,
            generation: name.generation,
        }
    }
}

fn check(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    match holds {
        true => Ok(()),
        false => Err(what()),
    }
}
