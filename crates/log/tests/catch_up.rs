//! Reads of data that the pool no longer holds.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millstream_base::disk::{Access, DirEntry, SystemDisk};
use millstream_base::{ByteSize, Disk, DiskFile, Offset, SystemClock, SystemRandom, Timestamp};
use millstream_log::{
    Arena, AtLeast, Durability, Log, LogConfig, LogError, ReadStart, Stream, StreamConfig,
};
use millstream_record::{ChunkBuilder, Compression, Decompressor};
use parking_lot::{Condvar, Mutex};

/// Nothing here takes longer, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

const CATCH_UP_BYTES: u64 = 16 << 20;

/// The bytes of a chunk's value: with its headers a chunk is not a multiple of a page.
const VALUE_BYTES: usize = 20_000;

/// A read of a group's file.
#[derive(Debug, Clone)]
struct Request {
    path: PathBuf,
    offset: u64,
    bytes: u64,
    is_past_cache: bool,
}

/// What reads of groups' files there are, and which have to wait.
#[derive(Default)]
struct Watch {
    state: Mutex<Watched>,
    changed: Condvar,
}

#[derive(Default)]
struct Watched {
    requests: Vec<Request>,
    /// Threads that read past the cache.
    readers: Vec<std::thread::ThreadId>,
    in_flight: usize,
    in_flight_peak: usize,
    /// Reads past the cache wait until so many are in flight, once readers have come to 4 MiB.
    together: usize,
    /// Reads past the cache wait that begin here or behind.
    closed_from: Option<u64>,
}

impl Watch {
    fn begin(&self, request: Request) {
        let mut state = self.state.lock();
        let (is_past_cache, offset) = (request.is_past_cache, request.offset);
        state.requests.push(request);
        if !is_past_cache {
            return;
        }
        state.readers.push(std::thread::current().id());
        state.in_flight += 1;
        state.in_flight_peak = state.in_flight_peak.max(state.in_flight);
        self.changed.notify_all();
        loop {
            let is_alone = offset >= 4 << 20 && state.in_flight_peak < state.together;
            let is_closed = state.closed_from.is_some_and(|from| offset >= from);
            if !is_alone && !is_closed {
                return;
            }
            let waited = self.changed.wait_for(&mut state, PATIENCE);
            assert!(!waited.timed_out(), "{} in flight", state.in_flight);
        }
    }

    fn end(&self, is_past_cache: bool) {
        self.state.lock().in_flight -= usize::from(is_past_cache);
        self.changed.notify_all();
    }

    fn set(&self, change: impl FnOnce(&mut Watched)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    fn wait_until(&self, is_so: impl Fn(&Watched) -> bool) {
        let mut state = self.state.lock();
        while !is_so(&state) {
            let waited = self.changed.wait_for(&mut state, PATIENCE);
            assert!(!waited.timed_out(), "{:?}", state.requests.last());
        }
    }

    /// Whether this thread has read past the cache since this was asked for the last time.
    fn is_read_here(&self) -> bool {
        let here = std::thread::current().id();
        let mut state = self.state.lock();
        let count = state.readers.len();
        state.readers.retain(|reader| *reader != here);
        state.readers.len() < count
    }

    fn requests(&self) -> Vec<Request> {
        self.state.lock().requests.clone()
    }

    fn bytes(&self) -> u64 {
        self.requests().iter().map(|request| request.bytes).sum()
    }
}

/// The system's disk, with a watch over the groups' files.
struct WatchedDisk(Arc<Watch>);

impl Disk for WatchedDisk {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>> {
        let file = SystemDisk.open(path, access)?;
        if access != Access::Read || path.extension().is_none_or(|extension| extension != "log") {
            return Ok(file);
        }
        Ok(Box::new(WatchedFile {
            file,
            path: path.to_owned(),
            watch: Arc::clone(&self.0),
        }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        SystemDisk.create_dir_all(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        SystemDisk.list(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        SystemDisk.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        SystemDisk.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        SystemDisk.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        SystemDisk.sync_dir(path)
    }

    fn sync_tree(&self, path: &Path) -> io::Result<()> {
        SystemDisk.sync_tree(path)
    }
}

struct WatchedFile {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    watch: Arc<Watch>,
}

impl WatchedFile {
    fn request(&self, buffer: &[u8], offset: u64, is_past_cache: bool) -> Request {
        Request {
            path: self.path.clone(),
            offset,
            bytes: buffer.len() as u64,
            is_past_cache,
        }
    }
}

impl DiskFile for WatchedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.watch.begin(self.request(buffer, offset, false));
        self.file.read_at(buffer, offset)
    }

    fn read_past_cache_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.watch.begin(self.request(buffer, offset, true));
        let read = self.file.read_past_cache_at(buffer, offset);
        self.watch.end(true);
        read
    }

