//! The creation and deletion of streams: each step is noted in the catalog before it counts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_base::{Random, StreamId};
use serde::Serialize;
use uuid::Uuid;

use crate::catalog::CatalogEntry;
use crate::catalog::holds::forget_holds;
use crate::catalog::lane_starts::forget_starts;
use crate::catalog::lanes_with_data::forget_data;
use crate::error::{LogError, Result};
use crate::handle::stream::Stream;
use crate::log::Inner;
use crate::produce::wait::wait_durable;
use crate::random::draw;
use crate::settings::config::StreamConfig;
use crate::stream::{Shape, StreamIdentity, StreamKind, StreamState};

impl Inner {
    pub(super) fn next_id(&self) -> StreamId {
        let mut streams = self.core.streams.write();
        let id = streams.next_id;
        streams.next_id += 1;
        StreamId(id)
    }

    /// Creates a stream. Several at once share the commits that make their existence durable.
    pub(super) fn create(
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
            // A caller that gets the error that the name exists finds the stream.
            let mut creating = self.creating.lock();
            while !creating.insert(name.to_owned()) {
                self.created.wait(&mut creating);
            }
        }
        // Looked up after the name is reserved: the caller that had reserved it before has added its stream by then.
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
        // Checked before any state is made of them.
        let counted = match kind {
            StreamKind::Internal => 0,
            StreamKind::Stream | StreamKind::Object => config.partition_count(),
        };
        let reserved = self.core.reserve_partitions(counted)?;
        let stream = Arc::new(StreamState::new(
            StreamIdentity { id, uuid, name },
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

    pub(super) fn store_entry(
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
    pub(super) fn put_catalog<T: Serialize>(&self, key: &str, value: Option<&T>) -> Result<()> {
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
        forget_starts(&self.core, &self.catalog, id)?;
        forget_data(&self.core, &self.catalog, id)?;
        forget_holds(&self.core, &self.catalog, id)?;
        for lane in stream.made_lanes() {
            // A compaction that goes on; none is begun from here on.
            drop(lane.compacting.lock());
            // Key files that are being made; none is begun from here on.
            lane.made_key_index().inspect(|index| drop(index.build()));
            let secondary = lane.secondary_indexes();
            secondary.iter().for_each(|index| drop(index.build()));
            for group in lane.groups() {
                group.remove(&self.core.dir)?;
                lane.remove_first(group.id);
            }
        }
        // Until here the journal may hold its data, which can only be persisted with it.
        let gone = self.core.streams.write().by_id.remove(&id);
        self.core.mark_for_compaction(stream);
        if let Some(gone) = gone {
            self.core.partitions.release(gone.partition_count().into());
        }
        self.core.dir.remove_stream_dir(id)?;
        self.core.dir.manifest().forget(id);
        self.catalog.compact(&self.core);
        Ok(())
    }

    /// Notes that a stream, or the object that it holds, is deleted. None of its data is removed before
    /// that is durable, unless there is no room for that.
    pub(super) fn note_end(
        &self,
        stream: &StreamState,
        note: impl Fn() -> Result<()>,
    ) -> Result<()> {
        match note() {
            Err(error) if error.is_disk_full() => {
                self.core.make_room_of(stream)?;
                note()
            }
            noted => noted,
        }
    }

    /// Ends a stream's entry in the catalog, and the stream; returns when that is durable. A second call only waits, since
    /// another stream may have the name by then.
    fn note_deleted(&self, stream: &StreamState) -> Result<()> {
        if !stream.is_removed() {
            let id = stream.shared.id;
            let key = format!("stream/{}", stream.shared.name);
            self.catalog.put::<CatalogEntry>(&self.core, &key, None)?;
            // From here on the next start may find it deleted, so nothing more is acknowledged.
            stream.shared.removed.store(true, Ordering::Release);
            self.core.streams.write().forget_names(&stream.shared);
            self.shared_groups
                .lock()
                .retain(|(stream, _), _| *stream != id);
            for lane in stream.made_lanes() {
                // An append that had not seen it is over when its lane's lock is free.
                lane.next_offset();
                lane.wake();
            }
        }
        let lane = self.catalog.lane();
        wait_durable(&self.core, lane, lane.next_offset())
    }
}

/// An identity that no other stream has, as far as 121 random bits go.
fn new_uuid(random: &dyn Random) -> Result<Uuid> {
    let mut bytes: [u8; 16] = draw(random)?;
    // So that its text in Kafka's tools, which is base64, does not begin as an option does.
    bytes[0] &= 0x7f;
    Ok(uuid::Builder::from_random_bytes(bytes).into_uuid())
}

#[cfg(test)]
mod tests {
    use millstream_base::{ByteSize, Offset, Timestamp};
    use millstream_record::{ChunkBuilder, Compression};

    use super::*;
    use crate::log::Log;
    use crate::settings::config::LogConfig;

    #[test]
    fn a_deletion_that_is_noted_again_spares_a_new_stream_of_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Log::open(LogConfig::with_pool(dir.path(), ByteSize(4 << 20))).unwrap();
        let log = open();
        let old = log.create_stream("a", StreamConfig::default()).unwrap();
        log.inner.note_deleted(&old.stream).unwrap();
        let new = log.create_stream("a", StreamConfig::default()).unwrap();
        let partition = new.partition(0).unwrap();
        let mut builder = ChunkBuilder::new(Compression::None);
        builder.push(Timestamp(0), None, Some(b"v"), &[]).unwrap();
        let appended = partition.append(builder.finish(None).unwrap()).unwrap();
        partition.acknowledge(&appended).unwrap();

        log.inner.note_deleted(&old.stream).unwrap();
        assert_eq!(log.stream("a").unwrap().uuid(), new.uuid());
        log.close().unwrap();
        let found = open().stream("a").unwrap();
        assert_eq!(found.uuid(), new.uuid());
        assert_eq!(found.partition(0).unwrap().high_watermark(), Offset(1));
    }
}
