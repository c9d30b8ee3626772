//! Puts, gets, lists and deletes the objects of a log.

use std::io::Read;
use std::sync::Arc;

use millstream_base::{LaneIndex, StreamletIndex};

use crate::error::{LogError, Result};
use crate::log::Log;
use crate::names::check_name;
use crate::object::{ObjectInfo, ObjectReader, write_content};
use crate::settings::config::StreamConfig;
use crate::stream::StreamKind;

impl Log {
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
            // The caller gets the first error; the next start removes the rest of the object. Where
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

    /// Returns the description of an object.
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
}
