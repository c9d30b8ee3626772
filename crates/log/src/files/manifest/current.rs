//! The manifest that is in use: its file, and the list that the file leaves.

use std::io;
use std::path::Path;
use std::sync::Arc;

use millstream_base::disk::Access;
use millstream_base::{Disk, DiskFile, Random};

use crate::error::{LogError, Result};
use crate::files::manifest::read::Found;
use crate::files::manifest::record::{HEAD_BYTES, Head, Place, RECORD_BYTES, Record, crc_in};
use crate::files::manifest::state::Listed;
use crate::random::draw;

pub const NAME: &str = "manifest";
pub const NEW_NAME: &str = "manifest.new";

/// Room is reserved for this much ahead, so that few appends need any.
const RESERVE_BYTES: u64 = 1 << 20;

/// The part of the reserved room that only records take with which files are removed: so a full disk can be made empty.
const REMOVAL_BYTES: u64 = 64 << 10;

/// A manifest that is smaller is not rewritten while it is in use …
const REWRITE_BYTES_MIN: u64 = 1 << 20;

/// … nor one that is less than this many times as large as it was after the last rewrite.
const REWRITE_GROWTH: u64 = 4;

/// The manifest that is in use.
pub struct Current {
    pub file: Arc<dyn DiskFile>,
    pub head: Head,
    pub listed: Listed,
    /// Records of the file.
    pub count: u64,
    /// The durable ones of these records.
    pub durable: u64,
    /// The checksum of the last one.
    pub last_crc: u32,
    /// Records of this run, in all of its files.
    pub appended: RecordCount,
    /// The durable ones of these records.
    pub synced: RecordCount,
    /// The length up to which room is reserved.
    pub reserved: u64,
    /// The file is rewritten when it is longer.
    pub rewrite_above: u64,
    /// The failure after which nothing is appended.
    pub failed: Option<LogError>,
}

/// A place up to which the manifest was durable at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManifestEnd {
    /// The number of the manifest.
    pub number: u64,
    /// Its records by then, at least one.
    pub records: u64,
    /// The checksum of the last one of them.
    pub crc: u32,
}

/// The records that a run has appended up to a moment: [`Manifest::sync_to`] makes them durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordCount(u64);

impl Current {
    /// Continues with the manifest that a start has found, and makes all records that it has read durable.
    pub fn open(disk: &dyn Disk, root: &Path, found: Found) -> Result<Current> {
        let path = root.join(NAME);
        found
            .settle()
            .map_err(|error| LogError::io("write", &path, error))?;
        // The last run may have ended before the file's name was durable.
        disk.sync_dir(root)
            .map_err(|error| LogError::io("sync folder", root, error))?;
        let end = found.end();
        let mut current = Current {
            file: Arc::from(found.file),
            head: found.head,
            listed: found.listed,
            count: found.count,
            durable: found.count,
            last_crc: found.last_crc,
            appended: RecordCount(0),
            synced: RecordCount(0),
            reserved: end,
            rewrite_above: rewrite_above(end),
            failed: None,
        };
        // On a full disk a part of this is there, which the last run has reserved.
        let mut bytes = RESERVE_BYTES;
        while bytes >= REMOVAL_BYTES {
            match current.reserve(&path, end + bytes) {
                Err(error) if error.is_disk_full() => bytes /= 2,
                reserved => {
                    reserved?;
                    break;
                }
            }
        }
        Ok(current)
    }

    /// Writes a manifest behind the former one, and gives it the name.
    pub fn write(
        disk: &dyn Disk,
        random: &dyn Random,
        root: &Path,
        former: Head,
        listed: Listed,
    ) -> Result<Current, Failed> {
        let secret = draw(random).map_err(Failed::Unchanged)?;
        let head = Head {
            number: former.number + 1,
            secret: u64::from_le_bytes(secret),
            ..former
        };
        let mut records = listed.records();
        let count = records.len() as u64;
        records.push(Record::End { count });
        let mut bytes = head.encode().to_vec();
        bytes.extend(encode(&records, &head, 0, 0));
        let (new, path) = (root.join(NEW_NAME), root.join(NAME));
        let reserved = bytes_needed(records.len());
        let write = || {
            let file = disk.open(&new, Access::Create)?;
            file.set_len(0)?;
            file.reserve(reserved)?;
            file.write_at(&bytes, 0)?;
            file.sync()?;
            Ok(file)
        };
        let file = write().map_err(|error| {
            // It may take the last room of a full disk.
            let _ = disk.remove_file(&new);
            Failed::Unchanged(LogError::io("write", &new, error))
        })?;
        disk.rename(&new, &path)
            .map_err(|error| Failed::Unknown(LogError::io("rename", &new, error)))?;
        disk.sync_dir(root)
            .map_err(|error| Failed::Unknown(LogError::io("sync folder", root, error)))?;
        let count = records.len() as u64;
        Ok(Current {
            file: Arc::from(file),
            head,
            listed,
            count,
            durable: count,
            last_crc: crc_of_last(&bytes),
            appended: RecordCount(0),
            synced: RecordCount(0),
            reserved,
            rewrite_above: rewrite_above(bytes.len() as u64),
            failed: None,
        })
    }