    fn write_all_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.file.write_all_at(parts, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.file.reserve(len)
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
}

fn config(dir: &Path) -> LogConfig {
    LogConfig {
        journal: ByteSize(4 << 20),
        journal_file: ByteSize(1 << 20),
        catch_up: ByteSize(CATCH_UP_BYTES),
        ..LogConfig::with_pool(dir, ByteSize(4 << 20))
    }
}

fn open(config: LogConfig, watch: &Arc<Watch>) -> Log {
    Log::open_on(
        config,
        Arc::new(WatchedDisk(Arc::clone(watch))),
        Arc::new(SystemClock::default()),
        Arc::new(SystemRandom),
    )
    .unwrap()
}

fn chunk(number: usize) -> Vec<u8> {
    let mut value = format!("{number} ").into_bytes();
    value.resize(VALUE_BYTES, b'.');
    let mut builder = ChunkBuilder::new(Compression::None);
    builder.push(Timestamp(0), None, Some(&value), &[]).unwrap();
    builder.finish(None).unwrap().to_vec()
}

fn append(stream: &Stream, numbers: std::ops::Range<usize>) {
    let lanes = stream.partition_count();
    let mut ends = HashMap::new();
    for number in numbers {
        let lane = stream.partition(number as u32 % lanes).unwrap();
        let end = lane.append(&chunk(number)).unwrap().next_offset;
        ends.insert(number as u32 % lanes, end);
    }
    for (lane, end) in ends {
        stream.partition(lane).unwrap().wait_durable(end).unwrap();
    }
}

/// A stream that was closed and opened again, so that memory holds nothing of it.
struct Old {
    watch: Arc<Watch>,
    log: Log,
    stream: Stream,
    /// Bytes of all chunks.
    bytes: u64,
    dir: tempfile::TempDir,
}

fn old(chunks: usize, lanes: u32, catch_up: u64, dir: tempfile::TempDir) -> Old {
    {
        let log = Log::open(config(dir.path())).unwrap();
        let stream = StreamConfig {
            lanes,
            durability: Durability::Async,
            group_segments: 1,
            ..StreamConfig::default()
        };
        append(&log.create_stream("old", stream).unwrap(), 0..chunks);
        log.close().unwrap();
    }
    let watch = Arc::new(Watch::default());
    let config = LogConfig {
        catch_up: ByteSize(catch_up),
        ..config(dir.path())
    };
    let log = open(config, &watch);
    watch.set(|watched| watched.requests.clear());
    Old {
        stream: log.stream("old").unwrap(),
        bytes: (chunks * chunk(0).len()) as u64,
        log,
        watch,
        dir,
    }
}

fn old_lane(chunks: usize) -> Old {
    old(chunks, 1, CATCH_UP_BYTES, tempfile::tempdir().unwrap())
}

/// The numbers of the chunks in a slice.
fn numbers(bytes: &[u8]) -> Vec<usize> {
    let mut decompressor = Decompressor::default();
    let mut numbers = Vec::new();
    for chunk in millstream_record::Chunks::new(bytes) {
        for record in chunk.unwrap().records(&mut decompressor).unwrap() {
            let value = record.unwrap().value.unwrap();
            let number = value.split(|byte| *byte == b' ').next().unwrap();
            numbers.push(std::str::from_utf8(number).unwrap().parse().unwrap());
        }
    }
    numbers
}

fn read_all(stream: &Stream, bytes_max: usize) -> Vec<usize> {
    let mut reader = stream.reader(ReadStart::Earliest);
    let mut all = Vec::new();
    while let Some(read) = reader.read(bytes_max).unwrap() {
        all.extend(numbers(&read.bytes));
    }
    all
}

#[test]
fn old_data_is_read_past_the_cache_with_several_requests_in_flight() {
    let old = old_lane(1_500);
    old.watch.set(|watched| watched.together = 3);
    assert!(read_all(&old.stream, 1 << 20).into_iter().eq(0..1_500));
    let requests = old.watch.requests();
    let past_cache = requests.iter().filter(|request| request.is_past_cache);
    let past_cache: u64 = past_cache.map(|request| request.bytes).sum();
    assert!(
        past_cache > old.bytes * 9 / 10,
        "{past_cache} of {}",
        old.bytes
    );
    // Each byte once, but for the pages at the windows' ends.
    let read = old.watch.bytes();
    assert!(read < old.bytes * 21 / 20, "{read} of {}", old.bytes);
    // Eight threads of the node, and the reader itself.
    let peak = old.watch.state.lock().in_flight_peak;
    assert!((3..=9).contains(&peak), "{peak}");
}

/// The first partitions that were read took all of the memory for what is read ahead, and one request was
/// in flight for the others.
#[test]
fn each_of_several_partitions_is_read_ahead() {
    let old = old(3_200, 8, 4 << 20, tempfile::tempdir().unwrap());
    let mut reader = old.stream.reader(ReadStart::Earliest);
    let mut reads = 0;
    let mut own = 0;
    while let Some(read) = reader.read(1 << 20).unwrap() {
        assert!(!read.bytes.is_empty());
        reads += 1;
        own += usize::from(old.watch.is_read_here());
    }
    // Each partition's first reads are the reader's own.
    let most = 8 * 3 + reads / 10;
    assert!(own < most, "{own} of {reads} reads waited for the disk");
}

#[test]
fn what_is_read_ahead_is_bounded_by_half_of_the_memory() {
    for catch_up in [CATCH_UP_BYTES, 4 << 20, 1 << 20] {
        let old = old(1_500, 1, catch_up, tempfile::tempdir().unwrap());
        let mut reader = old.stream.reader(ReadStart::Earliest);
        let mut given = 0;
        let mut seen = Vec::new();
        for _ in 0..12 {
            let read = reader.read(1 << 20).unwrap().unwrap();
            given += read.bytes.len() as u64;
            seen.extend(numbers(&read.bytes));
        }
        assert!(seen.iter().copied().eq(0..seen.len()));
        // All that was planned is read by then, or never.
        old.log.close().unwrap();
        let (read, bound) = (old.watch.bytes(), given * 21 / 20 + catch_up / 2);
        assert!(read <= bound, "{read} bytes for {given}, of {catch_up}");
    }
}

#[test]
fn reads_here_and_there_read_no_more_than_they_need() {
    let old = old_lane(600);
    let lane = old.stream.partition(0).unwrap();
    // None behind one that was read before.
    for number in (0..50).map(|n| n * 274 % 598) {
        let from = Offset(number as u64);
        let fetched = lane.fetch(from, Offset(from.0 + 1), 1, AtLeast::OneChunk);
        assert_eq!(numbers(&fetched.unwrap().pieces[0]), [number]);
    }
    let requests = old.watch.requests();
    assert!(!requests.iter().any(|request| request.is_past_cache));
    // A look for the chunk goes from one entry of the index, of 64 KiB each, to the next but one.
    let most = 50 * ((128 << 10) + chunk(0).len() as u64 + 1000);
    assert!(old.watch.bytes() < most, "{} of {most}", old.watch.bytes());
}

#[test]
fn readers_close_behind_one_another_read_the_disk_once() {
    let old = old_lane(1_000);
    let mut readers: Vec<_> = (0..3)
        .map(|_| old.stream.reader(ReadStart::Earliest))
        .collect();
    let mut seen = vec![Vec::new(); readers.len()];
    let mut is_over = false;
    while !is_over {
        for (reader, seen) in readers.iter_mut().zip(&mut seen) {
            match reader.read(1 << 20).unwrap() {
                Some(read) => seen.extend(numbers(&read.bytes)),
                None => is_over = true,
            }
        }
    }
    assert!(seen.iter().all(|seen| seen.iter().copied().eq(0..1_000)));
    // They begin at the same place, before any of them is known to go on.
    let read = old.watch.bytes();
    assert!(
        read < old.bytes * 23 / 20 + (2 << 20),
        "{read} of {}",
        old.bytes
    );
}

#[test]
fn small_reads_of_many_partitions_share_the_memory() {
    let old = old(1_600, 8, 4 << 20, tempfile::tempdir().unwrap());
    let mut all = read_all(&old.stream, 50_000);
    all.sort_unstable();
    assert!(all.into_iter().eq(0..1_600));
    let read = old.watch.bytes();
    assert!(read < old.bytes * 3 / 2, "{read} of {}", old.bytes);
}

#[test]
fn a_reader_is_told_when_its_stream_goes_during_a_read() {
    let old = old_lane(600);
    old.watch.set(|watched| watched.closed_from = Some(2 << 20));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reader = old.stream.reader(ReadStart::Earliest);
            loop {
                match reader.read(1 << 20) {
                    Ok(Some(read)) => assert!(!numbers(&read.bytes).is_empty()),
                    ended => return ended,
                }
            }
        });
        old.watch.wait_until(|watched| watched.in_flight >= 2);
        old.log.delete_stream("old").unwrap();
        old.watch.set(|watched| watched.closed_from = None);
        let ended = reader.join().unwrap();
        assert!(
            matches!(ended, Err(LogError::UnknownStream { .. })),
            "{ended:?}"
        );
    });
    old.log.close().unwrap();
}

