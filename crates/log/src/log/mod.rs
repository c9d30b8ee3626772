//! The log of one node, as its users see it.

pub mod deletion;

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use hashbrown::{HashMap, HashSet};
use millstream_base::{
    ByteSize, Clock, Cursor, Disk, GroupId, LaneIndex, Offset, Position, ProducerId, Random,
    SegmentIndex, StreamId, StreamletIndex, SystemClock, SystemDisk, SystemRandom, Timestamp,
};
use millstream_record::{ChunkHeader, check};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::abort::AbortOnPanic;
use crate::catalog::data_notes::{check_data, forget_data, note_all_data};
use crate::catalog::table::Table;
use crate::core::Core;
use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::ids::LaneId;
use crate::journal::{Journal, OldJournal};
use crate::lane::LaneState;
use crate::lane::append::Appended;
use crate::lane::persist_signal::TICK;
use crate::log::deletion::restore_starts;
use crate::memory::pool::{Arena, Pool};
use crate::names::{OWN_PREFIX, check_name};
use crate::object::{ObjectInfo, ObjectReader, write_content};
use crate::produce::append::{append_to_lane, check_foreign};
use crate::produce::wait::{poll, wait_durable, wait_for};
use crate::read::group::read_group;
use crate::read::reader::{From, LaneReader, ReadChunks, StreamReader};
use crate::read::seek::{seek_offset, seek_timestamp};
use crate::recovery::Recovered;
use crate::repair::salvage::SALVAGED;
use crate::settings::config::{Background, Durability, LogConfig, StreamConfig};
use crate::settings::defaults::StreamDefaults;
use crate::shared_group::Application;
use crate::stream::{Named, Shape, StreamKind, StreamState};

/// The stream of the catalog: which streams and objects there are.
pub const CATALOG: StreamId = StreamId(0);

/// The stream of the positions that applications committed.
pub(crate) const POSITIONS: StreamId = StreamId(1);

/// The first id of a user's stream.
const FIRST_STREAM: u64 = 16;

/// So many steps of persistence are done before anything else gets its turn.
const PERSIST_STEPS_MAX: usize = 64;

/// Threads that make commits. They wait for the disk most of the time, so there is no harm in more
/// than cores; more than a disk works on at once would not help either.
const SYNCERS: usize = 4;

/// The log of one node.
#[derive(Debug, Clone)]
pub struct Log {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) core: Arc<Core>,
    pub(crate) catalog: Arc<Table>,
    positions: Arc<Table>,
    applications: Mutex<HashMap<(StreamId, String), Arc<Application>>>,
    /// Removals and changes are done one at a time.
    pub(crate) changing: Mutex<()>,
    /// Names whose streams are being created: not to be used before that is durable.
    creating: Mutex<HashSet<String>>,
    /// Some name is not in `creating` any more.
    created: Condvar,
    pub(crate) random: Arc<dyn Random>,
    syncers: Mutex<Vec<JoinHandle<()>>>,
    persister: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("core", &self.core)
            .finish_non_exhaustive()
    }
}

/// What the catalog says of a stream.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct CatalogEntry {
    id: StreamId,
    uuid: Uuid,
    kind: StreamKind,
    config: StreamConfig,
    shapes: Vec<Shape>,
}

/// What is known of a stream.
#[derive(Debug, Clone, Serialize)]
pub struct StreamInfo {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: StreamId,
    /// What tells it from all other streams that there have been or will be, also of its name. Nil for
    /// the log's own.
    pub uuid: Uuid,
    /// Its settings.
    pub config: StreamConfig,
    /// Its lanes, by partition.
    pub lanes: Vec<LaneInfo>,
}

/// What is known of a lane.
#[derive(Debug, Clone, Serialize)]
pub struct LaneInfo {
    /// Its number among all of the stream.
    pub partition: u32,
    /// The streamlet that it belongs to.
    pub streamlet: StreamletIndex,
    /// Its number in the streamlet.
    pub lane: LaneIndex,
    /// The offset of the first record that is stored.
    pub earliest: Offset,
    /// The offset behind the last durable record.
    pub durable: Offset,
    /// Groups that are stored.
    pub groups: usize,
    /// Durable bytes.
    pub bytes: u64,
    /// Bytes that the start cut from the end of its last file, which a crash had left incomplete.
    pub cut_bytes: u64,
    /// Why it refuses writes, or which damage a read has met.
    pub fault: Option<String>,
}

/// How a log is doing.
#[derive(Debug, Clone, Serialize)]
pub struct LogStats {
    /// Memory for segments.
    pub pool_bytes: u64,
    /// How much of it is in use.
    pub pool_used_bytes: u64,
    /// Blocks written to the journal: each is one write and one sync.
    pub journal_blocks: u64,
    /// Bytes of chunks in them.
    pub journal_bytes: u64,
    /// Journal files on disk.
    pub journal_files: usize,
    /// Commits straight into group files.
    pub direct_commits: u64,
    /// Bytes of chunks in them.
    pub direct_bytes: u64,
    /// Groups that the persistence manager brought up to date.
    pub persisted_groups: u64,
    /// Segments whose buffers were given back.
    pub evicted_segments: u64,
    /// Whether writes are refused since the disk is full.
    pub disk_full: bool,
    /// Lanes that refuse writes, or of which a read has met damage.
    pub faulted_lanes: u64,
    /// How often reads met damage.
    pub damaged_reads: u64,
    /// Memory that records are decompressed and rebuilt in, now; see [`LogConfig::decompression`].
    pub decompression_bytes: u64,
    /// The most that was ever in use of it, with what is kept for the next time.
    pub decompression_peak_bytes: u64,
}

impl Log {
    /// Opens the log in `config.dir` with the operating system's disk, clock and randomness; founds
    /// it when the folder is empty or missing.
    ///
    /// # Errors
    /// When the folder is locked, read-only, foreign, of a newer format or corrupted.
    pub fn open(config: LogConfig) -> Result<Log> {
        Log::open_on(
            config,
            Arc::new(SystemDisk),
            Arc::new(SystemClock::default()),
            Arc::new(SystemRandom),
        )
    }

