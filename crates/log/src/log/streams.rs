//! The creation, lookup, change and deletion of a log's streams.

use std::sync::Arc;

use millstream_base::{ByteSize, StreamId};
use uuid::Uuid;

use crate::error::{LogError, Result};
use crate::handle::stream::Stream;
use crate::log::Log;
use crate::names::{OWN_PREFIX, check_name};
use crate::settings::config::StreamConfig;
use crate::settings::defaults::StreamDefaults;
use crate::stream::{Shape, StreamKind};

impl Log {
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
                // Another thread was faster.
                Err(LogError::Exists { .. }) => self.stream(name),
                created => created,
            },
            found => found,
        }
    }

    /// Returns the stream that another part of the node keeps for itself, under a name that begins with `__`; makes it
    /// if it does not exist. It is in no list, has no retention, and cannot be altered or deleted.
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
        // Small groups: deleted records should leave the disk soon.
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

    /// Returns the number of streams, with internal ones and objects.
    pub fn stream_count(&self) -> usize {
        self.inner.core.streams.read().by_id.len()
    }

    /// Returns the number of partitions of all streams and objects.
    pub fn partition_count(&self) -> u64 {
        self.inner.core.partitions.get()
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
    /// When either becomes less, or more than a stream or the node may have, or the stream is keyed
    /// ([`Stream::check_growth`]).
    pub fn grow_stream(&self, name: &str, streamlets: u32, lanes: u32) -> Result<()> {
        let _one = self.inner.changing.lock();
        let handle = self.stream(name)?;
        let stream = &handle.stream;
        let mut config = stream.shared.config.read().clone();
        if streamlets < config.streamlets || lanes < config.lanes {
            return Err(LogError::BadSetting {
                setting: match lanes < config.lanes {
                    true => "lanes",
                    false => "streamlets",
                },
                why: format!(
                    "stream {name} has {} streamlets of {} lanes, and cannot have fewer",
                    config.streamlets, config.lanes
                ),
            });
        }
        config.streamlets = streamlets;
        config.lanes = lanes;
        config.check()?;
        let more = config.partition_count() - u64::from(stream.partition_count());
        if more > 0 {
            handle.check_growth()?;
        }
        let reserved = self.inner.core.reserve_partitions(more)?;
        let shape = Shape { streamlets, lanes };
        let mut shapes = stream.shapes();
        shapes.push(shape);
        self.inner.store_entry(stream, &config, shapes)?;
        *stream.shared.config.write() = config;
        stream.grow(shape, |_| Default::default());
        reserved.keep();
        stream.shared.grown.notify(usize::MAX);
        Ok(())
    }

    /// Checks that `more` partitions may be made now.
    ///
    /// # Errors
    /// When the node would have too many.
    pub fn check_partitions(&self, more: u64) -> Result<()> {
        self.inner.core.reserve_partitions(more).map(drop)
    }

    /// Changes the retention of a stream.
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

    /// Sets the defaults of settings that users' streams do not have themselves. They are not stored: the caller
    /// sets them again after each start.
    pub fn set_defaults(&self, defaults: StreamDefaults) {
        let _one = self.inner.changing.lock();
        let core = &self.inner.core;
        *core.defaults.write() = defaults;
        let streams: Vec<_> = core.streams.read().by_id.values().cloned().collect();
        for stream in streams {
            let config = stream.shared.config.read().clone();
            stream.shared.limits.set(core.limits(stream.kind, &config));
            core.mark_for_compaction(&stream);
        }
    }

    /// Alters the settings of a stream while it is in use: `alter` is given those that it has. All
    /// but the number of its lanes and virtual logs and its durability can be altered; a new size of
    /// segments, groups or chunks counts from the next one on. Returns the settings that the stream
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
        self.inner.core.mark_for_compaction(&stream);
        Ok(config)
    }
}
