//! The lives of a log: it starts, and ends by a kill, a crash or a close.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use millstream_log::{Durability, LogError, StreamConfig};

use super::{
    Consumed, Faults, ModelLane, ModelObject, ModelStream, World, config_with_pool, open_with,
};

impl World {
    /// Opens the log, and checks its content. Fails only if the disk fails.
    pub fn open(&mut self) -> bool {
        self.note("open".to_owned());
        match open_with(config_with_pool(self.pool), &self.disk, &self.clock) {
            Ok(log) => self.log = Some(log),
            Err(error) => {
                let is_small = matches!(error, LogError::NoRoomToStart { .. }) && self.faults.full;
                assert!(
                    self.disk.has_crashed() || is_small,
                    "no recovery: {error} ({error:?})"
                );
                return false;
            }
        }
        self.adopt();
        self.check_all();
        true
    }

    /// Adjusts the model to the log: decides failed operations, and forgets records that were not durable.
    fn adopt(&mut self) {
        let names = self.log().stream_names();
        let model = &mut self.model;
        for (name, configs) in std::mem::take(&mut model.maybe_streams) {
            if let Ok(stream) = self.log.as_ref().expect("open").stream(&name)
                && model
                    .streams
                    .get(&name)
                    .is_none_or(|known| known.maybe_deleted)
                && configs.contains(&stream.config())
            {
                let known = model.streams.get(&name);
                if known.is_none_or(|known| known.id != stream.id()) {
                    let uuid = stream.uuid().as_u128();
                    assert!(
                        self.uuids.insert(uuid),
                        "{name} has the identity of another"
                    );
                    let adopted = ModelStream::new(stream.id(), uuid, stream.config());
                    model.streams.insert(name, adopted);
                }
            }
        }
        model
            .streams
            .retain(|name, stream| !stream.maybe_deleted || names.contains(name));
        let expected: Vec<&String> = model.streams.keys().collect();
        assert_eq!(names.iter().collect::<Vec<_>>(), expected, "streams");
        let log = self.log.as_ref().expect("open");
        let is_full = self.faults.full;
        for (name, stream) in &mut model.streams {
            stream.maybe_deleted = false;
            stream.consumed.given.clear();
            let info = log.stream(name).expect("listed").info();
            let shape = (info.config.streamlets, info.config.lanes);
            if stream.maybe_shapes.contains(&shape) {
                (stream.config.streamlets, stream.config.lanes) = shape;
                stream.add_lanes();
            }
            stream.maybe_shapes.clear();
            let maybe_altered = std::mem::take(&mut stream.maybe_altered).into_iter();
            let mut with_shape = maybe_altered.map(|altered| StreamConfig {
                streamlets: stream.config.streamlets,
                lanes: stream.config.lanes,
                ..altered
            });
            if let Some(altered) = with_shape.find(|altered| *altered == info.config) {
                stream.config = altered;
            }
            assert_eq!(info.id, stream.id, "{name}");
            assert_eq!(info.uuid.as_u128(), stream.uuid, "{name}");
            let found = log.stream_by_uuid(info.uuid).expect("it has this one");
            assert_eq!(found.id(), stream.id, "{name}");
            assert_eq!(info.config, stream.config, "{name}");
            let durability = stream.config.durability;
            let early = matches!(durability, Durability::Written | Durability::Async);
            let lanes: BTreeSet<(u32, u32)> = info
                .partitions
                .iter()
                .map(|lane| (lane.streamlet.0, lane.lane.0))
                .collect();
            assert_eq!(lanes, stream.lanes.keys().copied().collect(), "{name}");
            if stream.config.durability == Durability::Memory {
                stream.consumed = Consumed::default();
            }
            for lane in info.partitions {
                let at = format!("{name} {} {}", lane.streamlet, lane.lane);
                assert_eq!(lane.fault, None, "{at}");
                let key = (lane.streamlet.0, lane.lane.0);
                let model = stream.lanes.get_mut(&key).expect("compared above");
                model.restarted = true;
                if stream.config.durability == Durability::Memory {
                    *model = ModelLane::default();
                }
                let durable = lane.durable.0;
                let acknowledged = model.acknowledged.max(model.written);
                assert!(
                    acknowledged <= durable,
                    "{at}: acknowledged up to {acknowledged}, stored up to {durable}",
                );
                // The start has synced all records that it found.
                model.acknowledged = acknowledged;
                assert!(
                    durable <= model.next(),
                    "{at}: the model has no chunks up to {durable}"
                );
                let handle = found.partition(lane.partition).expect("listed");
                if let Some(lost) = model.chunks.iter().find(|chunk| chunk.base >= durable) {
                    let (_, end) = handle.epoch_end(lost.leader_epoch).expect("it was one");
                    assert!(end.0 <= lost.base, "{at}: the loss is not reported");
                    let is_raised = handle.leader_epoch() > lost.leader_epoch;
                    // A start cannot note it on a full disk, and of an empty lane it knows nothing.
                    let is_excused = is_full || durable == 0;
                    assert!(
                        is_raised || !early || is_excused,
                        "{at}: the loss is not reported"
                    );
                }
                model.chunks.retain(|chunk| chunk.base < durable);
                assert_eq!(model.next(), durable, "{at}: half a chunk");
                // An interrupted retention may have taken effect.
                let earliest = lane.earliest.0;
                assert!(model.removed <= earliest, "{at}: removed records are back");
                let maybe_trimmed = std::mem::take(&mut model.maybe_trimmed);
                if model.earliest < earliest && earliest <= maybe_trimmed {
                    model.is_trimmed = true;
                    model.earliest = earliest;
                    model.removed = model.removed.max(earliest);
                }
                if model.earliest != earliest {
                    let config = &stream.config;
                    let has_retention = config.retention.is_some() || config.retention_ms.is_some();
                    assert!(has_retention || stream.maybe_emptied, "{at}");
                    let is_boundary = earliest == durable
                        || model.chunks.iter().any(|chunk| chunk.base == earliest);
                    assert!(is_boundary, "{at}: part of a group is removed");
                    model.earliest = earliest;
                }
            }
        }
        let names: BTreeSet<String> = log
            .objects("")
            .expect("the catalog was read")
            .into_iter()
            .map(|object| object.name)
            .collect();
        model.objects.retain(|name, object| {
            matches!(object, ModelObject::Stored(_)) || names.contains(name)
        });
        let expected: BTreeSet<String> = model.objects.keys().cloned().collect();
        assert_eq!(names, expected, "objects");
    }