    /// Opens the log on a disk, a clock and a randomness of the caller's.
    ///
    /// # Errors
    /// See [`Log::open`].
    pub fn open_on(
        config: LogConfig,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Log> {
        config.check()?;
        let dir = DataDir::open(disk, &config.dir)?;
        let pool = Pool::new(config.pool.as_usize(), config.catch_up.as_usize())
            .map_err(|error| LogError::io("allocate", "the pool's shared memory", error))?;

        // What the last run left.
        let old_journal = OldJournal::find(&dir)?;
        let mut recovered = Recovered::read(&dir, &pool, &old_journal)?;
        let secret = draw(&*random)?;
        let journal = Journal::new(
            old_journal.next_sequence(clock.now()),
            u64::from_le_bytes(secret),
            config.journal.0,
            config.journal_file.0,
        );
        let core = Arc::new(Core::new(config, Arc::new(dir), clock, pool, journal));

        // The catalog tells which streams there are; what belongs to no stream is a left-over of a
        // deletion or of an object that was not finished.
        let was_cut = recovered.was_cut(CATALOG);
        let catalog = Arc::new(open_table(&core, CATALOG, "__catalog", &mut recovered)?);
        let positions = Arc::new(open_table(&core, POSITIONS, "__positions", &mut recovered)?);
        let is_salvaged = !catalog.list::<bool>(SALVAGED)?.is_empty();
        let may_lack_streams = was_cut || is_salvaged;
        let mut is_journal_kept = false;
        let objects: Vec<(String, ObjectInfo)> = catalog.list("object/")?;
        let mut abandoned = Vec::new();
        let mut last_id = FIRST_STREAM - 1;
        for (key, entry) in catalog.list::<CatalogEntry>("stream/")? {
            let name = &key["stream/".len()..];
            last_id = last_id.max(entry.id.0);
            if entry.kind == StreamKind::Object
                && !objects.iter().any(|(_, object)| object.stream == entry.id)
            {
                abandoned.push(key);
                continue;
            }
            is_journal_kept |= recovered.has_gap(entry.id);
            let limits = core.limits(entry.kind, &entry.config);
            let named = Named {
                id: entry.id,
                uuid: entry.uuid,
                name,
            };
            let stream = StreamState::new(
                named,
                entry.kind,
                entry.config,
                &entry.shapes,
                limits,
                |lane| recovered.take(lane),
            );
            if stream.kind != StreamKind::Internal {
                core.partitions.add(stream.lane_count().into());
            }
            core.streams.write().add(Arc::new(stream));
        }
        // In the files or in the journal, which may stay for a while.
        let mut orphans = recovered.streams();
        orphans.extend(core.dir.list_streams()?);
        orphans.retain(|id| core.stream(*id).is_none());
        if let Some(orphan) = orphans.first()
            && catalog.lane().next_offset() == Offset(0)
        {
            // The catalog is older than any stream: without it nobody knows what these are.
            let what = format!("the catalog is missing, though there is stream {orphan}");
            let path = core.dir.stream_dir(CATALOG);
            return Err(LogError::corrupted(path, Position(0), what));
        }
        last_id = orphans.iter().map(|id| id.0).fold(last_id, u64::max);
        // Positions in streams that are deleted, or that begin anew with every start.
        let mut stale = Vec::new();
        for (key, _) in positions.list::<serde_json::Value>("")? {
            let id = key.split('/').next().and_then(|id| id.parse().ok());
            let stream = id.and_then(|id| core.stream(StreamId(id)));
            last_id = last_id.max(id.unwrap_or_default());
            let is_kept = |stream: Arc<StreamState>| stream.shared.durability != Durability::Memory;
            if !stream.is_some_and(is_kept) {
                stale.push(key);
            }
        }
        let starts = restore_starts(&core, &catalog)?;
        abandoned.extend(starts.stale);
        last_id = last_id.max(starts.last_stream);
        core.streams.write().next_id = last_id + 1;
        abandoned.extend(check_data(&core, &catalog)?);
        if let Some(fault) = positions.lane().fault() {
            return Err(damaged_table("__positions", fault.clone()));
        }
        if may_lack_streams {
            is_journal_kept |= orphans.iter().any(|id| recovered.has_gap(*id));
            // It may have told of these.
            recovered.write_out_left(&core.dir)?;
            for id in orphans {
                let kept = core.dir.move_stream_aside(id)?;
                tracing::warn!(kept = %kept.display(),
                    "the catalog was cut or repaired and does not name stream {id}; its files are \
                     moved to where their names begin so: look whether it is missed");
            }
            abandoned.extend(is_salvaged.then(|| SALVAGED.to_owned()));
        } else {
            for id in orphans {
                core.dir.remove_stream_dir(id)?;
            }
        }
        core.dir.sync_dir(&core.dir.streams_dir())?;
        core.take_over(old_journal, is_journal_kept);
        core.remember(&catalog);
        core.reads
            .damage
            .report_start(&*core.clock, &core.made_lanes());

        let inner = Inner {
            catalog,
            positions,
            applications: Mutex::default(),
            changing: Mutex::default(),
            creating: Mutex::default(),
            created: Condvar::new(),
            random,
            syncers: Mutex::default(),
            persister: Mutex::default(),
            core,
        };
        match inner.core.config.background {
            Background::Threads => inner.start_threads()?,
            Background::Manual => match inner.core.finish_recovery() {
                Err(error) if !error.is_disk_full() => return Err(error),
                _ => {}
            },
        }
        let log = Log {
            inner: Arc::new(inner),
        };
        // These become durable some time; until then each start finds them again.
        let Inner {
            core,
            catalog,
            positions,
            ..
        } = &*log.inner;
        let put = |table: &Table, keys: Vec<String>| {
            keys.iter()
                .try_for_each(|key| table.put::<()>(core, key, None).map(drop))
        };
        if let Err(error) = put(catalog, abandoned).and_then(|()| put(positions, stale)) {
            tracing::warn!(%error, "what is left of deleted streams stays until the next start");
        }
        Ok(log)
    }

    // ---- Streams (kera, table 6.1) -------------------------------------------------------------

    /// Creates a stream. Returns when its existence is durable.
    ///
    /// # Errors
    /// When the name is taken or refused, a setting is out of its bounds, or the node would have too many partitions.
    pub fn create_stream(&self, name: &str, config: StreamConfig) -> Result<Stream> {
        check_name(name)?;
        config.check()?;
        let id = self.inner.next_id();
        self.inner.create(id, name, StreamKind::Stream, config)
    }

    /// The stream of this name.
    ///
    /// # Errors
    /// When there is none.
    pub fn stream(&self, name: &str) -> Result<Stream> {
        let streams = self.inner.core.streams.read();
        let stream = streams
            .by_name
            .get(name)
            .and_then(|id| streams.by_id.get(id))
            .filter(|stream| stream.kind != StreamKind::Object)
            .cloned();
        let stream = stream.ok_or_else(|| LogError::UnknownStream {
            name: name.to_owned(),
        })?;
        Ok(Stream {
            core: Arc::clone(&self.inner.core),
            stream,
        })
    }

    /// The stream of this name; created like this if there is none.
    ///
    /// # Errors
    /// As [`Log::create_stream`], but for a stream that exists.
    pub fn stream_or_create(&self, name: &str, config: StreamConfig) -> Result<Stream> {
        match self.stream(name) {
            Err(LogError::UnknownStream { .. }) => match self.create_stream(name, config) {
                // Somebody else was faster.
                Err(LogError::Exists { .. }) => self.stream(name),
                created => created,
            },
            found => found,
        }
    }

    /// What another part of the node keeps for itself, under a name that begins with `__`: made if it is
    /// not there. It is in no list, has no retention, and cannot be altered or deleted.
    ///
    /// # Errors
    /// When the name is another one, or the stream cannot be made.
    pub fn internal_stream(&self, name: &str) -> Result<Stream> {
        if !name.starts_with(OWN_PREFIX) {
            return Err(LogError::BadName {
                name: name.to_owned(),
                why: "names of internal streams start with __",
            });
        }
        let own = |stream: Stream| match stream.is_internal() {
            true => Ok(stream),
            // A user took the name before this program needed it.
            false => Err(LogError::Exists {
                name: name.to_owned(),
            }),
        };
        let missing = match self.stream(name) {
            Err(LogError::UnknownStream { .. }) => self.inner.next_id(),
            found => return found.and_then(own),
        };
        // What is deleted of it is to leave the disk soon.
        let config = StreamConfig {
            group_segments: 1,
            ..StreamConfig::default()
        };
        match self
            .inner
            .create(missing, name, StreamKind::Internal, config)
        {
            // Another thread was faster.
            Err(LogError::Exists { .. }) => self.stream(name).and_then(own),
            created => created,
        }
    }

    /// The stream of this id.
    ///
    /// # Errors
    /// When there is none.
    pub fn stream_by_id(&self, id: StreamId) -> Result<Stream> {
        let stream = self.inner.core.stream(id);
        let stream = stream.filter(|stream| !stream.is_removed());
        let stream = stream.ok_or_else(|| LogError::UnknownStream {
            name: format!("with id {id}"),
        })?;
        Ok(Stream {
            core: Arc::clone(&self.inner.core),
            stream,
        })
    }

    /// The stream of this identity.
    ///
    /// # Errors
    /// When there is none, or not any more.
    pub fn stream_by_uuid(&self, uuid: Uuid) -> Result<Stream> {
        let id = self.inner.core.streams.read().by_uuid.get(&uuid).copied();
        let id = id.ok_or_else(|| LogError::UnknownStream {
            name: format!("with identity {uuid}"),
        })?;
        self.stream_by_id(id)
    }

    /// The names of all streams of users, sorted.
    pub fn stream_names(&self) -> Vec<String> {
        let streams = self.inner.core.streams.read();
        let mut names: Vec<String> = streams
            .by_id
            .values()
            .filter(|stream| stream.kind == StreamKind::Stream && !stream.is_removed())
            .map(|stream| stream.shared.name.clone())
            .collect();
        names.sort_unstable();
        names
    }

    /// Deletes a stream with all that it holds. On a full disk its data goes first, to make room for
    /// the note that it is deleted; where that is not enough, it is left empty, and refuses writes
    /// until the next start.
    ///
    /// # Errors
    /// When there is none of this name, or the deletion cannot be stored.
    pub fn delete_stream(&self, name: &str) -> Result<()> {
        let _one = self.inner.changing.lock();
        let stream = self.stream(name)?.stream;
        if stream.kind != StreamKind::Stream {
            return Err(LogError::BadName {
                name: name.to_owned(),
                why: "the log needs its own streams",
            });
        }
        self.inner.delete(&stream)
    }

    /// Gives a stream more streamlets or lanes, while it is in use. Producers with duplicate
    /// detection stay on the lanes that they have used.
    ///
    /// # Errors
    /// When either becomes less, or more than a stream or the node may have.
    pub fn grow_stream(&self, name: &str, streamlets: u32, lanes: u32) -> Result<()> {
        let _one = self.inner.changing.lock();
        let stream = self.stream(name)?.stream;
        let mut config = stream.shared.config.read().clone();
        if streamlets < config.streamlets || lanes < config.lanes {
            return Err(LogError::BadSetting {
                setting: "lanes",
                why: format!(
                    "stream {name} has {} x {} lanes, and never less",
                    config.streamlets, config.lanes
                ),
            });
        }
        config.streamlets = streamlets;
        config.lanes = lanes;
        config.check()?;
        let more = config.lane_count() - u64::from(stream.lane_count());
        let reserved = self.inner.core.reserve_partitions(more)?;
        let shape = Shape { streamlets, lanes };
        let mut shapes = stream.shapes();
        shapes.push(shape);
        self.inner.store_entry(&stream, &config, shapes)?;
        *stream.shared.config.write() = config;
        stream.grow(shape, |_| Default::default());
        reserved.keep();
        stream.shared.grown.notify(usize::MAX);
        Ok(())
    }

    /// Checks that so many more partitions may be made now.
    ///
    /// # Errors
    /// When the node would have too many.
    pub fn check_partitions(&self, more: u64) -> Result<()> {
        self.inner.core.reserve_partitions(more).map(drop)
    }

    /// Changes how long a stream keeps its data.
    ///
    /// # Errors
    /// When there is no such stream, or the change cannot be stored.
    pub fn set_retention(
        &self,
        name: &str,
        retention_ms: Option<u64>,
        retention: Option<ByteSize>,
    ) -> Result<()> {
        let alter = |config: &mut StreamConfig| {
            config.retention_ms = retention_ms;
            config.retention = retention;
        };
        self.alter_stream(name, alter).map(drop)
    }

    /// Sets what users' streams have from now on where they have no setting of their own. It is not kept: the caller
    /// sets it again after each start.
    pub fn set_defaults(&self, defaults: StreamDefaults) {
        let _one = self.inner.changing.lock();
        let core = &self.inner.core;
        *core.defaults.write() = defaults;
        let streams: Vec<_> = core.streams.read().by_id.values().cloned().collect();
        for stream in streams {
            let config = stream.shared.config.read().clone();
            stream.shared.limits.set(core.limits(stream.kind, &config));
        }
    }

    /// Alters the settings of a stream while it is in use: `alter` is given those that it has. All
    /// but the number of its lanes and virtual logs and its durability can be altered; a new size of
    /// segments, groups or chunks counts from the next one on. Answers the settings that the stream
    /// has from now on, when that is durable.
    ///
    /// # Errors
    /// When there is no such stream, a setting is out of its bounds, or the change cannot be stored.
    pub fn alter_stream(
        &self,
        name: &str,
        alter: impl FnOnce(&mut StreamConfig),
    ) -> Result<StreamConfig> {
        let _one = self.inner.changing.lock();
        let stream = self.stream(name)?.stream;
        let before = stream.shared.config.read().clone();
        let mut config = before.clone();
        alter(&mut config);
        before.check_change(&config)?;
        if stream.kind != StreamKind::Stream {
            return Err(LogError::BadName {
                name: name.to_owned(),
                why: "the log needs its own streams",
            });
        }
        self.inner.store_entry(&stream, &config, stream.shapes())?;
        let limits = self.inner.core.limits(stream.kind, &config);
        stream.shared.limits.set(limits);
        *stream.shared.config.write() = config.clone();
        Ok(config)
    }

    /// Reads durable chunks from a cursor on, within its group; `None` at the durable head.
    ///
    /// # Errors
    /// When the cursor points at nothing that is or was stored.
    pub fn read(&self, cursor: &Cursor, bytes_max: usize) -> Result<Option<ReadChunks>> {
        let stream = self.stream_by_id(cursor.stream)?;
        let lanes = stream.streamlet(cursor.streamlet)?;
        let found = lanes
            .iter()
            .find_map(|lane| lane.group(cursor.group).map(|group| (lane, group)));
        let Some((lane, group)) = found else {
            let behind =
                |lane: &LaneState| lane.group_behind_removed(cursor.group, cursor.position);
            if lanes.iter().any(|lane| behind(lane).is_some()) {
                return Ok(None);
            }
            let earliest = lanes
                .iter()
                .filter_map(|lane| lane.first_group().map(|group| (group.id, lane)))
                .min_by_key(|(id, _)| *id);
            return Err(match earliest {
                Some((id, lane)) if cursor.group < id => LogError::CursorRemoved {
                    cursor: *cursor,
                    earliest: lane.earliest_cursor(),
                },
                _ => LogError::BadCursor {
                    cursor: *cursor,
                    why: "there is no such group".to_owned(),
                },
            });
        };
        if cursor.position > group.durable() {
            return Err(LogError::BadCursor {
                cursor: *cursor,
                why: format!("the group holds {} bytes", group.durable()),
            });
        }
        if lane.start.is_behind(&group, cursor.position) {
            return Err(LogError::CursorRemoved {
                cursor: *cursor,
                earliest: lane.earliest_cursor(),
            });
        }
        let bytes = read_group(
            &self.inner.core.reads,
            lane,
            &group,
            cursor.position,
            bytes_max,
        )?;
        Ok(bytes.map(|bytes| ReadChunks {
            cursor: *cursor,
            lane: lane.id.lane,
            next: lane.cursor(group.id, cursor.position.plus(bytes.len() as u64)),
            bytes,
        }))
    }

    /// Reads from several cursors (multiReadChunks of kera, table 6.1): one result for each, at most
    /// about `bytes_max` together, unless the first chunk alone is larger.
    pub fn read_all(
        &self,
        cursors: &[Cursor],
        bytes_max: usize,
    ) -> Vec<Result<Option<ReadChunks>>> {
        let mut left = bytes_max;
        cursors
            .iter()
            .map(|cursor| {
                if left == 0 {
                    return Ok(None);
                }
                let read = self.read(cursor, left)?;
                let bytes = read.as_ref().map_or(0, |chunks| chunks.bytes.len());
                left = left.saturating_sub(bytes);
                Ok(read)
            })
            .collect()
    }

    /// The application of this name on a stream: what its consumers share.
    ///
    /// # Errors
    /// When there is no such stream, or the name is refused.
    pub fn application(&self, stream: &str, name: &str) -> Result<Arc<Application>> {
        check_name(name)?;
        let stream = self.stream(stream)?.stream;
        let mut applications = self.inner.applications.lock();
        let key = (stream.shared.id, name.to_owned());
        if let Some(application) = applications.get(&key) {
            return Ok(Arc::clone(application));
        }
        let application = Arc::new(Application::open(
            Arc::clone(&self.inner.core),
            stream,
            Arc::clone(&self.inner.positions),
            name,
        )?);
        applications.insert(key, Arc::clone(&application));
        Ok(application)
    }

    // ---- Objects -------------------------------------------------------------------------------

    /// Stores an object. It exists when this returns, and not at all if the node fails before.
    ///
    /// # Errors
    /// When the name is taken or refused, or the content cannot be read or stored.
    pub fn put_object(&self, name: &str, content: &mut dyn Read) -> Result<ObjectInfo> {
        check_name(name)?;
        let key = format!("object/{name}");
        let exists = || LogError::Exists {
            name: format!("object {name}"),
        };
        if self.inner.catalog.get::<ObjectInfo>(&key)?.is_some() {
            return Err(exists());
        }
        let id = self.inner.next_id();
        let content_name = format!("__object/{id}");
        let config = StreamConfig::default();
        let stream = self
            .inner
            .create(id, &content_name, StreamKind::Object, config)?;
        let lane = stream.lane(StreamletIndex(0), LaneIndex(0))?;
        let result = write_content(&self.inner.core, &lane, content).and_then(|(bytes, crc32c)| {
            let _one = self.inner.changing.lock();
            if self.inner.catalog.get::<ObjectInfo>(&key)?.is_some() {
                return Err(exists());
            }
            let info = ObjectInfo {
                name: name.to_owned(),
                bytes,
                crc32c,
                created: self.inner.core.clock.now(),
                stream: stream.id(),
            };
            self.inner.put_catalog(&key, Some(&info))?;
            Ok(info)
        });
        if result.is_err() {
            let _one = self.inner.changing.lock();
            // The first error is the one to tell; what stays is removed at the next start. Where
            // the object's entry may yet become durable, its content stays with it.
            let named = self.inner.catalog.get::<ObjectInfo>(&key)?;
            if named.is_none_or(|named| named.stream != stream.id()) {
                let _ = self.inner.delete(&stream.stream);
            }
        }
        result
    }

    /// Opens an object, or the bytes `range` of it.
    ///
    /// # Errors
    /// When there is no such object, or the range reaches beyond it.
    pub fn get_object(
        &self,
        name: &str,
        range: Option<std::ops::Range<u64>>,
    ) -> Result<ObjectReader> {
        let info = self.object(name)?;
        let stream = self.stream_by_id(info.stream)?;
        let lane = stream.lane(StreamletIndex(0), LaneIndex(0))?;
        let range = range.unwrap_or(0..info.bytes);
        ObjectReader::new(
            Arc::clone(&self.inner.core),
            lane,
            info,
            range.start,
            range.end,
        )
    }

    /// What is known of an object.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn object(&self, name: &str) -> Result<ObjectInfo> {
        let info = self.inner.catalog.get(&format!("object/{name}"))?;
        info.ok_or_else(|| LogError::UnknownObject {
            name: name.to_owned(),
        })
    }

