//! Tests the simulated disk with a small write-ahead log: the correct log passes, and each missing sync is
//! found within a few hundred seeds.

use std::io;
use std::path::{Path, PathBuf};

use millstream_base::crc32c;
use millstream_base::disk::{Access, Disk, DiskFile};
use millstream_sim::{Rng, SimDisk};

/// A bug of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// A record is acknowledged before the file is synced.
    NoSync,
    /// The folder is never synced.
    NoSyncDir,
    /// The list of files gets its final name before its content is synced.
    RenameBeforeSync,
    /// Recovery accepts a record without checking its checksum.
    NoChecksum,
    /// The log retries a failed sync.
    SyncAgain,
    /// Recovery treats the bytes that it reads as durable, though after a failed sync the page cache may
    /// show bytes that were never written.
    NoRewrite,
}

const FOLDER: &str = "/log";
const RECORDS_PER_FILE: usize = 3;

/// A log of files with a few records each; `/log/count` holds the number of files.
struct ToyLog {
    disk: SimDisk,
    bug: Bug,
    file: Box<dyn DiskFile>,
    files: u64,
    end: u64,
    records: Vec<Vec<u8>>,
    records_in_file: usize,
}

fn path_of(file: u64) -> PathBuf {
    Path::new(FOLDER).join(file.to_string())
}

fn damaged() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