#[test]
fn a_log_is_closed_while_requests_of_a_reader_that_went_are_in_flight() {
    let old = old_lane(600);
    old.watch.set(|watched| watched.closed_from = Some(3 << 20));
    let mut reader = old.stream.reader(ReadStart::Earliest);
    // Then two windows are read ahead of it, of which the second waits.
    for _ in 0..3 {
        assert!(reader.read(1 << 20).unwrap().is_some());
    }
    drop(reader);
    let in_flight = |watched: &Watched| {
        let mut requests = watched.requests.iter();
        watched.in_flight == 1 && requests.any(|request| request.offset >= 3 << 20)
    };
    old.watch.wait_until(in_flight);
    let closed = std::thread::spawn(|| old.log.close());
    old.watch.set(|watched| watched.closed_from = None);
    closed.join().unwrap().unwrap();
    assert_eq!(old.watch.state.lock().in_flight, 0);
    let log = Log::open(config(old.dir.path())).unwrap();
    assert!(
        read_all(&log.stream("old").unwrap(), 1 << 20)
            .into_iter()
            .eq(0..600)
    );
}

#[test]
fn damage_is_found_by_the_reader_that_comes_to_it() {
    let old = old_lane(600);
    let path = {
        let lane = old.stream.partition(0).unwrap();
        lane.fetch(Offset(0), Offset(1), 1, AtLeast::OneChunk)
            .unwrap();
        old.watch.requests()[0].path.clone()
    };
    // In the third window of the first group.
    let damaged = 130;
    let at = damaged * chunk(0).len() + 500;
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let mut reader = old.stream.reader(ReadStart::Earliest);
    let mut seen = Vec::new();
    let error = loop {
        match reader.read(1 << 20) {
            Ok(read) => seen.extend(numbers(&read.unwrap().bytes)),
            Err(error) => break error,
        }
    };
    assert!(seen.into_iter().eq(0..damaged));
    let expected = (damaged * chunk(0).len()) as u64;
    assert!(
        matches!(error, LogError::Corrupted { position, .. } if position == expected),
        "{error}"
    );
    // It stays so, and nothing waits for it.
    assert!(reader.read(1 << 20).is_err());
    assert_eq!(old.log.find_damage().len(), 1);
}

