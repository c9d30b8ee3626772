//! What the tests of the log share: a log on a simulated machine, and the model of what must be in
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millstream_base::{
    ByteSize, Cursor, GroupId, LaneIndex, Offset, ProducerEpoch, ProducerId, Sequence, StreamId,
    StreamletIndex, Timestamp,
};
use millstream_log::{
    Appended, AtLeast, Background, Durability, Log, LogConfig, LogError, Stream, StreamConfig,
    StreamPartition,
};
use millstream_record::{ChunkBuilder, Chunks, Compression, EndMarker, Producer, TransactionEnd};
use millstream_sim::{Rng, SimClock, SimDisk, SimRandom};

pub const DIR: &str = "/data";

/// A small log whose background work the test does.
pub fn config() -> LogConfig {
    config_with_pool(ByteSize(1 << 20))
}

pub fn config_with_pool(pool: ByteSize) -> LogConfig {
    LogConfig {
        journal: ByteSize(512 << 10),
        journal_file: ByteSize(256 << 10),
        background: Background::Manual,
        ..LogConfig::with_pool(DIR, pool)
    }
}

pub fn open(disk: &SimDisk, clock: &SimClock) -> Result<Log, LogError> {
    open_with(config(), disk, clock)
}

pub fn open_with(config: LogConfig, disk: &SimDisk, clock: &SimClock) -> Result<Log, LogError> {
    // No two lives of a log draw the same: their journals have other names.
    let files = format!("{:?}", disk.files());
    let seed = disk.operations() << 32 | u64::from(millstream_base::crc32c(files.as_bytes()));
    Log::open_on(
        config,
        Arc::new(disk.clone()),
        Arc::new(clock.clone()),
        Arc::new(SimRandom::new(seed)),
    )
}

/// Runs cases with seeds from 0 on several threads, or the one that `MILLSTREAM_SEED` names.
pub fn for_each_seed(default_count: u64, case: fn(u64)) {
    let variable = |name| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    if let Some(seed) = variable("MILLSTREAM_SEED") {
        return case(seed);
    }
    let count = variable("MILLSTREAM_CASES").unwrap_or(default_count);
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count {
                        break;
                    }
                    if let Err(panic) = std::panic::catch_unwind(|| case(seed)) {
                        next.store(count, Ordering::Relaxed);
                        eprintln!("failed with MILLSTREAM_SEED={seed}");
                        std::panic::resume_unwind(panic);
                    }
                }
            });
        }
    });
}

/// A chunk as the model keeps it.
#[derive(Debug, Clone)]
pub struct ModelChunk {
    pub base: u64,
    pub count: u64,
    /// The bytes as they were sent, with base offset 0.
    pub bytes: Arc<Vec<u8>>,
    pub timestamp: i64,
    pub producer: Option<(i64, i16, i32)>,
    pub is_transactional: bool,
    /// Of a chunk that ends a transaction; it counts as one without a producer otherwise.
    pub marker: Option<EndMarker>,
}

impl ModelChunk {
    pub fn end(&self) -> u64 {
        self.base + self.count
    }
}

#[derive(Debug, Clone, Default)]
pub struct ModelLane {
    /// All that was appended, also what retention has removed since.
    pub chunks: Vec<ModelChunk>,
    /// What was acknowledged or seen ends here.
    pub acknowledged: u64,
    /// What producers of a `written` stream were answered, or consumers have seen of it: a kill of the
    /// process leaves it, a crash of the machine need not.
    pub written: u64,
    /// The first offset that is stored …
    pub earliest: u64,
    /// … and below which nothing comes back in a crash.
    pub removed: u64,
    /// A start has forgotten what is not stored.
    pub restarted: bool,
    /// Something was deleted from its beginning, perhaps within a group.
    pub is_cut: bool,
    /// A deletion up to here failed: it may hold from the next start on.
    pub maybe_cut: u64,
}

/// What the rules of duplicate detection say of a chunk.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Append,
    Duplicate(u64),
    Fenced,
    OutOfOrder,
}

impl ModelLane {
    pub fn next(&self) -> u64 {
        self.chunks.last().map_or(0, ModelChunk::end)
    }

    pub fn of_producer(&self, id: i64) -> impl DoubleEndedIterator<Item = &ModelChunk> {
        let mine = move |chunk: &&ModelChunk| chunk.producer.is_some_and(|(other, ..)| other == id);
        self.chunks.iter().filter(mine)
    }

    /// What is right for a chunk of `producer` with `count` records. After a start, the lane may
    /// know nothing of chunks that retention had removed: then `from` is the first offset it knows.
    pub fn verdict(&self, producer: (i64, i16, i32), count: u64, from: u64) -> Verdict {
        let (id, epoch, sequence) = producer;
        let known: Vec<&ModelChunk> = self
            .of_producer(id)
            .filter(|chunk| chunk.base >= from)
            .collect();
        let Some((_, current, last_sequence)) = known.last().and_then(|chunk| chunk.producer)
        else {
            return Verdict::Append;
        };
        if epoch < current {
            return Verdict::Fenced;
        }
        let last_count = known.last().expect("just seen").count;
        let expected = match epoch == current {
            true => last_sequence + last_count as i32,
            false => 0,
        };
        let repeated = known
            .iter()
            .rev()
            .take_while(|chunk| chunk.producer.is_some_and(|(_, other, _)| other == epoch))
            .take(5)
            .find(|chunk| chunk.producer == Some(producer) && chunk.count == count);
        match repeated {
            Some(chunk) => Verdict::Duplicate(chunk.base),
            None if sequence == expected => Verdict::Append,
            None => Verdict::OutOfOrder,
        }
    }
}

/// What the lane's chunks say of transactions.
#[derive(Debug, Default)]
pub struct Transactions {
    /// Producer, and the first offset of what has not ended.
    pub open: BTreeMap<i64, u64>,
    /// Producer, first offset, offset of the marker.
    pub aborted: Vec<(i64, u64, u64)>,
}