    /// All objects whose names start with `prefix`, by name.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn objects(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let entries = self.inner.catalog.list(&format!("object/{prefix}"))?;
        Ok(entries.into_iter().map(|(_, info)| info).collect())
    }

    /// Deletes an object. On a full disk its content goes first, to make room for the note that it is
    /// deleted; where that is not enough, it is left without content.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn delete_object(&self, name: &str) -> Result<()> {
        let _one = self.inner.changing.lock();
        let info = self.object(name)?;
        let key = format!("object/{name}");
        let note = || self.inner.put_catalog::<ObjectInfo>(&key, None);
        match self.inner.core.stream(info.stream) {
            Some(stream) => {
                self.inner.note_end(&stream, note)?;
                self.inner.delete(&stream)
            }
            None => note(),
        }
    }

    // ---- The whole -----------------------------------------------------------------------------

    /// How the log is doing.
    pub fn stats(&self) -> LogStats {
        let core = &self.inner.core;
        let journal = core.journal.usage();
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (decompression_bytes, decompression_peak_bytes) = core.reads.decompression.used();
        LogStats {
            decompression_bytes: decompression_bytes as u64,
            decompression_peak_bytes: decompression_peak_bytes as u64,
            pool_bytes: core.pool.size_bytes(Arena::Segments) as u64,
            pool_used_bytes: core.pool.used_bytes(Arena::Segments) as u64,
            journal_blocks: journal.blocks,
            journal_bytes: journal.bytes,
            journal_files: journal.files,
            direct_commits: count(&core.counters.direct_commits),
            direct_bytes: count(&core.counters.direct_bytes),
            persisted_groups: count(&core.counters.persisted_groups),
            evicted_segments: count(&core.counters.evicted_segments),
            disk_full: core.appends.disk.is_full(),
            faulted_lanes: core.faulted_lanes(),
            damaged_reads: core.reads.damage.reads(),
        }
    }

    /// The data directory.
    pub fn dir(&self) -> &Path {
        &self.inner.core.dir.root
    }

    /// The memory that holds its data.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.inner.core.pool
    }

    /// The clock that the log was opened with.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.core.clock
    }

    /// Removes what retention no longer keeps, now. The background does it by itself.
    ///
    /// # Errors
    /// When files cannot be removed.
    pub fn apply_retention(&self) -> Result<u64> {
        self.inner.core.retain(self.inner.core.clock.now())
    }

    /// Does one step of each kind of background work; for [`Background::Manual`]. `true` when there
    /// was something to do.
    pub fn step(&self) -> bool {
        self.inner.core.sync_step() | self.inner.core.persist_step()
    }

    /// Makes one commit; for [`Background::Manual`].
    pub fn sync_step(&self) -> bool {
        self.inner.core.sync_step()
    }

    /// Brings all group files up to date, whatever the journal's fill.
    pub fn persist(&self) {
        self.inner.core.release_journal(1.0);
    }

    /// Gives the memory of all persisted segments back, as if the pool were short.
    pub fn evict(&self) {
        self.inner.core.reclaim(usize::MAX);
    }

    /// Gives back the buffers of lanes that are idle for longer than the setting says.
    pub fn release_idle(&self) {
        self.inner.core.release_idle();
    }

    /// Ends the log: makes everything durable, writes it to its files, and gives the data directory
    /// free. A log that is only dropped does the same.
    ///
    /// # Errors
    /// When something could not be made durable.
    pub fn close(self) -> Result<()> {
        self.inner.close()
    }
}

