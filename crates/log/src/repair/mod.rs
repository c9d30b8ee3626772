//! Repair: finds damage, and removes it while the log is closed, for `millstream repair`.
//!
//! A lane is truncated at its damage: the bytes behind it go to the folder `aside`, with the runs that the
//! journal holds of the lane, and the lane goes on with a new group, whose number is above all that the
//! journal knows. So the next start passes over these runs, and then removes the journal. Each
//! step can be interrupted: the lane is damaged then as before, or whole.

mod deletions;
mod epochs;
pub mod salvage;
mod take;

use std::path::PathBuf;
use std::sync::Arc;

use millstream_base::{GroupId, Offset, Position, StreamId, StreamletIndex};
use millstream_record::Chunks;
use serde::Serialize;
use uuid::Uuid;

use crate::catalog::POSITIONS;
use crate::core::Core;
use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::files::group_head::GroupHead;
use crate::files::manifest::Record;
use crate::group::Group;
use crate::ids::GroupName;
use crate::journal::old::OldJournal;
use crate::lane::LaneState;
use crate::log::Log;
use crate::read::catch_up::windows::WINDOW_BYTES;
use crate::read::group::read_group;
use crate::settings::config::LogConfig;
use crate::stream::StreamState;

const PREFIX: &str = "repair.";

/// A place where a lane is damaged.
#[derive(Debug, Clone, Serialize)]
pub struct PartitionDamage {
    /// The stream's name.
    pub stream: String,
    /// The lane's number among all of the stream.
    pub partition: u32,
    /// The first offset that cannot be read.
    pub offset: Offset,
    /// The damage, with file and position.
    pub what: String,
    #[serde(skip)]
    group: GroupName,
    #[serde(skip)]
    position: Position,
}

/// The files that a repair took away.
#[derive(Debug, Clone, Default, Serialize)]
pub struct FilesAside {
    /// Files in the folder `aside` that have it.
    pub files: Vec<PathBuf>,
    /// Bytes in them.
    pub bytes: u64,
}

impl Log {
    /// Reads all that streams hold, and returns the places where they are damaged, lane by lane in the order of the
    /// offsets.
    pub fn find_damage(&self) -> Vec<PartitionDamage> {
        let core = &self.inner.core;
        // The disk may have lost bytes that memory still has.
        core.reads.catch_up.forget();
        let mut lanes = core.made_lanes();
        lanes.retain(|lane| !lane.is_memory_only());
        lanes.sort_by_key(|lane| lane.stream.id);
        let mut places = Vec::new();
        for lane in lanes {
            find_lane_damage(core, &lane, &mut places);
        }
        places
    }

    /// Truncates the lanes of a stream where they are damaged first, and closes the log. Returns the files that it
    /// took away; `None` if nothing is damaged.
    ///
    /// # Errors
    /// When there is no such stream, or the files cannot be changed.
    pub fn truncate_stream(self, name: &str) -> Result<Option<FilesAside>> {
        let stream = self.any_stream(name)?;
        let mut places = self.find_damage();
        places.retain(|place| place.group.lane.stream == stream.shared.id);
        // The first one of each lane.
        places.dedup_by_key(|place| place.group.lane);
        if places.is_empty() {
            self.close()?;
            return Ok(None);
        }
        let identity = stream.shared.uuid;
        let mut repair = self.into_repair()?;
        for place in &places {
            repair.truncate(place, identity)?;
        }
        Ok(Some(repair.finish()))
    }

    /// Takes a stream away, with all that the journal holds of it, and closes the log.
    ///
    /// # Errors
    /// When there is no such stream, or the files cannot be changed.
    pub fn quarantine_stream(self, name: &str) -> Result<FilesAside> {
        let stream = self.any_stream(name)?;
        let config = self.inner.core.config.clone();
        let disk = Arc::clone(&self.inner.core.dir.disk);
        let clock = Arc::clone(&self.inner.core.clock);
        let random = Arc::clone(&self.inner.random);
        let mut repair = self.into_repair()?;
        repair.take_stream(stream.shared.id)?;
        let taken = repair.finish();
        let log = Log::open_on(config, disk, clock, random)?;
        let stream = log.any_stream(name)?;
        log.inner.delete(&stream)?;
        log.close()?;
        Ok(taken)
    }

