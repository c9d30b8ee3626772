//! A simulated machine with a log, whose disk counts the bytes that are read.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millstream_base::disk::{Access, DirEntry};
use millstream_base::{ByteSize, Disk, DiskFile, Timestamp};
use millstream_log::{KeyRange, Log, LogConfig, LogError, StreamPartition};
use millstream_sim::{SimClock, SimDisk, SimRandom};

use super::{append, config, get, get_many, scan, sync};

pub struct Machine {
    pub disk: SimDisk,
    pub clock: SimClock,
    /// The bytes that were read from the files of groups.
    pub read: Arc<AtomicU64>,
    log: Option<Log>,
    lives: u64,
}

impl Machine {
    /// A machine with an empty log.
    pub fn new() -> Machine {
        let mut machine = Machine {
            disk: SimDisk::new(1),
            clock: SimClock::new(Timestamp(0)),
            read: Arc::default(),
            log: None,
            lives: 0,
        };
        machine.open().unwrap();
        machine
    }

    fn open(&mut self) -> Result<(), LogError> {
        self.lives += 1;
        let disk = CountedDisk {
            disk: self.disk.clone(),
            read: Arc::clone(&self.read),
        };
        let mut config: LogConfig = config(Path::new("/data"));
        // In every other life, all look-ups go through the index.
        if self.lives.is_multiple_of(2) {
            config.hot_keys = ByteSize(0);
        }
        let (clock, random) = (self.clock.clone(), SimRandom::new(self.lives));
        let log = Log::open_on(config, Arc::new(disk), Arc::new(clock), Arc::new(random))?;
        self.log = Some(log);
        Ok(())
    }

    pub fn log(&self) -> &Log {
        self.log.as_ref().unwrap()
    }

    pub fn partition(&self) -> StreamPartition {
        self.log().stream("s").unwrap().partition(0).unwrap()
    }

    /// Stops the log, lets `change` change its files, and starts it again.
    pub fn restart(&mut self, change: impl FnOnce(&SimDisk)) {
        self.close().unwrap();
        change(&self.disk);
        self.open().unwrap();
    }

    pub fn is_open(&self) -> bool {
        self.log.is_some()
    }

    pub fn close(&mut self) -> Result<(), LogError> {
        self.log.take().unwrap().close()
    }

    /// Gives up the log, and starts one on another disk.
    pub fn start_from(&mut self, disk: SimDisk) {
        self.try_start_from(disk).unwrap();
    }

    pub fn try_start_from(&mut self, disk: SimDisk) -> Result<(), LogError> {
        // It may have crashed.
        drop(self.log.take());
        self.disk = disk;
        self.open()
    }

    /// Appends a record for each of the numbers, in chunks of 20, and makes the key files of closed groups.
    pub fn put(&self, numbers: std::ops::Range<u64>) {
        let partition = self.partition();
        let numbers: Vec<u64> = numbers.collect();
        for numbers in numbers.chunks(20) {
            let records: Vec<(Vec<u8>, Vec<u8>)> = numbers
                .iter()
                .map(|n| (key(*n), value(*n).to_vec()))
                .collect();
            let borrowed = records
                .iter()
                .map(|(key, value)| (Some(&key[..]), Some(&value[..])));
            append(&partition, &borrowed.collect::<Vec<_>>());
            sync(self.log());
        }
        self.log().persist();
        sync(self.log());
    }

    /// The paths of files with this ending, in the order of the groups.
    pub fn files(&self, ending: &str) -> Vec<PathBuf> {
        files(&self.disk, ending)
    }

    /// The length of these files together.
    pub fn bytes(&self, ending: &str) -> u64 {
        let length = |path: PathBuf| self.disk.read_file(path).unwrap().len() as u64;
        self.files(ending).into_iter().map(length).sum()
    }

    /// Looks up all records that [`put`](Machine::put) has appended, for these numbers.
    pub fn check(&self, numbers: std::ops::Range<u64>) {
        let partition = self.partition();
        for n in numbers.clone() {
            let found = get(&partition, &key(n));
            assert_eq!(found, Some((n, value(n).to_vec())), "{n}");
        }
        assert_eq!(get(&partition, &key(numbers.end)), None);
        let keys: Vec<Vec<u8>> = numbers.clone().rev().map(key).collect();
        let versions = get_many(&partition, &keys).unwrap();
        let found = versions.into_iter().zip(numbers.clone().rev());
        for (version, n) in found {
            assert_eq!(version, Some((n, value(n).to_vec())), "{n}");
        }
        let found = scan(&partition, KeyRange::all(), 1_000, 100_000);
        let mut expected: Vec<_> = numbers.map(|n| (key(n), n, value(n).to_vec())).collect();
        expected.sort_unstable();
        assert!(found == expected, "{} keys", found.len());
    }
}

/// The key of the record with this offset: not in the order of the offsets.
pub fn key(n: u64) -> Vec<u8> {
    format!("{:08x}/{n}", (n as u32).wrapping_mul(0x9e37_79b9)).into_bytes()
}

fn value(n: u64) -> [u8; 200] {
    [n as u8; 200]
}

/// The paths of files with this ending, in the order of the groups. The stream of the tests has the largest id.
pub fn files(disk: &SimDisk, ending: &str) -> Vec<PathBuf> {
    let files = disk.files().into_iter().map(|(path, _)| path);
    let mut files: Vec<PathBuf> = files
        .filter(|path| path.extension().is_some_and(|found| found == ending))
        .collect();
    let last = files
        .last()
        .and_then(|path| path.parent())
        .map(Path::to_owned);
    files.retain(|path| path.parent() == last.as_deref());
    files
}

struct CountedDisk {
    disk: SimDisk,
    read: Arc<AtomicU64>,
}

impl Disk for CountedDisk {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>> {
        let file = self.disk.open(path, access)?;
        Ok(
            match path.extension().is_some_and(|ending| ending == "log") {
                true => Box::new(CountedFile {
                    file,
                    read: Arc::clone(&self.read),
                }),
                false => file,
            },
        )
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.disk.create_dir_all(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        self.disk.list(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.sync_dir(path)
    }

    fn sync_tree(&self, path: &Path) -> io::Result<()> {
        self.disk.sync_tree(path)
    }
}

struct CountedFile {
    file: Box<dyn DiskFile>,
    read: Arc<AtomicU64>,
}

impl DiskFile for CountedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let count = self.file.read_at(buffer, offset)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
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
