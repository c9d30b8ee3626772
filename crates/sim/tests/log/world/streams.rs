//! Creates, deletes, grows and alters streams, in the log and in the model.

use millstream_base::ByteSize;
use millstream_log::{LogError, StreamConfig};

use super::{DIR, ModelStream, World};

impl World {
    pub fn create(&mut self, name: &str, config: StreamConfig) {
        self.note(format!("create {name}: {config:?}"));
        match self.log().create_stream(name, config.clone()) {
            Ok(stream) => {
                let uuid = stream.uuid().as_u128();
                assert!(
                    self.uuids.insert(uuid),
                    "{name} has the identity of another"
                );
                let model = ModelStream::new(stream.id(), uuid, config);
                let ghost = self.model.streams.insert(name.to_owned(), model);
                assert!(ghost.is_none_or(|ghost| ghost.maybe_deleted));
                self.model.maybe_streams.remove(name);
            }
            Err(error) => {
                self.excuse(&error);
                let maybe = self.model.maybe_streams.entry(name.to_owned());
                maybe.or_default().push(config);
            }
        }
    }

    pub fn delete(&mut self, name: &str) {
        self.note(format!("delete {name}"));
        let id = self.stream(name).id();
        match self.log().delete_stream(name) {
            Ok(()) => {
                let deleted = self.model.streams.remove(name).expect("just deleted");
                let gone = uuid::Uuid::from_u128(deleted.uuid);
                assert!(self.log().stream_by_uuid(gone).is_err());
                let folder = format!("{DIR}/streams/{id}/");
                let left = self.disk.files();
                assert!(!left.iter().any(|(path, _)| path.starts_with(&folder)));
            }
            Err(error) => {
                self.excuse(&error);
                let stream = self.log().stream(name).ok();
                let model = self.model.streams.get_mut(name).expect("just deleted");
                model.maybe_deleted = stream.is_none() || self.disk.has_crashed();
                model.maybe_emptied |= self.faults.full;
                if model.maybe_emptied {
                    for lane in stream
                        .into_iter()
                        .flat_map(|stream| stream.info().partitions)
                    {
                        let key = (lane.streamlet.0, lane.lane.0);
                        let model = model.lanes.get_mut(&key).expect("the model has all lanes");
                        model.earliest = lane.earliest.0;
                    }
                }
            }
        }
    }

    pub fn grow(&mut self, name: &str, streamlets: u32, lanes: u32) {
        self.note(format!("grow {name} to {streamlets} x {lanes}"));
        let result = self.log().grow_stream(name, streamlets, lanes);
        match &result {
            // Decided before anything is stored.
            Err(LogError::KeyedNotGrown { .. }) => {
                let stream = self.log().stream(name).expect("it was found");
                assert!(stream.is_keyed(), "{name}");
                return;
            }
            Err(error) => self.excuse(error),
            Ok(()) => {}
        }
        let model = self.model.streams.get_mut(name).expect("the caller's");
        match result {
            Ok(()) => {
                (model.config.streamlets, model.config.lanes) = (streamlets, lanes);
                model.add_lanes();
                model.maybe_shapes.clear();
                model.maybe_altered.clear();
            }
            Err(_) => model.maybe_shapes.push((streamlets, lanes)),
        }
    }

    pub fn set_retention(&mut self, name: &str, age_ms: Option<u64>, bytes: Option<u64>) {
        self.alter(name, |config| {
            config.retention_ms = age_ms;
            config.retention = bytes.map(ByteSize);
        });
    }

    pub fn alter(&mut self, name: &str, alter: impl Fn(&mut StreamConfig)) {
        let result = self.log().alter_stream(name, &alter);
        if let Err(error) = &result {
            self.excuse(error);
        }
        let model = self.model.streams.get_mut(name).expect("the caller's");
        let mut altered = model.config.clone();
        alter(&mut altered);
        let note = format!("alter {name} to {altered:?}");
        self.notes.add(&self.disk, note);
        match result {
            Ok(config) => {
                assert_eq!(config, altered, "{name}");
                model.config = altered;
                model.maybe_altered.clear();
                model.maybe_shapes.clear();
            }
            Err(_) => model.maybe_altered.push(altered),
        }
    }
}