impl Inner {
    fn next_id(&self) -> StreamId {
        let mut streams = self.core.streams.write();
        let id = streams.next_id;
        streams.next_id += 1;
        StreamId(id)
    }

    /// Creates a stream. Several at once share the commits that make their existence durable.
    fn create(
        &self,
        id: StreamId,
        name: &str,
        kind: StreamKind,
        config: StreamConfig,
    ) -> Result<Stream> {
        let exists = || LogError::Exists {
            name: format!("stream {name}"),
        };
        {
            // Whoever is told that it exists finds it.
            let mut creating = self.creating.lock();
            while !creating.insert(name.to_owned()) {
                self.created.wait(&mut creating);
            }
        }
        // Looked at after the name is reserved: who reserved it before has put it there by then.
        let result = if self.core.streams.read().by_name.contains_key(name) {
            Err(exists())
        } else {
            self.create_reserved(id, name, kind, config)
        };
        self.creating.lock().remove(name);
        self.created.notify_all();
        result
    }

    fn create_reserved(
        &self,
        id: StreamId,
        name: &str,
        kind: StreamKind,
        config: StreamConfig,
    ) -> Result<Stream> {
        let shapes = vec![Shape {
            streamlets: config.streamlets,
            lanes: config.lanes,
        }];
        let uuid = new_uuid(&*self.random)?;
        // Before anything is made of them.
        let counted = match kind {
            StreamKind::Internal => 0,
            StreamKind::Stream | StreamKind::Object => config.lane_count(),
        };
        let reserved = self.core.reserve_partitions(counted)?;
        let stream = Arc::new(StreamState::new(
            Named { id, uuid, name },
            kind,
            config.clone(),
            &shapes,
            self.core.limits(kind, &config),
            |_| Default::default(),
        ));
        self.store_entry(&stream, &config, shapes)?;
        self.core.streams.write().add(Arc::clone(&stream));
        reserved.keep();
        Ok(Stream {
            core: Arc::clone(&self.core),
            stream,
        })
    }