#[test]
fn damage_is_found_that_came_after_the_data_was_read() {
    let old = old_lane(400);
    assert_eq!(read_all(&old.stream, 1 << 20).len(), 400);
    let path = old.watch.requests().last().unwrap().path.clone();
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(old.log.find_damage().len(), 1);
}

#[test]
fn a_reader_goes_from_the_disk_to_memory_while_more_is_appended() {
    let old = old_lane(600);
    let mut reader = old.stream.reader(ReadStart::Earliest);
    let mut arenas = Vec::new();
    let mut seen = Vec::new();
    let mut appended = 600;
    while let Some(read) = reader.read(1 << 20).unwrap() {
        arenas.push(read.bytes.arena());
        seen.extend(numbers(&read.bytes));
        if appended < 1_000 {
            append(&old.stream, appended..appended + 40);
            appended += 40;
        }
    }
    assert!(seen.into_iter().eq(0..1_000));
    assert_eq!(arenas.first(), Some(&Arena::Windows));
    assert_eq!(arenas.last(), Some(&Arena::Segments));
    // The newest part, which memory has, was not read from the disk.
    let read = old.watch.bytes();
    let all = 1_000 * chunk(0).len() as u64;
    assert!(read < all, "{read} of {all}");
}

/// The file system in memory that most machines have: it has no disk to go to.
#[test]
fn a_file_system_in_memory_is_read_too() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return;
    };
    let old = old(600, 1, CATCH_UP_BYTES, dir);
    assert!(read_all(&old.stream, 1 << 20).into_iter().eq(0..600));
}

/// Windows were kept while a subscriber waited for memory: when those who had read them let go of them
/// nothing came free.
#[test]
fn memory_comes_free_when_the_last_reader_lets_go_of_it() {
    let old = old(600, 1, 4 << 20, tempfile::tempdir().unwrap());
    let mut reader = old.stream.reader(ReadStart::Earliest);
    // The first read is none of a window.
    reader.read(1 << 20).unwrap();
    let mut held = Vec::new();
    let error = loop {
        match reader.read(1 << 20) {
            Ok(read) => held.push(read.unwrap()),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LogError::ReadBudget), "{error}");
    let listener = old.log.pool().freed().listen();
    held.clear();
    assert!(event_listener::Listener::wait_timeout(listener, PATIENCE).is_some());
    assert!(reader.read(1 << 20).unwrap().is_some());
}