impl ModelLane {
    /// Of chunks before `end`.
    pub fn transactions(&self, end: u64) -> Transactions {
        let mut transactions = Transactions::default();
        for chunk in self.chunks.iter().take_while(|chunk| chunk.base < end) {
            if let Some((id, ..)) = chunk.producer.filter(|_| chunk.is_transactional) {
                transactions.open.entry(id).or_insert(chunk.base);
            }
            let Some(marker) = chunk.marker else {
                continue;
            };
            let id = marker.producer_id.0;
            if let Some(first) = transactions.open.remove(&id)
                && marker.end == TransactionEnd::Abort
            {
                transactions.aborted.push((id, first, chunk.base));
            }
        }
        transactions
    }

    /// Epoch and next sequence of a producer of transactions.
    pub fn next_of(&self, id: i64) -> (i16, i32) {
        let mut next = (0, 0);
        for chunk in &self.chunks {
            if let Some((other, epoch, sequence)) = chunk.producer
                && other == id
            {
                next = (epoch, sequence + chunk.count as i32);
            }
            if let Some(marker) = chunk.marker
                && marker.producer_id.0 == id
                && marker.producer_epoch.0 != next.0
            {
                next = (marker.producer_epoch.0, 0);
            }
        }
        next
    }
}

#[derive(Debug, Clone)]
pub struct ModelStream {
    pub id: StreamId,
    pub uuid: u128,
    pub config: StreamConfig,
    pub lanes: BTreeMap<(u32, u32), ModelLane>,
    /// Shapes that a failed growth may have left: they count from the next start on.
    pub maybe_shapes: Vec<(u32, u32)>,
    /// Changes of the settings that failed: one of them may hold from the next start on.
    pub maybe_altered: Vec<StreamConfig>,
    /// A deletion failed: the stream is gone for now, and may be back after the next start.
    pub maybe_deleted: bool,
    /// A deletion failed on a full disk, and may have removed groups.
    pub maybe_emptied: bool,
    pub consumed: Consumed,
}

/// What the application of a stream has done.
#[derive(Debug, Clone, Default)]
pub struct Consumed {
    /// Committed chunks: streamlet, lane, base offset.
    pub done: BTreeSet<(u32, u32, u64)>,
    /// Chunks whose commit failed, which may have had effect.
    pub maybe: BTreeSet<(u32, u32, u64)>,
    /// Who has which group, and where it stands.
    pub given: BTreeMap<(u32, GroupId), (String, Cursor)>,
}

#[derive(Debug, Clone)]
pub enum ModelObject {
    Stored(Arc<Vec<u8>>),
    /// A put or a deletion failed: it is there with one of these contents, or not at all.
    Maybe(Vec<Arc<Vec<u8>>>),
    /// A deletion failed on a full disk: as before, or with a part of the content only.
    MaybeEmptied(Vec<Arc<Vec<u8>>>),
}

#[derive(Debug, Clone, Default)]
pub struct Model {
    pub streams: BTreeMap<String, ModelStream>,
    /// Creations that failed: the stream may exist after the next start.
    pub maybe_streams: BTreeMap<String, Vec<StreamConfig>>,
    pub objects: BTreeMap<String, ModelObject>,
}

/// Faults that this life of the log has met, which excuse errors.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    pub failing: bool,
    pub full: bool,
}