    pub fn append(&mut self, path: &Path, records: &[Record]) -> Result<RecordCount, Failed> {
        self.check().map_err(Failed::Unchanged)?;
        let end = self.end();
        if records.is_empty() {
            return Ok(self.appended);
        }
        let bytes = encode(records, &self.head, self.count, self.durable);
        let is_removal = records.iter().all(Record::is_of_removal);
        let spare = if is_removal { 0 } else { REMOVAL_BYTES };
        let new_end = end + bytes.len() as u64;
        if new_end + spare > self.reserved {
            match self.reserve(path, new_end + RESERVE_BYTES) {
                // The last run may have reserved space that this one does not know of.
                Err(error) if is_removal && error.is_disk_full() => {}
                reserved => reserved.map_err(Failed::Unchanged)?,
            }
        }
        self.file
            .write_at(&bytes, end)
            .map_err(|error| Failed::Unknown(LogError::io("write", path, error)))?;
        self.take(records);
        self.count += records.len() as u64;
        self.last_crc = crc_of_last(&bytes);
        Ok(self.appended)
    }

    /// Removes the bytes of a failed write durably: a crash must not bring their records back.
    pub fn undo(&mut self) -> io::Result<()> {
        let end = self.end();
        self.file.set_len(end)?;
        self.file.sync()?;
        (self.durable, self.synced, self.reserved) = (self.count, self.appended, end);
        Ok(())
    }

    /// Takes records over into the list.
    pub fn take(&mut self, records: &[Record]) {
        for record in records {
            let taken = self.listed.apply(*record);
            taken.expect("the log lists its files in their order");
        }
        self.appended.0 += records.len() as u64;
    }

    /// Reserves room up to a length of the file.
    fn reserve(&mut self, path: &Path, len: u64) -> Result<()> {
        let reserved = self.file.reserve(len);
        reserved.map_err(|error| LogError::io("reserve room for", path, error))?;
        self.reserved = len;
        Ok(())
    }

    pub fn end(&self) -> u64 {
        HEAD_BYTES + self.count * RECORD_BYTES as u64
    }

    pub fn check(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    /// Takes no more records. Returns the error of those that come.
    pub fn fail(&mut self, error: &LogError) -> LogError {
        self.failed.insert(error.to_lane_fault()).clone()
    }
}

/// Returns the disk space of a new manifest with `records` records.
pub fn bytes_needed(records: usize) -> u64 {
    HEAD_BYTES + (records * RECORD_BYTES) as u64 + RESERVE_BYTES
}

/// A failed change of the file.
pub enum Failed {
    /// It is unchanged.
    Unchanged(LogError),
    /// Its content is unknown, or it is unknown which file has the name.
    Unknown(LogError),
}

impl From<Failed> for LogError {
    fn from(failed: Failed) -> LogError {
        match failed {
            Failed::Unchanged(error) | Failed::Unknown(error) => error,
        }
    }
}

/// Returns the checksum of the last record of `bytes`, which end with a record.
pub fn crc_of_last(bytes: &[u8]) -> u32 {
    let last = bytes.last_chunk::<RECORD_BYTES>();
    last.map_or(0, crc_in)
}

/// Returns the bytes of records of which the first one has the index `from`.
fn encode(records: &[Record], head: &Head, from: u64, durable: u64) -> Vec<u8> {
    let secret = head.secret;
    let indexed = (from..).zip(records);
    let bytes = indexed.map(|(index, record)| record.encode(Place { secret, index }, durable));
    bytes.flatten().collect()
}

/// Returns the length above which a file is rewritten that has this length now.
pub fn rewrite_above(len: u64) -> u64 {
    (len * REWRITE_GROWTH).max(REWRITE_BYTES_MIN)
}
