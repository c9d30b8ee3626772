//! The files of the lanes, compared with the manifest.
//!
//! Rule M of the [`manifest`](crate::files::manifest): a listed file's name is durable, and no byte of a file counts before the
//! file is listed. So for each lane
//!
//! 1. a listed file that is missing was lost: the lane is damaged, and keeps all of its files,
//! 2. a file of a group before the lane's first one, or among the listed ones, is a leftover of a removal,
//! 3. a file of a group behind the last one was just begun: the lane goes on with it where it fits. If its head never
//!    reached the medium, it is a leftover, as are the files behind it: their chunks are in the journal, or were never
//!    acknowledged. After a clean stop there is none; then the lane is damaged.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashSet;
use millstream_base::disk::Access;
use millstream_base::{GroupId, Offset, StreamId};

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::files::manifest::{Listed, ListedLane};
use crate::files::stream_dirs::GroupFiles;
use crate::ids::{GroupName, LaneId};

/// The files of a lane.
pub struct LaneFiles {
    pub lane: LaneId,
    /// The listed groups in order, including missing ones.
    pub listed: Vec<GroupName>,
    /// The groups that were begun behind the listed ones, in order; empty if listed groups are missing.
    pub begun: Vec<GroupName>,
    /// The group and offset that the lane begins with, if groups were removed.
    pub first: Option<(GroupId, Offset)>,
    /// A group that can be neither a leftover nor just begun.
    pub foreign: Option<GroupName>,
}

/// The files of a stream.
pub struct StreamFiles {
    pub lanes: Vec<LaneFiles>,
    /// Groups whose files are leftovers.
    pub leftovers: Vec<GroupName>,
    /// The names of other leftovers.
    pub unfinished: Vec<String>,
}

/// Returns the streams that have a folder, or files that are listed.
pub fn streams(dir: &DataDir, listed: &Listed) -> Result<BTreeMap<StreamId, BTreeSet<LaneId>>> {
    let mut streams: BTreeMap<StreamId, BTreeSet<LaneId>> = BTreeMap::new();
    for stream in dir.list_streams()? {
        streams.entry(stream).or_default();
    }
    for (lane, _) in listed.lanes() {
        streams.entry(lane.stream).or_default().insert(lane);
    }
    Ok(streams)
}

/// Compares the files of a stream, some of whose lanes are listed, with the list.
pub fn compare(
    dir: &DataDir,
    stream: StreamId,
    listed_lanes: &BTreeSet<LaneId>,
    listed: &Listed,
) -> Result<StreamFiles> {
    let GroupFiles {
        groups,
        lone_indexes,
        lone_keys,
        unfinished,
    } = dir.group_files(stream)?;
    let mut found: BTreeMap<LaneId, Found> = BTreeMap::new();
    for lane in listed_lanes {
        found.insert(*lane, Found::default());
    }
    for name in groups {
        found.entry(name.lane).or_default().groups.push(name);
    }
    for name in lone_indexes {
        found.entry(name.lane).or_default().indexes.push(name);
    }
    let mut files = StreamFiles {
        lanes: Vec::with_capacity(found.len()),
        leftovers: Vec::new(),
        unfinished,
    };
    let mut whole = HashSet::new();
    for (id, found) in found {
        let (lane, leftovers) = compare_lane(dir, id, listed.lane(id), found)?;
        if let Some(leftovers) = leftovers {
            whole.insert(id);
            files.leftovers.extend(leftovers);
        }
        files.lanes.push(lane);
    }
    // They can be made again.
    let lone_keys = lone_keys.into_iter();
    files
        .leftovers
        .extend(lone_keys.filter(|name| whole.contains(&name.lane)));
    Ok(files)
}

/// The files of a lane that are there.
#[derive(Default)]
struct Found {
    groups: Vec<GroupName>,
    /// The indexes of groups without a file.
    indexes: Vec<GroupName>,
}

/// Compares a lane. There are no leftovers where listed files are missing: the list may be another one.
fn compare_lane(
    dir: &DataDir,
    id: LaneId,
    listed: Option<&ListedLane>,
    mut found: Found,
) -> Result<(LaneFiles, Option<Vec<GroupName>>)> {
    let mut lane = LaneFiles {
        lane: id,
        listed: listed.map_or_else(Vec::new, |lane| lane.groups(id).collect()),
        begun: Vec::new(),
        first: listed.and_then(ListedLane::first),
        foreign: None,
    };
    let there: HashSet<GroupName> = found.groups.iter().copied().collect();
    if !lane.listed.iter().all(|name| there.contains(name)) {
        return Ok((lane, None));
    }
    let known: HashSet<GroupName> = lane.listed.iter().copied().collect();
    found.groups.sort_unstable();
    found.indexes.sort_unstable();
    let mut leftovers = Vec::new();
    for name in found.groups {
        match lane.place_of(&name) {
            _ if known.contains(&name) => {}
            FilePlace::Behind => lane.begun.push(name),
            FilePlace::Passed => leftovers.push(name),
            FilePlace::Nowhere => lane.foreign = lane.foreign.or(Some(name)),
        }
    }
    for name in found.indexes {
        match lane.place_of(&name) {
            FilePlace::Passed => leftovers.push(name),
            // An index is made behind the list's record.
            FilePlace::Behind | FilePlace::Nowhere => lane.foreign = lane.foreign.or(Some(name)),
        }
    }
    let torn = torn_head(dir, &lane.begun)?;
    leftovers.extend(lane.begun.split_off(torn));
    // The lane's first group begins where the list says.
    let (_, start) = lane.first.unwrap_or((GroupId(0), Offset(0)));
    if lane.listed.is_empty()
        && lane
            .begun
            .first()
            .is_some_and(|name| name.first_offset != start)
    {
        lane.foreign = lane.foreign.or(lane.begun.first().copied());
        lane.begun.clear();
    }
    Ok((lane, Some(leftovers)))
}

/// Returns the number of files before the first one whose head is not whole.
fn torn_head(dir: &DataDir, begun: &[GroupName]) -> Result<usize> {
    for (n, name) in begun.iter().enumerate() {
        if !name.has_head() {
            continue;
        }
        let opened = dir.open_with_head(name, Access::Read);
        let (_, head) =
            opened.map_err(|error| LogError::io("read", dir.group_path(name), error))?;
        if head.is_none() {
            return Ok(n);
        }
    }
    Ok(begun.len())
}

/// The place of a file that is not listed.
enum FilePlace {
    /// Its group is before the lane's first one, or among those that are listed.
    Passed,
    /// Its group is behind those that are listed.
    Behind,
    Nowhere,
}

impl LaneFiles {
    fn place_of(&self, name: &GroupName) -> FilePlace {
        let first = self.first.map(|(first, _)| first);
        if first.is_some_and(|first| name.id < first) {
            return FilePlace::Passed;
        }
        match (self.listed.first(), self.listed.last()) {
            (Some(first), _) if name.id < first.id => FilePlace::Nowhere,
            (_, Some(last)) if name.id <= last.id => FilePlace::Passed,
            _ => FilePlace::Behind,
        }
    }

    /// Returns whether the lane has nothing, and never had anything.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
            && self.begun.is_empty()
            && self.first.is_none()
            && self.foreign.is_none()
    }
}