pub struct World {
    pub rng: Rng,
    pub disk: SimDisk,
    pub clock: SimClock,
    /// Of the log's next life.
    pub pool: ByteSize,
    pub log: Option<Log>,
    pub model: Model,
    pub faults: Faults,
    /// Of all streams that there ever were.
    uuids: BTreeSet<u128>,
    /// Makes every chunk unlike all others.
    chunks_made: u64,
    /// What was done, each before the disk operation with the next number.
    notes: Vec<(u64, String)>,
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let disk = SimDisk::new(rng.u64(..));
        disk.start_trace();
        World {
            rng,
            disk,
            clock: SimClock::new(Timestamp(1_000_000_000_000)),
            pool: config().pool,
            log: None,
            model: Model::default(),
            faults: Faults::default(),
            uuids: BTreeSet::new(),
            chunks_made: 0,
            notes: Vec::new(),
        }
    }

    pub fn log(&self) -> &Log {
        self.log.as_ref().expect("the log is open")
    }

    pub fn stream(&self, name: &str) -> Stream {
        self.log().stream(name).expect("the model has it")
    }

    /// An error must have a reason in what was done to the disk.
    pub fn excuse(&self, error: &LogError) {
        let excused = match error {
            LogError::DiskFull { .. } | LogError::NoRoomToStart { .. } => self.faults.full,
            LogError::Io { .. } => {
                self.faults.failing || self.faults.full || self.disk.has_crashed()
            }
            LogError::PartitionFault { .. } => {
                let mut streams = self.model.streams.values();
                let may_be_emptied = streams.any(|stream| stream.maybe_emptied);
                self.faults.failing || self.disk.has_crashed() || may_be_emptied
            }
            LogError::PoolExhausted { .. } | LogError::Closed => {
                self.faults.failing
                    || self.faults.full
                    || self.disk.has_crashed()
                    || self.has_in_memory()
            }
            _ => false,
        };
        assert!(excused, "nothing excuses: {error} ({error:?})");
    }

    pub fn note(&mut self, note: String) {
        self.notes.push((self.disk.operations(), note));
    }

    fn has_in_memory(&self) -> bool {
        let mut streams = self.model.streams.values();
        streams.any(|stream| stream.config.durability == Durability::Memory)
    }

    // ---- Streams -------------------------------------------------------------------------------

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
        if let Err(error) = &result {
            self.excuse(error);
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
        self.notes.push((
            self.disk.operations(),
            format!("alter {name} to {altered:?}"),
        ));
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

    // ---- Appending -----------------------------------------------------------------------------

    pub fn make_chunk(
        &mut self,
        count: u64,
        bytes: usize,
        producer: Option<(i64, i16, i32)>,
    ) -> ModelChunk {
        self.make_chunk_of(count, bytes, producer, false)
    }

    pub fn make_chunk_of(
        &mut self,
        count: u64,
        bytes: usize,
        producer: Option<(i64, i16, i32)>,
        is_transactional: bool,
    ) -> ModelChunk {
        self.chunks_made += 1;
        let timestamp = millstream_base::Clock::now(&self.clock);
        let mut builder = ChunkBuilder::new(Compression::None);
        builder.set_transactional(is_transactional);
        let padding = vec![self.chunks_made as u8; (bytes / count as usize).saturating_sub(30)];
        for n in 0..count {
            let mut value = format!("{} {n} ", self.chunks_made).into_bytes();
            value.extend_from_slice(&padding);
            let pushed = builder.push(timestamp, None, Some(&value), &[]);
            pushed.expect("far below the format's bound");
        }
        let producer_fields = producer.map(|(id, epoch, sequence)| Producer {
            id: ProducerId(id),
            epoch: ProducerEpoch(epoch),
            sequence: Sequence(sequence),
        });
        let bytes = builder.finish(producer_fields).expect("it has records");
        ModelChunk {
            base: 0,
            count,
            bytes: Arc::new(bytes.to_vec()),
            timestamp: timestamp.0,
            producer,
            is_transactional,
            marker: None,
        }
    }

    /// Ends a transaction in the lane where its producer appends, and checks the answer.
    pub fn append_marker(
        &mut self,
        name: &str,
        streamlet: u32,
        marker: EndMarker,
    ) -> Option<(StreamPartition, Appended)> {
        self.note(format!("end in {name} {streamlet}: {marker:?}"));
        let stream = self.stream(name);
        let lane = stream
            .partition_for(StreamletIndex(streamlet), marker.producer_id)
            .expect("it exists");
        let timestamp = millstream_base::Clock::now(&self.clock);
        let appended = match lane.append_marker(&marker) {
            Ok(appended) => appended,
            Err(error) => {
                self.excuse(&error);
                return None;
            }
        };
        let key = (streamlet, lane.id().lane.0);
        let model = self.model.streams.get_mut(name).expect("the caller's");
        let is_in_memory = model.config.durability == Durability::Memory;
        let model = model.lanes.get_mut(&key).expect("the model has all lanes");
        assert_eq!(appended.base_offset.0, model.next());
        assert_eq!(appended.next_offset.0, model.next() + 1);
        let bytes = marker.to_chunk(timestamp).expect("it fits");
        model.chunks.push(ModelChunk {
            base: appended.base_offset.0,
            count: 1,
            bytes: Arc::new(bytes),
            timestamp: timestamp.0,
            producer: None,
            is_transactional: true,
            marker: Some(marker),
        });
        if is_in_memory {
            model.acknowledged = model.next();
        }
        Some((lane, appended))
    }

    /// Appends a chunk and checks the answer.
    pub fn append(
        &mut self,
        name: &str,
        streamlet: u32,
        mut chunk: ModelChunk,
    ) -> Option<(StreamPartition, Appended)> {
        let (bytes, producer) = (chunk.bytes.len(), chunk.producer);
        self.note(format!(
            "append {bytes} to {name} {streamlet} by {producer:?}"
        ));
        let stream = self.stream(name);
        let index = StreamletIndex(streamlet);
        let result = match chunk.producer {
            // So the lane is known also when the chunk is refused.
            Some((id, ..)) => stream
                .partition_for(index, ProducerId(id))
                .and_then(|lane| lane.append(&chunk.bytes).map(|appended| (lane, appended))),
            None => stream.append(index, &chunk.bytes),
        };
        let (key, appended) = match (&result, chunk.producer) {
            (Ok((lane, appended)), _) => ((streamlet, lane.id().lane.0), Some(*appended)),
            (Err(_), Some((id, ..))) => {
                let lane = stream
                    .partition_for(index, ProducerId(id))
                    .expect("it exists");
                ((streamlet, lane.id().lane.0), None)
            }
            (Err(error), None) => {
                self.excuse_append(name, &chunk, error);
                return None;
            }
        };
        let is_in_memory = self.model.streams[name].config.durability == Durability::Memory;
        let model = self.model.streams.get_mut(name).expect("the caller's");
        let lane = model.lanes.get_mut(&key).expect("the model has all lanes");
        let verdict = match chunk.producer {
            Some(producer) => lane.verdict(producer, chunk.count, 0),
            None => Verdict::Append,
        };
        let lenient = match chunk.producer {
            Some(producer) if lane.restarted => lane.verdict(producer, chunk.count, lane.earliest),
            _ => Verdict::Append,
        };
        let found = match (&result, appended) {
            (_, Some(appended)) if appended.duplicate => Verdict::Duplicate(appended.base_offset.0),
            (_, Some(_)) => Verdict::Append,
            (Err(LogError::ProducerFenced { .. }), _) => Verdict::Fenced,
            (Err(LogError::OutOfOrderSequence { .. }), _) => Verdict::OutOfOrder,
            (Err(error), _) => {
                let error = error.clone();
                self.excuse_append(name, &chunk, &error);
                return None;
            }
            (Ok(_), None) => unreachable!("an answer tells where"),
        };
        let excused = lane.restarted && lane.earliest > 0 && found == lenient;
        assert!(
            found == verdict || excused,
            "{found:?} for a chunk of {:?} that is {verdict:?} in {name} {key:?}: {:?}",
            chunk.producer,
            lane.chunks
                .iter()
                .map(|c| (c.base, c.count, c.producer))
                .collect::<Vec<_>>(),
        );
        let (lane_handle, appended) = result.ok()?;
        if found == Verdict::Append {
            assert_eq!(appended.base_offset.0, lane.next(), "offsets have no gaps");
            assert_eq!(appended.next_offset.0, lane.next() + chunk.count);
            chunk.base = appended.base_offset.0;
            if is_in_memory {
                lane.acknowledged = chunk.end();
            }
            lane.chunks.push(chunk);
        }
        Some((lane_handle, appended))
    }

    fn excuse_append(&self, name: &str, chunk: &ModelChunk, error: &LogError) {
        match error {
            LogError::ChunkTooLarge { bytes_max, .. } => {
                assert!(chunk.bytes.len() as u64 > bytes_max.0, "{name}: {error}");
            }
            error => self.excuse(error),
        }
    }

    pub fn acknowledge(&mut self, name: &str, lane: &StreamPartition, appended: &Appended) -> bool {
        let key = (lane.id().streamlet.0, lane.id().lane.0);
        match lane.acknowledge(appended) {
            Ok(()) => {
                let model = self.model.streams.get_mut(name).expect("the caller's");
                let lane = model.lanes.get_mut(&key).expect("the caller's");
                match model.config.durability {
                    Durability::Sync => {
                        lane.acknowledged = lane.acknowledged.max(appended.next_offset.0);
                    }
                    Durability::Written => {
                        lane.written = lane.written.max(appended.next_offset.0);
                    }
                    Durability::Async | Durability::Memory => {}
                }
                true
            }
            Err(error) => {
                self.excuse(&error);
                false
            }
        }
    }

    // ---- Reading -------------------------------------------------------------------------------

    /// Reads a lane from its beginning, and compares.
    pub fn check_lane(&mut self, name: &str, key: (u32, u32)) {
        let stream = self.stream(name);
        let lane = lane_of(&stream, key);
        let durable = lane.durable_offset().0;
        let model = self.model.streams.get_mut(name).expect("the caller's");
        let may_shrink = model.config.durability == Durability::Memory;
        let is_written = model.config.durability == Durability::Written;
        let model = model.lanes.get_mut(&key).expect("the caller's");
        let at = format!("{name} {key:?}");
        assert!(
            model.acknowledged <= durable,
            "{at}: {} > {durable}",
            model.acknowledged
        );
        assert!(
            durable <= model.next(),
            "{at}: nobody appended up to {durable}"
        );
        model.acknowledged = durable;
        let readable = lane.high_watermark().0;
        assert!(
            model.written <= readable.max(durable),
            "{at}: {} > {readable}",
            model.written
        );
        if is_written {
            model.written = readable;
        }

        let mut reader = lane.reader(lane.earliest());
        let earliest = lane.info().earliest.0;
        if !may_shrink {
            assert_eq!(earliest, model.earliest, "{at}");
        }
        // The first chunk is whole.
        let mut chunks = model.chunks.iter();
        let first = chunks.find(|chunk| chunk.end() > earliest);
        let mut expected = first.map_or(earliest, |chunk| chunk.base);
        let bytes_max = 1 << self.rng.u32(6..20);
        loop {
            match reader.read(bytes_max) {
                Ok(Some(read)) => {
                    for chunk in read.chunks() {
                        let chunk = chunk.expect("checked when it came in");
                        let header = chunk.header();
                        assert_eq!(header.base_offset.0, expected, "{at}");
                        compare(model, header.base_offset.0, chunk.bytes(), &at);
                        expected = header.next_offset().0;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    assert!(self.disk.has_crashed(), "{at}: {error}");
                    return;
                }
            }
        }
        assert_eq!(expected, durable, "{at}: reading ends early");
    }

    pub fn check_seek(&mut self, name: &str, key: (u32, u32)) {
        let stream = self.stream(name);
        let lane = lane_of(&stream, key);
        let durable = lane.durable_offset().0;
        let readable = lane.high_watermark().0;
        let earliest = lane.info().earliest.0;
        let model = &self.model.streams[name].lanes[&key];
        let offset = self.rng.u64(0..=model.next() + 2);
        match lane.seek_offset(Offset(offset)) {
            Ok(cursor) => {
                assert!((earliest..=durable).contains(&offset));
                let read = self.log().read(&cursor, 1);
                match read {
                    Ok(Some(read)) => {
                        let first = read.chunks().next().expect("not empty").expect("whole");
                        let header = first.header();
                        assert!(header.base_offset.0 <= offset && offset <= header.last_offset().0);
                        compare(model, header.base_offset.0, first.bytes(), name);
                    }
                    // A lane that never had a group has none to read.
                    Ok(None) | Err(LogError::BadCursor { .. }) => assert_eq!(offset, durable),
                    Err(error) => self.excuse(&error),
                }
            }
            Err(LogError::OffsetOutOfRange { .. }) => {
                assert!(offset < earliest || offset > durable);
            }
            Err(error) => self.excuse(&error),
        }

        let stored = || {
            let chunks = model.chunks.iter();
            chunks.filter(|chunk| earliest < chunk.end() && chunk.base < readable)
        };
        let newest = stored().map(|chunk| chunk.timestamp).max().unwrap_or(0);
        let timestamp = match stored().nth(self.rng.usize(0..=stored().count())) {
            Some(chunk) => chunk.timestamp + self.rng.i64(-1..=1),
            None => newest + 1,
        };
        let expected = stored().find(|chunk| chunk.timestamp >= timestamp);
        match lane.seek_timestamp(Timestamp(timestamp)) {
            Ok(found) => assert_eq!(
                found.map(|(_, offset)| offset.0),
                expected.map(|chunk| chunk.base),
                "{name} {key:?} at {timestamp}"
            ),
            Err(error) => self.excuse(&error),
        }
        match lane.record_at(Timestamp(timestamp)) {
            Ok(found) => assert_eq!(
                found.map(|(offset, timestamp)| (offset.0, timestamp.0)),
                expected.map(|chunk| (chunk.base.max(earliest), chunk.timestamp)),
                "{name} {key:?} at {timestamp}"
            ),
            Err(error) => self.excuse(&error),
        }
        let end = self.rng.u64(0..=readable + 1);
        let before = stored().filter(|chunk| chunk.base < end);
        let expected = before.rev().max_by_key(|chunk| chunk.timestamp);
        match lane.newest_record(Offset(end)) {
            // What was deleted from a group may be found too.
            Ok(found) if model.is_cut => {
                let found = found.map(|(_, timestamp)| timestamp.0);
                assert!(
                    found >= expected.map(|chunk| chunk.timestamp),
                    "{name} {key:?}"
                );
            }
            Ok(found) => assert_eq!(
                found.map(|(offset, timestamp)| (offset.0, timestamp.0)),
                expected.map(|chunk| (chunk.base, chunk.timestamp)),
                "{name} {key:?} before {end}"
            ),
            Err(error) => self.excuse(&error),
        }
    }

    /// Fetches from anywhere, and goes on where that ended.
    pub fn check_fetch(&mut self, name: &str, key: (u32, u32)) {
        let stream = self.stream(name);
        let lane = lane_of(&stream, key);
        let readable = lane.high_watermark().0;
        let mut from = self.rng.u64(0..=readable + 2);
        for _ in 0..3 {
            let earliest = lane.info().earliest.0;
            let model = &self.model.streams[name].lanes[&key];
            let end = from + self.rng.u64(..20);
            // So that the little memory for reads from disk has room for all pieces.
            let bytes_max = 1 << self.rng.u32(6..17);
            let at_least = match self.rng.bool() {
                true => AtLeast::OneChunk,
                false => AtLeast::Nothing,
            };
            let at =
                format!("{name} {key:?} from {from} to {end}, {bytes_max} bytes, {at_least:?}");
            let fetched = match lane.fetch(Offset(from), Offset(end), bytes_max, at_least) {
                Ok(fetched) => fetched,
                Err(LogError::OffsetOutOfRange { .. }) => {
                    assert!(from < earliest || from > readable, "{at}");
                    return;
                }
                Err(error) => return self.excuse(&error),
            };
            assert!((earliest..=readable).contains(&from), "{at}");
            let mut left = bytes_max;
            let mut expected = model
                .chunks
                .iter()
                .skip_while(|chunk| chunk.end() <= from)
                .take_while(|chunk| from < end && chunk.base < end.min(readable))
                .enumerate()
                .take_while(|(n, chunk)| {
                    let bytes = chunk.bytes.len();
                    let fits = bytes <= left || *n == 0 && at_least == AtLeast::OneChunk;
                    left = left.saturating_sub(bytes);
                    fits
                })
                .map(|(_, chunk)| chunk);
            let mut next = from;
            for piece in &fetched.pieces {
                for chunk in Chunks::new(piece) {
                    let chunk = chunk.expect("whole chunks");
                    let expected = expected.next().unwrap_or_else(|| panic!("{at}: too much"));
                    assert_eq!(chunk.header().base_offset.0, expected.base, "{at}");
                    compare(model, expected.base, chunk.bytes(), &at);
                    next = expected.end();
                }
            }
            assert!(expected.next().is_none(), "{at}: too little");
            assert_eq!(fetched.next.0, next, "{at}");
            let bytes: usize = fetched.pieces.iter().map(|piece| piece.len()).sum();
            assert_eq!(fetched.bytes, bytes, "{at}");
            from = next;
        }
    }

    /// Compares what a lane says of transactions with what its chunks do.
    pub fn check_transactions(&mut self, name: &str, key: (u32, u32)) {
        let stream = self.stream(name);
        let lane = lane_of(&stream, key);
        let readable = lane.high_watermark().0;
        let earliest = lane.info().earliest.0;
        let model = &self.model.streams[name].lanes[&key];
        let at = format!("{name} {key:?} from {earliest} to {readable}");
        let expected = model.transactions(readable);

        // Where a start knows nothing of what retention had removed, a transaction seems to begin
        // later, or to be none.
        let stable = lane.last_stable_offset().0;
        let known = expected.open.values().filter(|first| **first >= earliest);
        let latest = known.fold(readable, |least, first| least.min(*first));
        let is_clear = expected.open.values().all(|first| *first >= earliest);
        assert!(
            stable <= latest,
            "{at}: stable up to {stable}, not {latest}"
        );
        let is_exact = is_clear && stable == latest;
        let is_clamped = !is_clear && stable >= earliest.min(readable);
        assert!(is_exact || is_clamped, "{at}: stable only up to {stable}");
        if !is_clear && !model.restarted {
            assert_eq!(stable, earliest.min(readable), "{at}: forgotten");
        }

        let from = self.rng.u64(earliest..=readable.max(earliest));
        let to = self.rng.u64(0..=stable);
        let found = match lane.aborted_transactions(Offset(from), Offset(to)) {
            Ok(found) => found,
            Err(error) => return self.excuse(&error),
        };
        let found: Vec<(i64, u64, u64)> = found
            .iter()
            .map(|aborted| {
                let (first, last) = (aborted.first_offset.0, aborted.last_offset.0);
                (aborted.producer.0, first, last)
            })
            .collect();
        let in_range = |aborted: &&(i64, u64, u64)| aborted.2 >= from && aborted.1 < to;
        let expected: Vec<(i64, u64, u64)> =
            expected.aborted.iter().filter(in_range).copied().collect();
        if earliest == 0 || !model.restarted {
            assert_eq!(found, expected, "{at}: {from} to {to}");
        }
        let is_sure = |aborted: &&(i64, u64, u64)| aborted.1 >= earliest;
        for aborted in expected.iter().filter(is_sure) {
            assert!(
                found.contains(aborted),
                "{at}: {aborted:?} of {from} to {to}"
            );
        }
        for (producer, first, last) in &found {
            let is_known = |aborted: &(i64, u64, u64)| {
                aborted.0 == *producer && aborted.1 <= *first && aborted.2 == *last
            };
            let all = model.transactions(u64::MAX).aborted;
            assert!(all.iter().any(is_known), "{at}: {producer} {first} {last}");
        }

        if earliest == 0 || !model.restarted {
            let open: BTreeMap<i64, u64> = lane
                .producers()
                .iter()
                .filter_map(|info| Some((info.producer.0, info.transaction?.first_offset.0)))
                .collect();
            assert_eq!(open, model.transactions(u64::MAX).open, "{at}");
            for info in lane.producers() {
                let (epoch, next) = model.next_of(info.producer.0);
                assert_eq!(info.epoch.0, epoch, "{at}: {info:?}");
                let expected = info.last_sequence.map_or(0, |last| last.0 + 1);
                assert_eq!(expected, next, "{at}: {info:?}");
            }
        }
    }

    // ---- Retention -----------------------------------------------------------------------------

    pub fn retain(&mut self) {
        self.note("retain".to_owned());
        let before: BTreeMap<(String, (u32, u32)), u64> = self.lane_bytes();
        let result = self.log().apply_retention();
        if let Err(error) = &result {
            self.excuse(error);
        }
        let now = millstream_base::Clock::now(&self.clock).0;
        for (name, key) in self.lanes() {
            let lane = lane_of(&self.stream(&name), key);
            let stream = self.model.streams.get_mut(&name).expect("listed");
            let config = &stream.config;
            let model = stream.lanes.get_mut(&key).expect("listed");
            let earliest = lane.info().earliest.0;
            assert!(
                earliest >= model.earliest,
                "{name}: what is removed is back"
            );
            let is_boundary = earliest == model.earliest
                || earliest == model.next()
                || model.chunks.iter().any(|chunk| chunk.base == earliest);
            assert!(is_boundary, "{name}: part of a group is removed");
            if config.durability == Durability::Memory {
                model.earliest = earliest;
                continue;
            }
            let too_large = config
                .retention
                .is_some_and(|keep| before[&(name.clone(), key)] > keep.0);
            let is_old = |chunk: &ModelChunk| {
                let keep_ms = config.retention_ms.unwrap_or(u64::MAX);
                chunk.timestamp < now.saturating_sub_unsigned(keep_ms)
            };
            let gone = |chunk: &&ModelChunk| (model.earliest..earliest).contains(&chunk.base);
            let all_old = model.chunks.iter().filter(gone).all(is_old);
            assert!(all_old || too_large, "{name}: removed too much");
            model.earliest = earliest;
            if result.is_ok() && !self.faults.failing {
                model.removed = earliest;
            }
        }
    }

    /// Deletes what comes before an offset of a lane, and mostly of another one too.
    pub fn delete_some(&mut self, name: &str, key: (u32, u32)) {
        let stream = self.stream(name);
        let mut keys = vec![key];
        let all: Vec<(u32, u32)> = self.model.streams[name].lanes.keys().copied().collect();
        let other = all[self.rng.usize(..all.len())];
        if other != key {
            keys.push(other);
        }
        let to = |key: &(u32, u32)| {
            let durable = lane_of(&stream, *key).durable_offset().0;
            (*key, self.rng.u64(0..=durable + 1))
        };
        let to: Vec<((u32, u32), u64)> = keys.iter().map(to).collect();
        self.delete_before(name, &to);
    }

    /// Deletes what comes before offsets of lanes, and checks the answers.
    pub fn delete_before(&mut self, name: &str, to: &[((u32, u32), u64)]) {
        let stream = self.stream(name);
        let lane = |(key, to): &((u32, u32), u64)| (lane_of(&stream, *key), Offset(*to));
        let deletions: Vec<(StreamPartition, Offset)> = to.iter().map(lane).collect();
        let keys: Vec<(u32, u32)> = to.iter().map(|(key, _)| *key).collect();
        self.note(format!("delete of {name}: {to:?}"));
        let lanes = deletions.iter();
        let durable: Vec<Offset> = lanes.map(|(lane, _)| lane.durable_offset()).collect();
        let results = self.log().delete_before(&deletions);
        let deletions = deletions.iter().zip(durable);
        for ((key, ((lane, offset), durable)), result) in keys.iter().zip(deletions).zip(results) {
            let at = format!("{name} {key:?} before {offset}");
            let found = lane.info().earliest.0;
            let is_in_memory = self.model.streams[name].config.durability == Durability::Memory;
            if let Err(error) = &result {
                match error {
                    LogError::OffsetOutOfRange { .. } => assert!(*offset > durable, "{at}"),
                    error => self.excuse(error),
                }
            }
            let model = self.model.streams.get_mut(name).expect("the caller's");
            let model = model.lanes.get_mut(key).expect("the model has all lanes");
            assert!(found >= model.earliest, "{at}: what is removed is back");
            match result {
                Ok(earliest) => {
                    assert_eq!(earliest.0, found, "{at}");
                    let is_right = found == offset.0.max(model.earliest);
                    assert!(is_right || is_in_memory, "{at}: begins with {found}");
                    model.is_cut |= found > model.earliest;
                    model.removed = found;
                }
                Err(_) => {
                    // Whole groups may have gone to make room.
                    assert!(
                        found == model.earliest || found <= offset.0,
                        "{at}: {found}"
                    );
                    model.maybe_cut = model.maybe_cut.max(offset.0);
                }
            }
            model.earliest = found;
        }
    }

    fn lane_bytes(&self) -> BTreeMap<(String, (u32, u32)), u64> {
        let lanes = self.lanes().into_iter();
        lanes
            .map(|(name, key)| {
                let bytes = lane_of(&self.stream(&name), key).info().bytes;
                ((name, key), bytes)
            })
            .collect()
    }

    /// All lanes of streams that are there.
    pub fn lanes(&self) -> Vec<(String, (u32, u32))> {
        let streams = self.model.streams.iter();
        streams
            .filter(|(_, stream)| !stream.maybe_deleted)
            .flat_map(|(name, stream)| stream.lanes.keys().map(|key| (name.clone(), *key)))
            .collect()
    }

    // ---- Objects -------------------------------------------------------------------------------

    pub fn put_object(&mut self, name: &str, content: Vec<u8>) {
        self.note(format!("put {name}: {}", content.len()));
        let content = Arc::new(content);
        let known = self.model.objects.get(name).cloned();
        match self.log().put_object(name, &mut &content[..]) {
            Ok(info) => {
                assert_eq!(info.bytes, content.len() as u64);
                assert!(!matches!(known, Some(ModelObject::Stored(_))));
                let object = ModelObject::Stored(content);
                self.model.objects.insert(name.to_owned(), object);
            }
            Err(LogError::Exists { .. }) => assert!(known.is_some()),
            Err(error) => {
                self.excuse(&error);
                let object = match known {
                    Some(ModelObject::Stored(_)) => return,
                    Some(ModelObject::MaybeEmptied(mut contents)) => {
                        contents.push(content);
                        ModelObject::MaybeEmptied(contents)
                    }
                    Some(ModelObject::Maybe(mut contents)) => {
                        contents.push(content);
                        ModelObject::Maybe(contents)
                    }
                    None => ModelObject::Maybe(vec![content]),
                };
                self.model.objects.insert(name.to_owned(), object);
            }
        }
    }

    pub fn delete_object(&mut self, name: &str) {
        self.note(format!("delete {name}"));
        match self.log().delete_object(name) {
            Ok(()) => {
                assert!(self.model.objects.remove(name).is_some());
            }
            Err(LogError::UnknownObject { .. }) => {
                let known = self.model.objects.get(name);
                assert!(!matches!(known, Some(ModelObject::Stored(_))));
            }
            Err(error) => {
                self.excuse(&error);
                let contents = match self.model.objects.remove(name) {
                    Some(ModelObject::Stored(content)) => vec![content],
                    Some(ModelObject::Maybe(contents) | ModelObject::MaybeEmptied(contents)) => {
                        contents
                    }
                    None => panic!("{name} was never put"),
                };
                let object = match self.faults.full {
                    true => ModelObject::MaybeEmptied(contents),
                    false => ModelObject::Maybe(contents),
                };
                self.model.objects.insert(name.to_owned(), object);
            }
        }
    }

    /// Reads an object and a range of it.
    pub fn check_object(&mut self, name: &str) {
        let log = self.log().clone();
        let read = |range: Option<std::ops::Range<u64>>| -> Result<Vec<u8>, LogError> {
            let mut reader = log.get_object(name, range)?;
            let mut bytes = Vec::new();
            match reader.read_to_end(&mut bytes) {
                Ok(_) => Ok(bytes),
                Err(error) => match error.downcast::<LogError>() {
                    Ok(error) => Err(error),
                    Err(error) => panic!("{name}: {error}"),
                },
            }
        };
        let content = match read(None) {
            Ok(content) => content,
            Err(LogError::UnknownObject { .. }) => {
                let known = self.model.objects.get(name);
                assert!(
                    !matches!(known, Some(ModelObject::Stored(_))),
                    "{name} is lost"
                );
                return;
            }
            Err(LogError::OffsetOutOfRange { .. }) => {
                let known = self.model.objects.get(name);
                assert!(
                    matches!(known, Some(ModelObject::MaybeEmptied(_))),
                    "{name}"
                );
                return;
            }
            Err(error) => return self.excuse(&error),
        };
        match self.model.objects.get(name) {
            Some(ModelObject::Stored(stored)) => assert!(**stored == content, "{name}"),
            Some(ModelObject::Maybe(contents) | ModelObject::MaybeEmptied(contents)) => {
                assert!(contents.iter().any(|stored| **stored == content), "{name}");
            }
            None => panic!("{name} was never put"),
        }
        let end = self.rng.u64(0..=content.len() as u64);
        let start = self.rng.u64(0..=end);
        match read(Some(start..end)) {
            Ok(part) => assert!(part == content[start as usize..end as usize], "{name}"),
            Err(error) => self.excuse(&error),
        }
    }

    // ---- The application -----------------------------------------------------------------------

    pub fn hand_out(&mut self, name: &str, streamlet: u32, consumer: &str, groups_max: usize) {
        let application = self.log().shared_group(name, "app").expect("it exists");
        let cursors = application
            .next_groups(StreamletIndex(streamlet), consumer, groups_max)
            .expect("it exists");
        let model = self.model.streams.get_mut(name).expect("the caller's");
        for cursor in cursors {
            let given = (consumer.to_owned(), cursor);
            let key = (streamlet, cursor.group);
            let other = model.consumed.given.insert(key, given);
            assert!(other.is_none(), "group {} is with {other:?}", cursor.group);
        }
    }

    /// Lets a consumer read on in all of its groups, and commit.
    pub fn consume(&mut self, name: &str, consumer: &str) {
        let application = self.log().shared_group(name, "app").expect("it exists");
        let mine: Vec<((u32, GroupId), Cursor)> = self.model.streams[name]
            .consumed
            .given
            .iter()
            .filter(|(_, (holder, _))| holder == consumer)
            .map(|(key, (_, cursor))| (*key, *cursor))
            .collect();
        for (key, cursor) in mine {
            let bytes_max = 1 << self.rng.u32(6..20);
            let read = match self.log().read(&cursor, bytes_max) {
                Ok(read) => read,
                Err(LogError::CursorRemoved { .. } | LogError::BadCursor { .. }) => {
                    let model = &self.model.streams[name];
                    let removed = model.lanes.values().any(|lane| lane.earliest > 0)
                        || model.config.durability == Durability::Memory;
                    assert!(removed, "{name}: {cursor} is gone");
                    let _ = application.commit(consumer, &cursor);
                    let model = self.model.streams.get_mut(name).expect("the caller's");
                    model.consumed.given.remove(&key);
                    continue;
                }
                Err(error) => {
                    self.excuse(&error);
                    continue;
                }
            };
            let model = self.model.streams.get_mut(name).expect("the caller's");
            let mut next = cursor;
            let mut chunks = Vec::new();
            if let Some(read) = read {
                let lane_key = (key.0, read.lane.0);
                let lane = model
                    .lanes
                    .get_mut(&lane_key)
                    .expect("the model has all lanes");
                for chunk in read.chunks() {
                    let chunk = chunk.expect("checked when it came in");
                    let base = chunk.header().base_offset.0;
                    compare(lane, base, chunk.bytes(), name);
                    lane.acknowledged = lane.acknowledged.max(chunk.header().next_offset().0);
                    let id = (lane_key.0, lane_key.1, base);
                    assert!(
                        !model.consumed.done.contains(&id),
                        "{name}: {id:?} came twice"
                    );
                    chunks.push(id);
                }
                next = read.next;
            }
            let committed = application.commit(consumer, &next);
            self.notes.push((
                self.disk.operations(),
                format!("{consumer} commits {next} of {name}: {committed:?}, {chunks:?}"),
            ));
            let is_over = matches!(committed, Err(LogError::NotHandedOut { .. }));
            if let Err(error) = &committed
                && !is_over
            {
                self.excuse(error);
            }
            let model = self.model.streams.get_mut(name).expect("the caller's");
            if is_over {
                assert!(chunks.is_empty(), "{name}: {key:?} was done too early");
                model.consumed.given.remove(&key);
                continue;
            }
            match committed {
                Ok(()) => model.consumed.done.extend(chunks),
                Err(_) => model.consumed.maybe.extend(chunks),
            }
            model
                .consumed
                .given
                .insert(key, (consumer.to_owned(), next));
        }
    }

    pub fn release(&mut self, name: &str, consumer: &str) {
        let application = self.log().shared_group(name, "app").expect("it exists");
        application.release(consumer);
        let model = self.model.streams.get_mut(name).expect("the caller's");
        model
            .consumed
            .given
            .retain(|_, (holder, _)| holder != consumer);
    }

    // ---- Lives ---------------------------------------------------------------------------------

    /// Opens the log, and checks all that is in it. Fails only where the disk does.
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

    /// Settles what was open before the start, and forgets what was not durable.
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
            let found: BTreeSet<(u32, u32)> = info
                .partitions
                .iter()
                .map(|lane| (lane.streamlet.0, lane.lane.0))
                .collect();
            assert_eq!(found, stream.lanes.keys().copied().collect(), "{name}");
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
                // The start has synced what it found.
                model.acknowledged = acknowledged;
                assert!(
                    durable <= model.next(),
                    "{at}: nobody appended up to {durable}"
                );
                model.chunks.retain(|chunk| chunk.base < durable);
                assert_eq!(model.next(), durable, "{at}: half a chunk");
                // Retention that was cut off may have had effect.
                let earliest = lane.earliest.0;
                assert!(model.removed <= earliest, "{at}: what is removed is back");
                let maybe_cut = std::mem::take(&mut model.maybe_cut);
                if model.earliest < earliest && earliest <= maybe_cut {
                    model.is_cut = true;
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

    /// Compares all that is stored with the model.
    pub fn check_all(&mut self) {
        for (name, key) in self.lanes() {
            self.check_lane(&name, key);
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
        // What the old log does from here on it does to a disk that nobody looks at.
        self.log = None;
        self.faults = Faults::default();
        self.disk.set_capacity(u64::MAX);
    }

    /// Leaves little room on the disk, or none.
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

    /// Everything is whole and goes on, all is consumed once, and a clean end keeps it all.
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

    /// The application consumes all that is left.
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

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut notes = self.notes.iter().peekable();
            let until = |number| move |note: &&(u64, String)| note.0 < number;
            for operation in self.disk.trace() {
                while let Some((_, note)) = notes.next_if(until(operation.number)) {
                    eprintln!("{note}");
                }
                eprintln!("{operation}");
            }
            notes.for_each(|(_, note)| eprintln!("{note}"));
        }
    }
}

impl ModelStream {
    pub fn new(id: StreamId, uuid: u128, config: StreamConfig) -> ModelStream {
        let mut stream = ModelStream {
            id,
            uuid,
            config,
            lanes: BTreeMap::new(),
            maybe_shapes: Vec::new(),
            maybe_altered: Vec::new(),
            maybe_deleted: false,
            maybe_emptied: false,
            consumed: Consumed::default(),
        };
        stream.add_lanes();
        stream
    }

    fn add_lanes(&mut self) {
        for streamlet in 0..self.config.streamlets {
            for lane in 0..self.config.lanes {
                self.lanes.entry((streamlet, lane)).or_default();
            }
        }
    }
}

/// The lane in this place.
pub fn lane_of(stream: &Stream, (streamlet, lane): (u32, u32)) -> StreamPartition {
    let info = stream.info();
    let found = info
        .partitions
        .iter()
        .find(|info| (info.streamlet, info.lane) == (StreamletIndex(streamlet), LaneIndex(lane)));
    let partition = found.expect("the model has all lanes").partition;
    stream.partition(partition).expect("listed")
}

/// A stored chunk must be the one that was sent, but for the base offset.
fn compare(lane: &ModelLane, base: u64, stored: &[u8], at: &str) {
    let n = lane.chunks.partition_point(|chunk| chunk.base < base);
    let chunk = lane.chunks.get(n).filter(|chunk| chunk.base == base);
    let chunk = chunk.unwrap_or_else(|| panic!("{at}: nobody appended at {base}"));
    // The broker's: offset and leader epoch.
    assert_eq!(stored[..8], base.to_be_bytes(), "{at}");
    assert_eq!(stored[12..16], [0; 4], "{at}");
    assert!(
        stored[8..12] == chunk.bytes[8..12] && stored[16..] == chunk.bytes[16..],
        "{at}: other bytes at {base}"
    );
}