    fn store_entry(
        &self,
        stream: &StreamState,
        config: &StreamConfig,
        shapes: Vec<Shape>,
    ) -> Result<()> {
        let entry = CatalogEntry {
            id: stream.shared.id,
            uuid: stream.shared.uuid,
            kind: stream.kind,
            config: config.clone(),
            shapes,
        };
        self.put_catalog(&format!("stream/{}", stream.shared.name), Some(&entry))
    }

    /// Changes the catalog; returns when the change is durable.
    fn put_catalog<T: Serialize>(&self, key: &str, value: Option<&T>) -> Result<()> {
        let offset = self.catalog.put(&self.core, key, value)?;
        wait_durable(&self.core, self.catalog.lane(), offset)?;
        self.catalog.compact(&self.core);
        Ok(())
    }

    pub(crate) fn delete(&self, stream: &StreamState) -> Result<()> {
        let id = stream.shared.id;
        self.note_end(stream, || self.note_deleted(stream))?;
        let prefix = format!("{id}/");
        for (key, _) in self.positions.list::<serde_json::Value>(&prefix)? {
            self.positions
                .put::<serde_json::Value>(&self.core, &key, None)?;
        }
        self.forget_starts(id)?;
        forget_data(&self.core, &self.catalog, id)?;
        for lane in stream.made_lanes() {
            for group in lane.groups() {
                group.remove(&self.core.dir)?;
                lane.remove_first(group.id);
            }
        }
        // Until here the journal may hold its data, which can only be persisted with it.
        let gone = self.core.streams.write().by_id.remove(&id);
        if let Some(gone) = gone {
            self.core.partitions.release(gone.lane_count().into());
        }
        self.core.dir.remove_stream_dir(id)?;
        self.catalog.compact(&self.core);
        Ok(())
    }

    /// Notes that a stream, or the object that it holds, is deleted. Nothing of it is taken away before
    /// that is durable, unless there is no room for that.
    fn note_end(&self, stream: &StreamState, note: impl Fn() -> Result<()>) -> Result<()> {
        match note() {
            Err(error) if error.is_disk_full() => {
                self.core.make_room_of(stream)?;
                note()
            }
            noted => noted,
        }
    }

    /// Ends a stream's entry in the catalog, and the stream; returns when that is durable.
    fn note_deleted(&self, stream: &StreamState) -> Result<()> {
        let id = stream.shared.id;
        let key = format!("stream/{}", stream.shared.name);
        let offset = self.catalog.put::<CatalogEntry>(&self.core, &key, None)?;
        // From here on the next start may find it deleted, so nothing more is acknowledged.
        stream.shared.removed.store(true, Ordering::Release);
        self.core.streams.write().forget_names(&stream.shared);
        self.applications
            .lock()
            .retain(|(stream, _), _| *stream != id);
        for lane in stream.made_lanes() {
            // An append that had not seen it is over when its lane's lock is free.
            lane.next_offset();
            lane.wake();
        }
        wait_durable(&self.core, self.catalog.lane(), offset)
    }