impl ToyLog {
    fn open(disk: &SimDisk, bug: Bug) -> io::Result<ToyLog> {
        disk.create_dir_all(Path::new(FOLDER))?;
        disk.sync_dir(Path::new("/"))?;
        let count_path = Path::new(FOLDER).join("count");
        let files = match disk.open(&count_path, Access::Read) {
            Ok(file) => {
                let mut count = [0; 8];
                if file.read_full_at(&mut count, 0)? != 8 {
                    return Err(damaged());
                }
                u64::from_le_bytes(count)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        let mut log = ToyLog {
            disk: disk.clone(),
            bug,
            file: disk.open(&path_of(0), Access::Create)?,
            files,
            end: 0,
            records: Vec::new(),
            records_in_file: 0,
        };
        if files == 0 {
            log.start_file()?;
        }
        for file in 0..log.files {
            log.read(file)?;
        }
        // The log never acknowledged the bytes behind the last whole record.
        log.file.set_len(log.end)?;
        if bug != Bug::NoRewrite {
            let mut whole = vec![0; usize::try_from(log.end).unwrap()];
            log.file.read_full_at(&mut whole, 0)?;
            log.file.write_at(&whole, 0)?;
        }
        log.file.sync()?;
        // The names may stem from a process that was killed before it synced them.
        log.sync_dir()?;
        Ok(log)
    }

    fn read(&mut self, file: u64) -> io::Result<()> {
        self.file = self.disk.open(&path_of(file), Access::Write)?;
        (self.end, self.records_in_file) = (0, 0);
        let mut header = [0; 8];
        while self.file.read_full_at(&mut header, self.end)? == 8 {
            let len = u32::from_le_bytes(header[..4].try_into().unwrap());
            let crc = u32::from_le_bytes(header[4..].try_into().unwrap());
            let mut record = vec![0; len.min(10_000) as usize];
            let is_whole = self.file.read_full_at(&mut record, self.end + 8)? == len as usize;
            let is_right = self.bug == Bug::NoChecksum || crc32c(&record) == crc;
            if !is_whole || !is_right || record.is_empty() {
                break;
            }
            self.end += 8 + u64::from(len);
            self.records.push(record);
            self.records_in_file += 1;
        }
        Ok(())
    }

    fn start_file(&mut self) -> io::Result<()> {
        self.file = self.disk.open(&path_of(self.files), Access::Create)?;
        (self.end, self.records_in_file) = (0, 0);
        self.sync_dir()?;
        self.files += 1;
        let (new, count) = (
            Path::new(FOLDER).join("new"),
            Path::new(FOLDER).join("count"),
        );
        let file = self.disk.open(&new, Access::Create)?;
        file.write_at(&self.files.to_le_bytes(), 0)?;
        if self.bug != Bug::RenameBeforeSync {
            file.sync()?;
        }
        self.disk.rename(&new, &count)?;
        self.sync_dir()
    }

    fn sync_dir(&self) -> io::Result<()> {
        match self.bug {
            Bug::NoSyncDir => Ok(()),
            _ => self.disk.sync_dir(Path::new(FOLDER)),
        }
    }

    fn append(&mut self, record: &[u8]) -> io::Result<()> {
        if self.records_in_file == RECORDS_PER_FILE {
            self.start_file()?;
        }
        let len = u32::try_from(record.len()).unwrap().to_le_bytes();
        let crc = crc32c(record).to_le_bytes();
        let parts = [&len, &crc, record].map(io::IoSlice::new);
        self.file.write_all_at(&mut parts.clone(), self.end)?;
        match self.bug {
            Bug::NoSync => {}
            Bug::SyncAgain => self.file.sync().or_else(|_| self.file.sync())?,
            _ => self.file.sync()?,
        }
        self.end += 8 + record.len() as u64;
        self.records_in_file += 1;
        self.records.push(record.to_vec());
        Ok(())
    }
}

/// Appends, crashes and recovers a few times. An error names the fault and the operations before it.
fn run(bug: Bug, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let mut disk = SimDisk::new(rng.u64(..));
    disk.start_trace();
    crash_and_recover(bug, &mut rng, &mut disk).map_err(|wrong| {
        let lines: Vec<String> = disk.trace().iter().map(ToString::to_string).collect();
        format!("{wrong}\n{}", lines.join("\n"))
    })
}

fn crash_and_recover(bug: Bug, rng: &mut Rng, disk: &mut SimDisk) -> Result<(), String> {
    let mut acknowledged: Vec<Vec<u8>> = Vec::new();
    for _ in 0..4 {
        disk.crash_at(rng.u64(1..60));
        if rng.bool() {
            disk.fail_next_sync(|path| path.ends_with("1"));
        }
        // The record under way at the crash, which may have survived or not.
        let mut attempted = None;
        let opened = ToyLog::open(disk, bug);
        if let Err(error) = &opened
            && error.kind() != io::ErrorKind::Other
            && error.raw_os_error() != Some(5)
        {
            return Err(format!("no recovery: {error}"));
        }
        if let Ok(mut log) = opened {
            check(&log.records, &acknowledged)?;
            acknowledged.clone_from(&log.records);
            loop {
                let record = vec![rng.u8(1..); rng.usize(1..2000)];
                attempted = Some(record.clone());
                match log.append(&record) {
                    Ok(()) => acknowledged.push(record),
                    Err(_) => break,
                }
            }
        }
        *disk = match rng.u8(..4) {
            0 => disk.kill(),
            _ => disk.crash(rng),
        };
        let log = ToyLog::open(disk, bug).map_err(|error| format!("no recovery: {error}"))?;
        let mut found = log.records.clone();
        if found.len() == acknowledged.len() + 1 && found.last() == attempted.as_ref() {
            found.pop();
        }
        if found.len() > acknowledged.len() {
            return Err("a record that was never written".into());
        }
        check(&found, &acknowledged)?;
        acknowledged = log.records;
    }
    Ok(())
}

fn check(found: &[Vec<u8>], acknowledged: &[Vec<u8>]) -> Result<(), String> {
    match found == acknowledged {
        true => Ok(()),
        false => Err(format!("{} of {}", found.len(), acknowledged.len())),
    }
}

#[test]
fn the_correct_toy_log_passes() {
    for seed in 0..3_000 {
        if let Err(wrong) = run(Bug::None, seed) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

#[test]
fn the_simulator_finds_every_bug_of_the_toy_log() {
    use Bug::*;
    for bug in [
        NoSync,
        NoSyncDir,
        RenameBeforeSync,
        NoChecksum,
        SyncAgain,
        NoRewrite,
    ] {
        let found = (0..300).find(|seed| run(bug, *seed).is_err());
        println!("{bug:?}: seed {found:?}");
        assert!(found.is_some(), "{bug:?} was not found");
    }
}
