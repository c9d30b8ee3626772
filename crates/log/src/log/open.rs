//! Opening a log: recovery, the catalog's streams, and files that belong to no stream.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashSet;
use millstream_base::{
    Clock, Disk, LaneIndex, Offset, Position, Random, StreamId, StreamletIndex, SystemClock,
    SystemDisk, SystemRandom,
};
use parking_lot::{Condvar, Mutex};

use crate::catalog::holds::restore_holds;
use crate::catalog::lane_starts::restore_starts;
use crate::catalog::lanes_with_data::check_data;
use crate::catalog::table::Table;
use crate::catalog::{CATALOG, CatalogEntry, FIRST_STREAM, POSITIONS, SALVAGED};
use crate::core::Core;
use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::files::clean_stop::CleanStop;
use crate::journal::old::OldJournal;
use crate::journal::writer::Journal;
use crate::log::upgraded::warn_of_compaction;
use crate::log::{Inner, Log};
use crate::memory::pool::Pool;
use crate::object::ObjectInfo;
use crate::random::draw;
use crate::recovery::Recovered;
use crate::settings::config::{Background, Durability, LogConfig, StreamConfig};
use crate::stream::{Shape, StreamIdentity, StreamKind, StreamState};

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
        let dir = DataDir::open(disk, Arc::clone(&random), &config.dir)?;
        let pool = Pool::new(config.pool.as_usize(), config.catch_up.as_usize())
            .map_err(|error| LogError::io("allocate", "the pool's shared memory", error))?;

        // The files and the journal of the last run.
        let old_journal = OldJournal::find(&dir)?;
        let clean_stop = CleanStop::read(&dir, !old_journal.is_empty())?;
        let mut recovered = Recovered::read(&dir, &pool, &old_journal, &clean_stop)?;
        let secret = draw(&*random)?;
        let journal = Journal::new(
            old_journal.next_sequence(clock.now()),
            u64::from_le_bytes(secret),
            config.journal.0,
            config.journal_file.0,
        );
        let core = Arc::new(Core::new(config, Arc::new(dir), clock, pool, journal));

        // The catalog names the streams; a file that belongs to no stream is a left-over of a
        // deletion or of an object that was not finished.
        let was_truncated = recovered.was_truncated(CATALOG);
        let catalog = Arc::new(open_table(&core, CATALOG, "__catalog", &mut recovered)?);
        let positions = Arc::new(open_table(&core, POSITIONS, "__positions", &mut recovered)?);
        let is_salvaged = !catalog.list::<bool>(SALVAGED)?.is_empty();
        let may_lack_streams = was_truncated || is_salvaged;
        let mut must_retain_journal = false;
        let entries = catalog.list::<CatalogEntry>("stream/")?;
        let mut last_id = entries
            .iter()
            .map(|(_, entry)| entry.id.0)
            .fold(FIRST_STREAM - 1, u64::max);
        let (entries, mut abandoned) = without_unfinished(entries, &catalog.list("object/")?);
        for (key, entry) in entries {
            let name = &key["stream/".len()..];
            must_retain_journal |= recovered.has_gap(entry.id);
            let limits = core.limits(entry.kind, &entry.config);
            let named = StreamIdentity {
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
                |lane| recovered.take(&core.dir, lane, entry.uuid),
            );
            if stream.kind != StreamKind::Internal {
                core.partitions.add(stream.partition_count().into());
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
            // The catalog is older than any stream: without it their names and settings are unknown.
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
            let is_on_disk =
                |stream: Arc<StreamState>| stream.shared.durability != Durability::Memory;
            if let Some(stream) = &stream {
                stream
                    .shared
                    .has_shared_groups
                    .store(true, Ordering::Release);
            }
            if !stream.is_some_and(is_on_disk) {
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
        must_retain_journal |= recovered.has_foreign();
        // From here on this run may be interrupted in a write.
        recovered.still_untorn().replace(&core.dir)?;
        core.raise_epochs(&clean_stop)?;
        let holds = restore_holds(&core, &catalog)?;
        abandoned.extend(holds.stale);
        {
            let mut streams = core.streams.write();
            streams.next_id = streams.next_id.max(holds.last_stream + 1);
        }
        if may_lack_streams {
            must_retain_journal |= orphans.iter().any(|id| recovered.has_gap(*id));
            // The lost entries of the catalog may have named these.
            recovered.write_out_left(&core.dir)?;
            for id in core.dir.list_streams()? {
                if !orphans.contains(&id) {
                    continue;
                }
                let moved_to = core.dir.move_stream_aside(id)?;
                tracing::warn!(moved_to = %moved_to.display(),
                    "the catalog was truncated or repaired and does not name stream {id}; its files are \
                     moved to paths that begin so: check whether the stream is missing");
            }
            abandoned.extend(is_salvaged.then(|| SALVAGED.to_owned()));
        } else {
            for id in orphans {
                core.dir.remove_stream_dir(id)?;
            }
        }
        recovered.remove_leftovers(&core.dir, |id| core.stream(id).is_some());
        core.dir.sync_dir(&core.dir.streams_dir())?;
        let exists = |id| core.stream(id).is_some();
        if core.dir.manifest().has_obsolete(exists) {
            core.dir.manifest().rewrite(exists)?;
        }
        core.take_over(old_journal, must_retain_journal);
        let streams: Vec<_> = core.streams.read().by_id.values().cloned().collect();
        for stream in &streams {
            if core.is_keyed(&stream.shared) {
                core.mark_for_compaction(stream);
            }
        }
        if core.dir.is_upgraded {
            warn_of_compaction(&core.dir.root, &streams);
        }
        core.reads
            .damage
            .report_start(&*core.clock, &core.made_lanes());

        let inner = Inner {
            catalog,
            positions,
            shared_groups: Mutex::default(),
            changing: Mutex::default(),
            creating: Mutex::default(),
            created: Condvar::new(),
            random,
            syncers: Mutex::default(),
            persister: Mutex::default(),
            key_builder: Mutex::default(),
            compactor: Mutex::default(),
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
            tracing::warn!(%error, "entries of deleted streams stay in the catalog until the next start");
        }
        Ok(log)
    }
}

/// Returns the catalog's streams without the contents of objects that were not finished, and the keys of these.
fn without_unfinished(
    entries: Vec<(String, CatalogEntry)>,
    objects: &[(String, ObjectInfo)],
) -> (Vec<(String, CatalogEntry)>, Vec<String>) {
    let contents: HashSet<StreamId> = objects.iter().map(|(_, object)| object.stream).collect();
    let is_whole = |(_, entry): &(String, CatalogEntry)| {
        entry.kind != StreamKind::Object || contents.contains(&entry.id)
    };
    let (whole, unfinished): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_whole);
    (whole, unfinished.into_iter().map(|(key, _)| key).collect())
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
    let uuid = core.dir.identity_of(id);
    let stream = Arc::new(StreamState::new(
        StreamIdentity { id, uuid, name },
        StreamKind::Internal,
        config,
        &[shape],
        limits,
        |lane| recovered.take(&core.dir, lane, uuid),
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use uuid::Uuid;

    use super::*;

    #[test]
    fn contents_of_many_unfinished_objects_are_found_quickly() {
        const OBJECTS: u64 = 100_000;
        let entry = |id| CatalogEntry {
            id: StreamId(id),
            uuid: Uuid::nil(),
            kind: StreamKind::Object,
            config: StreamConfig::default(),
            shapes: Vec::new(),
        };
        let object = |id: u64| ObjectInfo {
            name: id.to_string(),
            bytes: 0,
            crc32c: 0,
            created: Default::default(),
            stream: StreamId(id),
        };
        let entries = (0..OBJECTS).map(|id| (format!("stream/{id}"), entry(id)));
        // The first stream's object was not finished.
        let objects = (1..OBJECTS).map(|id| (format!("object/{id}"), object(id)));
        let (entries, objects) = (entries.collect(), objects.collect::<Vec<_>>());
        let started = Instant::now();
        let (whole, unfinished) = without_unfinished(entries, &objects);
        assert!(started.elapsed() < Duration::from_secs(5));
        assert_eq!(
            (whole.len(), unfinished),
            (objects.len(), vec!["stream/0".to_owned()])
        );
    }
}