    fn start_threads(&self) -> Result<()> {
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(work)
                .map_err(|error| LogError::io("start", format!("thread {name}"), error))
        };
        for n in 0..SYNCERS {
            let core = Arc::clone(&self.core);
            let work = move || {
                let _abort = AbortOnPanic;
                while let Some(work) = core.appends.queue.take() {
                    core.commit(work);
                }
            };
            let thread = spawn(&format!("millstream-sync-{n}"), Box::new(work))?;
            self.syncers.lock().push(thread);
        }
        let core = Arc::clone(&self.core);
        let thread = spawn("millstream-persist", Box::new(move || persist_loop(&core)))?;
        *self.persister.lock() = Some(thread);
        Ok(())
    }

    fn close(&self) -> Result<()> {
        // All at once, not one after another as they are waited for.
        self.core.appends.queue.hurry_unsynced(|_| true);
        if !self.core.appends.closed.load(Ordering::SeqCst) {
            note_all_data(&self.core, &self.catalog, &self.core.made_lanes());
        }
        if self.core.appends.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let lanes = self.core.made_lanes();

        // Step 1: what was appended becomes durable, while the persistence manager still helps. A
        // lane that fails has told so to those who wait for it.
        for lane in &lanes {
            let _ = wait_durable(&self.core, lane, lane.next_offset());
        }
        self.core.appends.queue.close();
        for thread in std::mem::take(&mut *self.syncers.lock()) {
            // A syncer that panicked has said so.
            let _ = thread.join();
        }
        self.core.appends.persister.close();
        if let Some(thread) = self.persister.lock().take() {
            let _ = thread.join();
        }
        self.core.reads.catch_up.close();
        let recovered = self.core.finish_recovery();
        // The waits above fail at once while the disk is full, yet the disk still syncs the bytes in its files.
        let written = |lane: &&Arc<LaneState>| lane.stream.durability == Durability::Written;
        self.core
            .sync_written(lanes.iter().filter(written).cloned().collect());

        // Step 2: files hold everything, and their indexes say so.
        let mut open = Vec::new();
        for lane in &lanes {
            if !lane.is_scratch() {
                lane.mark_end();
                open.extend(lane.last_group());
            }
        }
        open.retain(|group| {
            group.synced() < group.durable() || (group.has_file() && group.has_marks())
        });
        self.core.persist(open);
        self.core.release_journal(1.0);
        self.core.journal.remove_files(&self.core.dir)?;
        self.core.dir.unlock();
        // What could not go to its files on a full disk is durable in the journal.
        match recovered {
            Err(error) if !error.is_disk_full() => return Err(error),
            _ => {}
        }
        let is_durable = |lane: &Arc<LaneState>| lane.durable_offset() == lane.next_offset();
        if self.core.appends.disk.is_full() && !lanes.iter().all(is_durable) {
            return Err(self.core.appends.disk.full_error());
        }
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "log not closed cleanly; the next start recovers it");
        }
    }
}

fn persist_loop(core: &Core) {
    let _abort = AbortOnPanic;
    core.try_to_finish_recovery();
    let mut idle_checked = core.clock.monotonic();
    let mut retained = idle_checked;
    while core.appends.persister.wait(TICK) {
        core.appends.queue.wake_for_unsynced();
        for _ in 0..PERSIST_STEPS_MAX {
            if !core.persist_step() {
                break;
            }
        }
        let now = core.clock.monotonic();
        if now.saturating_sub(idle_checked) >= core.config.idle_after / 4 {
            idle_checked = now;
            core.release_idle();
        }
        if now.saturating_sub(retained) >= core.config.retention_every {
            retained = now;
            if let Err(error) = core.retain(core.clock.now()) {
                tracing::warn!(%error, "retention could not remove all that it should");
            }
        }
    }
}

fn open_table(
    core: &Arc<Core>,
    id: StreamId,
    name: &str,
    recovered: &mut Recovered,
) -> Result<Table> {
    let config = StreamConfig::default();
    let shape = Shape {
        streamlets: config.streamlets,
        lanes: config.lanes,
    };
    let limits = core.limits(StreamKind::Internal, &config);
    let uuid = Uuid::nil();
    let stream = Arc::new(StreamState::new(
        Named { id, uuid, name },
        StreamKind::Internal,
        config,
        &[shape],
        limits,
        |lane| recovered.take(lane),
    ));
    let lane = stream
        .lane(StreamletIndex(0), LaneIndex(0))
        .expect("just made with one lane");
    let opened = match lane.fault() {
        Some(fault) => Err(fault.clone()),
        None => Table::open(&core.reads, lane),
    };
    core.streams.write().add(stream);
    opened.map_err(|error| damaged_table(name, error))
}

fn damaged_table(table: &str, error: LogError) -> LogError {
    match error {
        LogError::Corrupted { .. } => LogError::DamagedTable {
            table: table.to_owned(),
            error: Box::new(error),
        },
        error => error,
    }
}

fn draw<const N: usize>(random: &dyn Random) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    random
        .fill(&mut bytes)
        .map_err(|error| LogError::io("read", "the random source", error))?;
    Ok(bytes)
}

/// An identity that no other stream has, as far as 121 random bits go.
fn new_uuid(random: &dyn Random) -> Result<Uuid> {
    let mut bytes: [u8; 16] = draw(random)?;
    // So that its text in Kafka's tools, which is base64, does not begin as an option does.
    bytes[0] &= 0x7f;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid())
}

/// A stream of the log.
#[derive(Debug, Clone)]
pub struct Stream {
    core: Arc<Core>,
    stream: Arc<StreamState>,
}

/// A lane to append to.
#[derive(Debug, Clone)]
pub struct Lane {
    pub(crate) core: Arc<Core>,
    pub(crate) lane: Arc<LaneState>,
}

impl Stream {
    /// Its id.
    pub fn id(&self) -> StreamId {
        self.stream.shared.id
    }

    /// What tells it from all other streams: see [`StreamInfo::uuid`].
    pub fn uuid(&self) -> Uuid {
        self.stream.shared.uuid
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.stream.shared.name
    }

    /// Whether the node keeps it for itself.
    pub fn is_internal(&self) -> bool {
        self.stream.kind == StreamKind::Internal
    }

    /// Whether it was deleted since it was looked up.
    pub fn is_deleted(&self) -> bool {
        self.stream.is_removed()
    }

    /// Its settings.
    pub fn config(&self) -> StreamConfig {
        self.stream.shared.config.read().clone()
    }

    /// What is known of it.
    pub fn info(&self) -> StreamInfo {
        StreamInfo {
            name: self.name().to_owned(),
            id: self.id(),
            uuid: self.uuid(),
            config: self.config(),
            lanes: self.stream.each_lane(lane_info),
        }
    }

    /// Records that were ever durable, in all of its lanes.
    pub fn durable_records_ever(&self) -> u64 {
        let lanes = self.stream.made_lanes().into_iter();
        lanes.map(|lane| lane.durable_offset().0).sum()
    }

    /// How many lanes it has.
    pub fn lane_count(&self) -> u32 {
        self.stream.lane_count()
    }

    /// The lane with this number among all of the stream: what Kafka's clients call a partition.
    ///
    /// # Errors
    /// When there is none.
    pub fn partition(&self, partition: u32) -> Result<Lane> {
        let lane = self.stream.partition(partition);
        let lane = lane.ok_or_else(|| self.unknown(format!("partition {partition}")))?;
        Ok(self.handle(lane))
    }