    /// Compares the whole log with the model.
    pub fn check_all(&mut self) {
        for (name, key) in self.lanes() {
            self.check_lane(&name, key);
            self.check_keys(&name, key);
        }
        let objects: Vec<String> = self.model.objects.keys().cloned().collect();
        for name in objects {
            self.check_object(&name);
            if self.disk.has_crashed() {
                return;
            }
            if let Some(ModelObject::Maybe(_)) = self.model.objects.get(&name) {
                let mut content = Vec::new();
                let mut reader = self.log().get_object(&name, None).expect("just read");
                reader.read_to_end(&mut content).expect("just read");
                let object = ModelObject::Stored(Arc::new(content));
                self.model.objects.insert(name, object);
            }
        }
    }

    /// Ends this life of the log by a kill of the process.
    pub fn kill(&mut self) {
        self.note("kill".to_owned());
        self.disk = self.disk.kill();
        self.end_life();
    }

    /// Ends this life by a crash of the machine.
    pub fn crash(&mut self) {
        self.note("crash".to_owned());
        for lane in self.model_lanes() {
            lane.written = 0;
        }
        self.disk = self.disk.crash(&mut self.rng);
        self.end_life();
    }

    fn model_lanes(&mut self) -> impl Iterator<Item = &mut ModelLane> {
        let streams = self.model.streams.values_mut();
        streams.flat_map(|stream| stream.lanes.values_mut())
    }

    fn end_life(&mut self) {
        // From here on, the old log changes a disk that no check reads.
        self.log = None;
        self.faults = Faults::default();
        self.disk.set_capacity(u64::MAX);
    }

    /// Fills the disk, up to a little room or none.
    pub fn fill_disk(&mut self) {
        let used: u64 = self.disk.files().iter().map(|(_, len)| len).sum();
        let left = match self.rng.bool() {
            true => 0,
            false => self.rng.u64(..300_000),
        };
        self.note(format!("{left} bytes of room left"));
        self.disk.set_capacity(used + left);
        self.faults.full = true;
    }

    pub fn close(&mut self) {
        self.note("close".to_owned());
        let log = self.log.take().expect("the log is open");
        if let Err(error) = log.close() {
            self.excuse(&error);
        }
        self.kill();
    }

    /// Checks at the end of a test that the log takes appends, that the shared group consumes each chunk once,
    /// and that a clean end loses no record.
    pub fn finish(&mut self) {
        assert!(self.open());
        for (name, (streamlet, lane)) in self.lanes() {
            for _ in 0..2 * self.model.streams[&name].config.lanes {
                let chunk = self.make_chunk(1, 50, None);
                let (lane, appended) = self.append(&name, streamlet, chunk).expect("no faults");
                assert!(self.acknowledge(&name, &lane, &appended));
            }
            self.check_seek(&name, (streamlet, lane));
            self.check_fetch(&name, (streamlet, lane));
            self.check_transactions(&name, (streamlet, lane));
            self.check_keys(&name, (streamlet, lane));
        }
        while self.log().step() {}
        self.drain();
        self.close();
        self.crash();
        assert!(self.open());
        let left = self.disk.files();
        let has_journal = |path: &Path| path.extension().is_some_and(|kind| kind == "journal");
        let journals = left.iter().filter(|(path, _)| has_journal(path)).count();
        assert_eq!(journals, 0, "a clean end leaves no journal");
    }

    /// Lets the shared group consume all remaining chunks.
    fn drain(&mut self) {
        let names: Vec<String> = self.model.streams.keys().cloned().collect();
        for name in names {
            for streamlet in 0..self.model.streams[&name].config.streamlets {
                self.hand_out(&name, streamlet, "last", usize::MAX);
            }
            loop {
                let before = self.model.streams[&name].consumed.done.len();
                self.consume(&name, "last");
                if self.model.streams[&name].consumed.done.len() == before {
                    break;
                }
            }
            let model = &self.model.streams[&name];
            for ((streamlet, index), lane) in &model.lanes {
                for chunk in lane
                    .chunks
                    .iter()
                    .filter(|chunk| chunk.base >= lane.earliest)
                {
                    let id = (*streamlet, *index, chunk.base);
                    let consumed = &model.consumed;
                    assert!(
                        consumed.done.contains(&id) || consumed.maybe.contains(&id),
                        "{name}: {id:?} never came to the application"
                    );
                }
            }
        }
    }
}