    /// The stream of this name, be it a user's or the node's own.
    fn any_stream(&self, name: &str) -> Result<Arc<StreamState>> {
        let streams = self.inner.core.streams.read();
        let id = streams.by_name.get(name);
        let stream = id.and_then(|id| streams.by_id.get(id)).cloned();
        // Without the log's own tables it does not open.
        stream
            .filter(|stream| stream.shared.id > POSITIONS)
            .ok_or_else(|| LogError::UnknownStream {
                name: name.to_owned(),
            })
    }

    fn into_repair(self) -> Result<Repair> {
        let config = self.inner.core.config.clone();
        let disk = Arc::clone(&self.inner.core.dir.disk);
        let random = Arc::clone(&self.inner.random);
        self.close()?;
        let dir = DataDir::open(disk, random, &config.dir)?;
        let journal = OldJournal::find(&dir)?;
        Repair::new(&config, dir, journal)
    }
}

/// Looks for the damage of a lane.
fn find_lane_damage(core: &Core, lane: &LaneState, places: &mut Vec<PartitionDamage>) {
    let before = places.len();
    let place = |group: Option<&Group>, position, offset, what: &LogError| PartitionDamage {
        stream: lane.stream.name.clone(),
        partition: lane.partition,
        offset,
        what: what.to_string(),
        group: match group {
            Some(group) => group.name(),
            None => GroupName::of_new(lane.id, GroupId(0), Offset(0)),
        },
        position,
    };
    for group in lane.groups() {
        let mut at = Position(0);
        let mut offset = group.first_offset;
        loop {
            match read_group(&core.reads, lane, &group, at, WINDOW_BYTES) {
                Ok(Some(slice)) => {
                    at = at.plus(slice.len() as u64);
                    let chunks = Chunks::trusted(&slice).flatten();
                    offset = chunks
                        .last()
                        .map_or(offset, |chunk| chunk.header().next_offset());
                }
                Ok(None) => break,
                // Memory for reading is short: other readers hold it, and will give it back.
                Err(LogError::ReadBudget) => std::thread::yield_now(),
                Err(error) => {
                    places.push(place(Some(&group), at, offset, &error));
                    break;
                }
            }
        }
    }
    if let Some(fault) = lane.fault()
        && places.len() == before
    {
        let group = lane.last_group();
        let position = group.as_ref().map_or(Position(0), |group| group.durable());
        places.push(place(
            group.as_deref(),
            position,
            lane.durable_offset(),
            fault,
        ));
    }
}

/// A data directory whose log is closed.
pub struct Repair {
    pub dir: DataDir,
    pub journal: OldJournal,
    /// The number of this repair.
    number: u64,
    folder: PathBuf,
    taken: FilesAside,
}

impl Repair {
    pub fn new(config: &LogConfig, dir: DataDir, journal: OldJournal) -> Result<Repair> {
        debug_assert_eq!(config.dir, dir.root);
        let folder = dir.aside_dir()?;
        let taken = dir.aside_entries(PREFIX)?;
        let last = taken.iter().map(|(number, _)| *number).max();
        Ok(Repair {
            dir,
            journal,
            number: last.unwrap_or(0) + 1,
            folder,
            taken: FilesAside::default(),
        })
    }