    /// The lane of a streamlet where a producer's chunks go.
    ///
    /// # Errors
    /// When there is no such streamlet.
    pub fn lane_for(&self, streamlet: StreamletIndex, producer: ProducerId) -> Result<Lane> {
        let lane = self.stream.lane_for(streamlet, producer);
        let lane = lane.ok_or_else(|| self.unknown(format!("streamlet {streamlet}")))?;
        Ok(self.handle(lane))
    }

    /// Appends a chunk to the streamlet, in the lane of its producer.
    ///
    /// # Errors
    /// See [`Lane::append`].
    pub fn append(&self, streamlet: StreamletIndex, chunk: &[u8]) -> Result<(Lane, Appended)> {
        self.append_of(streamlet, &check(chunk)?, chunk)
    }

    /// Appends a chunk that another program made: see [`Lane::append_foreign`].
    ///
    /// # Errors
    /// See [`Lane::append_foreign`].
    pub fn append_foreign(
        &self,
        streamlet: StreamletIndex,
        chunk: &[u8],
    ) -> Result<(Lane, Appended)> {
        self.append_of(streamlet, &check_foreign(&self.core, chunk)?, chunk)
    }

    fn append_of(
        &self,
        streamlet: StreamletIndex,
        header: &ChunkHeader,
        chunk: &[u8],
    ) -> Result<(Lane, Appended)> {
        let lane = self.lane_for(streamlet, header.producer_id)?;
        let appended = append_to_lane(&self.core, &lane.lane, header, chunk)?;
        Ok((lane, appended))
    }

    /// Appends chunks to streamlets (multiWriteChunks of kera, table 6.1), and waits until all are
    /// as durable as the stream's setting says. One result for each chunk.
    pub fn append_all(&self, chunks: &[(StreamletIndex, &[u8])]) -> Vec<Result<Appended>> {
        let appended: Vec<Result<(Lane, Appended)>> = chunks
            .iter()
            .map(|(streamlet, chunk)| self.append(*streamlet, chunk))
            .collect();
        appended
            .into_iter()
            .map(|result| {
                let (lane, appended) = result?;
                lane.acknowledge(&appended)?;
                Ok(appended)
            })
            .collect()
    }

    /// Reads all lanes in turn.
    pub fn reader(&self, from: From) -> StreamReader {
        StreamReader::new(Arc::clone(&self.core), Arc::clone(&self.stream), from)
    }

    /// Hears when the durable head of some lane has moved since this was made: look for data, then wait.
    pub(crate) fn listen(&self) -> event_listener::EventListener {
        self.stream.shared.durable_moved.listen()
    }

    /// The same for lanes that are added.
    pub(crate) fn listen_for_lanes(&self) -> event_listener::EventListener {
        self.stream.shared.grown.listen()
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The first and the last group of a streamlet (getAvailableGroups of kera, table 6.2).
    ///
    /// # Errors
    /// When there is no such streamlet.
    pub fn available_groups(
        &self,
        streamlet: StreamletIndex,
    ) -> Result<Option<(GroupId, GroupId)>> {
        let lanes = self.streamlet(streamlet)?;
        let first = lanes
            .iter()
            .filter_map(|lane| lane.first_group())
            .map(|group| group.id)
            .min();
        let last = lanes
            .iter()
            .filter_map(|lane| lane.last_group())
            .map(|group| group.id)
            .max();
        Ok(first.zip(last))
    }

    /// The first and the last segment of a group (getAvailableSegments of kera, table 6.2), and of
    /// which the positions are (getNextSegments, table 6.1).
    ///
    /// # Errors
    /// When there is no such streamlet or group.
    pub fn available_segments(
        &self,
        streamlet: StreamletIndex,
        group: GroupId,
    ) -> Result<Option<(SegmentIndex, SegmentIndex)>> {
        let group = self.group(streamlet, group)?;
        group.load_segments(&self.core.dir)?;
        let last = group.segment_count().checked_sub(1);
        Ok(last.map(|last| (SegmentIndex(0), SegmentIndex(last))))
    }

    /// A cursor at the start of a segment.
    ///
    /// # Errors
    /// When there is no such streamlet, group or segment.
    pub fn segment_cursor(
        &self,
        streamlet: StreamletIndex,
        group: GroupId,
        segment: SegmentIndex,
    ) -> Result<Cursor> {
        let state = self.group(streamlet, group)?;
        state.load_segments(&self.core.dir)?;
        let position = state
            .segment_base(segment)
            .ok_or_else(|| self.unknown(format!("segment {segment} in group {group}")))?;
        Ok(Cursor {
            stream: self.id(),
            streamlet,
            group,
            segment,
            position,
        })
    }

    /// The lane that a group is part of.
    ///
    /// # Errors
    /// When there is no such streamlet or group.
    pub fn lane_of_group(&self, streamlet: StreamletIndex, group: GroupId) -> Result<Lane> {
        let mut lanes = self.streamlet(streamlet)?.into_iter();
        let lane = lanes.find(|lane| lane.group(group).is_some());
        let unknown = || self.unknown(format!("group {group} in streamlet {streamlet}"));
        Ok(self.handle(lane.ok_or_else(unknown)?))
    }

    fn group(&self, streamlet: StreamletIndex, group: GroupId) -> Result<Arc<crate::group::Group>> {
        let lanes = self.streamlet(streamlet)?;
        let found = lanes.iter().find_map(|lane| lane.group(group));
        found.ok_or_else(|| self.unknown(format!("group {group} in streamlet {streamlet}")))
    }

    fn streamlet(&self, streamlet: StreamletIndex) -> Result<Vec<Arc<LaneState>>> {
        let lanes = self.stream.streamlet(streamlet);
        lanes.ok_or_else(|| self.unknown(format!("streamlet {streamlet}")))
    }

    fn lane(&self, streamlet: StreamletIndex, lane: LaneIndex) -> Result<Arc<LaneState>> {
        let found = self.stream.lane(streamlet, lane);
        found.ok_or_else(|| self.unknown(format!("lane {lane} in streamlet {streamlet}")))
    }

    fn unknown(&self, what: String) -> LogError {
        LogError::UnknownLane {
            stream: self.name().to_owned(),
            what,
        }
    }

    fn handle(&self, lane: Arc<LaneState>) -> Lane {
        Lane {
            core: Arc::clone(&self.core),
            lane,
        }
    }
}

impl Lane {
    /// Where it is.
    pub fn id(&self) -> LaneId {
        self.lane.id
    }

    /// Its number among all of the stream.
    pub fn partition(&self) -> u32 {
        self.lane.partition
    }

    /// Appends a chunk. It is durable, and visible to consumers, when the durable offset has reached
    /// [`Appended::next_offset`].
    ///
    /// # Errors
    /// When the chunk is damaged, too large, out of its producer's sequence or of an older epoch; when its header
    /// counts other records than offsets; when the disk is full or has failed; when no memory comes free in time.
    /// Nothing is stored then.
    pub fn append(&self, chunk: &[u8]) -> Result<Appended> {
        append_to_lane(&self.core, &self.lane, &check(chunk)?, chunk)
    }

