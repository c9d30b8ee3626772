//! Reading the manifest, at a start.

use std::io::{self, ErrorKind};
use std::path::Path;

use millstream_base::disk::Access;
use millstream_base::{Disk, DiskFile, Position};

use crate::error::{LogError, Result};
use crate::files::manifest::current::{ManifestEnd, crc_of_last};
use crate::files::manifest::record::{HEAD_BYTES, Head, Place, RECORD_BYTES, Record};
use crate::files::manifest::state::Listed;

/// A larger file is no manifest: 100,000 lanes and 10 TB take some 50 MB.
const BYTES_MAX: u64 = 1 << 30;

/// A torn write is rarely longer: some 16,000 records.
const TORN_BYTES_MAX: usize = 1 << 20;

/// A manifest as a start finds it.
pub struct Found {
    pub file: Box<dyn DiskFile>,
    pub head: Head,
    pub listed: Listed,
    /// The number of records.
    pub count: u64,
    /// The checksum of the last one.
    pub last_crc: u32,
    /// The bytes of the records that may not be durable. They are the last ones.
    unsettled: Vec<u8>,
    /// The bytes of the file. Those behind the records are of a torn write.
    len: u64,
}

impl Found {
    /// Returns the end of the records in the file.
    pub fn end(&self) -> u64 {
        HEAD_BYTES + self.count * RECORD_BYTES as u64
    }

    /// Makes the records durable: bytes that were read back may never have reached the medium, where a sync failed before
    /// the last run ended.
    pub fn settle(&self) -> io::Result<()> {
        let torn = self.len.saturating_sub(self.end());
        let mut bytes = self.unsettled.clone();
        match usize::try_from(torn) {
            // Truncating the file would give up the room that is reserved behind it.
            Ok(torn) if torn <= TORN_BYTES_MAX => bytes.resize(bytes.len() + torn, 0),
            _ => self.file.set_len(self.end())?,
        }
        let from = self.end() - self.unsettled.len() as u64;
        self.file.write_at(&bytes, from)?;
        self.file.sync()
    }
}

/// Reads the manifest. `None` when there is none. It was durable up to `known`, if that is given.
///
/// # Errors
/// When the file cannot be read, or has lost records.
pub fn read(disk: &dyn Disk, path: &Path, known: Option<ManifestEnd>) -> Result<Option<Found>> {
    let file = match disk.open(path, Access::Write) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| LogError::io("open", path, error))?,
    };
    let read = |error| LogError::io("read", path, error);
    let len = file.len().map_err(read)?;
    let damage = |at, what: String| Err(LogError::corrupted(path, Position(at), what));
    if len > BYTES_MAX {
        return damage(BYTES_MAX, format!("{len} bytes are no list of files"));
    }
    let mut bytes = vec![0; len as usize];
    let count = file.read_full_at(&mut bytes, 0).map_err(read)?;
    bytes.truncate(count);
    let Some(head) = Head::decode(&bytes) else {
        return damage(0, "the head is damaged".to_owned());
    };
    let mut records = bytes.split_off(HEAD_BYTES as usize);
    let mut listed = Listed::default();
    let mut index = 0;
    let mut known_durable = 0;
    while let Some((record, durable)) = record_at(&records, &head, index) {
        let at = HEAD_BYTES + index * RECORD_BYTES as u64;
        if let Record::End { count } = record {
            if count != index {
                let what =
                    format!("the list has {index} records where it was written with {count}");
                return damage(at, what);
            }
            // All up to here was written and synced before the file got its name.
            known_durable = index + 1;
        }
        known_durable = known_durable.max(durable).min(index + 1);
        if let Err(what) = listed.apply(record) {
            return damage(at, what);
        }
        index += 1;
    }
    let at = HEAD_BYTES + index * RECORD_BYTES as u64;
    if known_durable == 0 {
        let what = format!(
            "a record is damaged or missing among those that the list began with, behind {index} whole ones"
        );
        return damage(at, what);
    }
    let behind = index + 1..(records.len() / RECORD_BYTES) as u64;
    let mut behind = behind.filter_map(|index| record_at(&records, &head, index));
    if behind.any(|(_, durable)| durable > index) {
        return damage(at, "a record is damaged that was durable".to_owned());
    }
    if let Some(known) = known
        && let Err(what) = check_known(&head, &records, index, &known)
    {
        return damage(at, what);
    }
    records.truncate(index as usize * RECORD_BYTES);
    let last_crc = crc_of_last(&records);
    Ok(Some(Found {
        file,
        head,
        listed,
        count: index,
        last_crc,
        unsettled: records.split_off(known_durable as usize * RECORD_BYTES),
        len,
    }))
}

/// Checks that a manifest with `count` records is the one that was durable up to `known`, or one that was written later.
fn check_known(head: &Head, records: &[u8], count: u64, known: &ManifestEnd) -> Result<(), String> {
    let ManifestEnd {
        number,
        records: least,
        crc,
    } = *known;
    if head.number != number {
        return match head.number > number {
            true => Ok(()),
            false => Err(format!(
                "this list has number {}, and the last run stopped cleanly with list {number}: it is an older one",
                head.number
            )),
        };
    }
    let end = least as usize * RECORD_BYTES;
    let is_there = least <= count && records.get(..end).map(crc_of_last) == Some(crc);
    match is_there {
        true => Ok(()),
        false => Err(format!(
            "the list ends behind {count} whole records, and had {least} when the last run stopped cleanly"
        )),
    }
}

fn record_at(records: &[u8], head: &Head, index: u64) -> Option<(Record, u64)> {
    let start = usize::try_from(index).ok()? * RECORD_BYTES;
    let bytes = records.get(start..)?.first_chunk()?;
    let secret = head.secret;
    Record::decode(bytes, Place { secret, index })
}