    /// Truncates a lane at a place.
    fn truncate(&mut self, place: &PartitionDamage, identity: Uuid) -> Result<()> {
        let GroupName { lane, id, .. } = place.group;
        let stream = lane.stream;
        let journal_last = self.take_runs(stream, Some(lane))?;
        let all = self.groups_of(stream)?;
        let last = self.last_group(stream, lane.streamlet)?.0;
        let next = GroupId(last.max(journal_last).max(id.0) + 1);
        // They may depend on ends of transactions that the repair removes.
        self.dir
            .remove_key_files(stream, |name, _| name.lane == lane)?;

        // The list is without them before they go: until then they would be missed. From then on they look as if they had
        // just been begun, and are damaged as before.
        let whole = match place.position {
            Position(0) => id,
            _ => GroupId(id.0 + 1),
        };
        let first_offset = match place.position {
            Position(0) => place.group.first_offset,
            _ => place.offset,
        };
        let manifest = self.dir.manifest();
        manifest.change(|listed| {
            listed.forget_from(lane, whole);
            listed.limit_compacted(lane, first_offset);
        })?;
        let mut behind: Vec<GroupName> = all
            .iter()
            .filter(|name| name.lane == lane && name.id >= id)
            .copied()
            .collect();
        behind.sort_unstable();
        for name in behind.into_iter().rev() {
            if name == place.group && place.position > Position(0) {
                self.take_end(&name, place.position)?;
                self.take_file(stream, &self.dir.keys_path(&name))?;
                self.take_file(stream, &self.dir.index_path(&name))?;
            } else {
                self.take_group(&name)?;
            }
        }
        self.dir.create_stream_dir(stream)?;
        // Consumers may have read the records that the repair removes.
        let epochs = self.dir.manifest().look_at(|listed| listed.epochs(lane));
        let epoch = epochs.last().map_or(0, |last| last.0) + 1;
        let name = GroupName::of_new(lane, next, first_offset);
        self.dir
            .create_group(&GroupHead::of_first(name, identity, epoch))
            .and_then(|file| file.sync())
            .map_err(|error| LogError::io("make", self.dir.group_path(&name), error))?;
        self.dir.sync_stream_dir(stream)?;
        let manifest = self.dir.manifest();
        let raised = Record::Epoch {
            lane,
            epoch,
            from: first_offset,
        };
        manifest.sync_to(manifest.append(&[Record::Group(name), raised])?)
    }

    /// Returns the groups of a stream that have files, or that are listed.
    fn groups_of(&self, stream: StreamId) -> Result<Vec<GroupName>> {
        let (groups, indexes) = self.dir.list_groups(stream)?;
        let mut all: Vec<GroupName> = groups.into_iter().chain(indexes).collect();
        self.dir.manifest().look_at(|listed| {
            for (id, lane) in listed.lanes().filter(|(id, _)| id.stream == stream) {
                all.extend(lane.groups(id));
            }
        });
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// Returns the last group that a streamlet has, or is known to have had.
    pub fn last_group(&self, stream: StreamId, streamlet: StreamletIndex) -> Result<GroupId> {
        let all = self.groups_of(stream)?.into_iter();
        let of_streamlet = all.filter(|name| name.lane.streamlet == streamlet);
        let stored = of_streamlet.map(|name| name.id).max();
        let listed = self.dir.manifest().look_at(|listed| {
            let lanes = listed.lanes();
            let lanes = lanes.filter(|(id, _)| (id.stream, id.streamlet) == (stream, streamlet));
            lanes.filter_map(|(_, lane)| lane.last_group()).max()
        });
        Ok(stored.max(listed).unwrap_or(GroupId(0)))
    }

    /// Takes all files of a stream away.
    fn take_stream(&mut self, stream: StreamId) -> Result<()> {
        self.take_runs(stream, None)?;
        let all = self.groups_of(stream)?;
        let manifest = self.dir.manifest();
        manifest.change(|listed| listed.retain_streams(|other| other != stream))?;
        all.iter().try_for_each(|name| self.take_group(name))
    }

    pub fn finish(self) -> FilesAside {
        self.dir.unlock();
        self.taken
    }
}