    /// Appends a chunk that another program made. Beside what [`append`](Self::append) checks, all records of an
    /// uncompressed chunk are walked, which takes some nanoseconds for each; of compressed ones where
    /// [`LogConfig::check_compressed`] says so.
    ///
    /// # Errors
    /// As [`append`](Self::append), and when a record contradicts the header or the format.
    pub fn append_foreign(&self, chunk: &[u8]) -> Result<Appended> {
        append_to_lane(
            &self.core,
            &self.lane,
            &check_foreign(&self.core, chunk)?,
            chunk,
        )
    }

    /// The offset that the next record gets, durable or not.
    pub fn next_offset(&self) -> Offset {
        self.lane.next_offset()
    }

    /// What is damaged or missing of it, as far as the start and reads have met it.
    pub fn damage(&self) -> Option<&LogError> {
        let damages = [self.lane.fault(), self.lane.read_fault()];
        let is_damage = |error: &&LogError| matches!(error, LogError::Corrupted { .. });
        damages.into_iter().flatten().find(is_damage)
    }

    /// The largest chunk that it takes.
    pub fn chunk_bytes_max(&self) -> usize {
        self.lane.stream.limits.chunk_bytes_max()
    }

    /// The offset of the first record that is stored.
    pub fn earliest_offset(&self) -> Offset {
        self.lane.earliest_offset()
    }

    /// When a producer is answered.
    pub fn durability(&self) -> Durability {
        self.lane.stream.durability
    }

    /// The offset behind the last durable record.
    pub fn durable_offset(&self) -> Offset {
        self.lane.durable_offset()
    }

    /// Up to where [`Lane::fetch`] reads: the durable offset, or with [`Durability::Async`] the offset
    /// behind the last record, with [`Durability::Written`] that behind the last one in the file. What is
    /// read before it is durable may be gone after a crash; of a `written` stream only after one of the machine.
    pub fn readable_offset(&self) -> Offset {
        self.lane.readable_offset()
    }

    /// Waits until everything before `offset` is durable.
    ///
    /// # Errors
    /// When it will not be: the lane's disk failed, or the stream was deleted. When the disk is full
    /// the chunk is kept and becomes durable as soon as there is room; a producer that sends it
    /// again with the same sequence has it stored once.
    pub fn wait_durable(&self, offset: Offset) -> Result<()> {
        wait_durable(&self.core, &self.lane, offset)
    }

    /// As [`Lane::wait_durable`], for asynchronous callers.
    ///
    /// # Errors
    /// See [`Lane::wait_durable`].
    pub async fn durable(&self, offset: Offset) -> Result<()> {
        self.core.hurry_durable(&self.lane, offset);
        self.reached(LaneState::durable_offset, offset).await
    }

    async fn reached(&self, head: fn(&LaneState) -> Offset, offset: Offset) -> Result<()> {
        loop {
            if let Some(result) = poll(&self.core, &self.lane, head, offset) {
                return result;
            }
            let moved = self.lane.durable_moved.listen();
            if let Some(result) = poll(&self.core, &self.lane, head, offset) {
                return result;
            }
            moved.await;
        }
    }

    /// The head that a producer's answer waits for, if it waits for any.
    fn answering_head(&self) -> Option<fn(&LaneState) -> Offset> {
        match self.lane.stream.durability {
            Durability::Sync => Some(LaneState::durable_offset),
            Durability::Written => Some(LaneState::readable_offset),
            Durability::Async | Durability::Memory => None,
        }
    }

    /// Whether a producer may be answered at once: [`Lane::acknowledge`] never waits.
    pub fn answers_at_once(&self) -> bool {
        self.answering_head().is_none()
    }

    /// Waits as long as the stream's durability asks for before a producer is answered.
    ///
    /// # Errors
    /// See [`Lane::wait_durable`].
    pub fn acknowledge(&self, appended: &Appended) -> Result<()> {
        match self.answering_head() {
            Some(head) => wait_for(&self.core, &self.lane, head, appended.next_offset),
            None => Ok(()),
        }
    }

    /// As [`Lane::acknowledge`], for asynchronous callers.
    ///
    /// # Errors
    /// See [`Lane::wait_durable`].
    pub async fn acknowledged(&self, appended: &Appended) -> Result<()> {
        match self.answering_head() {
            Some(head) => self.reached(head, appended.next_offset).await,
            None => Ok(()),
        }
    }

    /// Where reading starts.
    pub fn earliest(&self) -> Cursor {
        self.lane.earliest_cursor()
    }

    /// The chunk that holds `offset`.
    ///
    /// # Errors
    /// When the lane does not hold it.
    pub fn seek_offset(&self, offset: Offset) -> Result<Cursor> {
        let found = seek_offset(&self.core.reads, &self.lane, offset)?;
        Ok(self.lane.cursor(found.group, found.position))
    }

    /// The first chunk with a record at or after `timestamp`; `None` when all are older.
    ///
    /// # Errors
    /// When the disk does not give back what was stored.
    pub fn seek_timestamp(&self, timestamp: Timestamp) -> Result<Option<(Cursor, Offset)>> {
        let found = seek_timestamp(&self.core.reads, &self.lane, timestamp)?;
        Ok(found.map(|found| {
            let cursor = self.lane.cursor(found.group, found.position);
            (cursor, found.base_offset)
        }))
    }

    /// Reads the lane from a cursor on.
    pub fn reader(&self, cursor: Cursor) -> LaneReader {
        LaneReader::new(Arc::clone(&self.core), Arc::clone(&self.lane), cursor)
    }

    /// What is known of it.
    pub fn info(&self) -> LaneInfo {
        let LaneId {
            streamlet, lane, ..
        } = self.lane.id;
        lane_info(self.lane.partition, streamlet, lane, Some(&self.lane))
    }
}

fn lane_info(
    partition: u32,
    streamlet: StreamletIndex,
    lane: LaneIndex,
    state: Option<&LaneState>,
) -> LaneInfo {
    let groups = state.map(LaneState::groups).unwrap_or_default();
    let fault = state.and_then(|state| state.fault().or(state.read_fault()));
    LaneInfo {
        partition,
        streamlet,
        lane,
        earliest: state.map_or(Offset(0), LaneState::earliest_offset),
        durable: state.map_or(Offset(0), LaneState::durable_offset),
        groups: groups.len(),
        bytes: groups.iter().map(|group| group.durable().0).sum(),
        cut_bytes: state.map_or(0, |state| state.cut_bytes),
        fault: fault.map(ToString::to_string),
    }
}

/// The start of a group of a streamlet.
impl Stream {
    /// A cursor at the start of a group.
    pub fn group_cursor(&self, streamlet: StreamletIndex, group: GroupId) -> Cursor {
        Cursor {
            stream: self.id(),
            streamlet,
            group,
            segment: SegmentIndex(0),
            position: Position(0),
        }
    }
}
