//! The record of a clean stop: it names the lanes whose files no write can have torn, and the end of the list of files.
//!
//! After a clean stop all chunks are durable in their groups' files, and each file ends behind its last chunk. So bytes that do
//! not fit are damage, and a start truncates nothing. Life of the record:
//!
//! 1. A log that closes stores it when everything else is durable. It covers all lanes but those that failed in this run.
//! 2. The next start removes it durably before the first write of its run. From then on only those covered lanes stay
//!    covered that the start found damaged: they refuse writes until a repair, so nothing tears them.
//!
//! With each record the manifest was durable up to the record that the line `manifest` names, and a rewrite has a higher number.
//! So a manifest that ends before it was damaged, or is an older one; without that line its end would look torn. The first format
//! had no such line.
//!
//! A record that is missing or damaged covers no lane: the last run counts as crashed. So does a record of all lanes beside a
//! journal, which a clean stop removes first. The record is replaced by a rename, so a crash leaves the former one or the
//! new one.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};

use millstream_base::crc32c;
use millstream_base::disk::Access;

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::files::manifest::ManifestEnd;
use crate::ids::LaneId;

const TITLE: &str = "millstream clean stop, format 2";
const TITLE_1: &str = "millstream clean stop, format 1";
const MANIFEST: &str = "manifest ";
const ALL_BUT: &str = "all partitions but:";
const ONLY: &str = "only partitions:";
const CRC: &str = "crc ";

/// A larger file is no record: 100,000 lanes take some 2 MiB.
const BYTES_MAX: u64 = 64 << 20;

/// The lanes whose files no write can have torn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CleanStop {
    AllBut(BTreeSet<LaneId>),
    Only(BTreeSet<LaneId>),
}

impl CleanStop {
    /// Reads the record of the last run.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn read(dir: &DataDir, has_journal: bool) -> Result<CleanStop> {
        Ok(match read(dir)? {
            Some((CleanStop::AllBut(_), _)) if has_journal => CleanStop::none(),
            Some((found, _)) => found,
            None => CleanStop::none(),
        })
    }

    /// The record of a crash.
    fn none() -> CleanStop {
        CleanStop::Only(BTreeSet::new())
    }

    /// Whether no write can have torn the files of a lane.
    pub fn covers(&self, lane: LaneId) -> bool {
        match self {
            CleanStop::AllBut(others) => !others.contains(&lane),
            CleanStop::Only(lanes) => lanes.contains(&lane),
        }
    }

    /// Makes this the record, durably.
    ///
    /// # Errors
    /// When it cannot be written. The former record may stay.
    pub fn store(&self, dir: &DataDir) -> Result<()> {
        let end = dir.manifest().end()?;
        let (new, path) = (dir.new_clean_stop_path(), dir.clean_stop_path());
        let write = || {
            let file = dir.disk.open(&new, Access::Create)?;
            file.set_len(0)?;
            file.write_at(&encode(self, &end), 0)?;
            file.sync()?;
            drop(file);
            dir.disk.rename(&new, &path)
        };
        write().map_err(|error| LogError::io("write", &new, error))?;
        dir.sync_dir(&dir.root)
    }

    /// Removes the record of the last run durably, and leaves this one, which no write of the next run can tear. On a
    /// full disk it leaves none.
    ///
    /// # Errors
    /// When the record of the last run cannot be removed.
    pub fn replace(&self, dir: &DataDir) -> Result<()> {
        if *self != CleanStop::none() {
            match self.store(dir) {
                Err(error) if error.is_disk_full() => {}
                stored => return stored,
            }
        }
        let path = dir.clean_stop_path();
        match dir.disk.remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            removed => removed.map_err(|error| LogError::io("remove", &path, error))?,
        }
        // The removal by a former start may not be durable yet.
        dir.sync_dir(&dir.root)
    }
}

/// Returns where the manifest ended at least when the record was stored.
///
/// # Errors
/// When the file is there and cannot be read.
pub fn manifest_end(dir: &DataDir) -> Result<Option<ManifestEnd>> {
    Ok(read(dir)?.and_then(|(_, end)| end))
}

fn read(dir: &DataDir) -> Result<Option<(CleanStop, Option<ManifestEnd>)>> {
    let path = dir.clean_stop_path();
    let read = || -> io::Result<_> {
        let file = match dir.disk.open(&path, Access::Read) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let len = file.len()?;
        if len > BYTES_MAX {
            return Ok(None);
        }
        let mut bytes = vec![0; len as usize];
        let count = file.read_full_at(&mut bytes, 0)?;
        Ok(decode(&bytes[..count]))
    };
    read().map_err(|error| LogError::io("read", &path, error))
}

fn encode(record: &CleanStop, end: &ManifestEnd) -> Vec<u8> {
    let (scope, lanes) = match record {
        CleanStop::AllBut(lanes) => (ALL_BUT, lanes),
        CleanStop::Only(lanes) => (ONLY, lanes),
    };
    let ManifestEnd {
        number,
        records,
        crc,
    } = end;
    let mut text = format!("{TITLE}\n{MANIFEST}{number} {records} {crc:08x}\n{scope}\n");
    for lane in lanes {
        text.push_str(&lane.to_key(""));
        text.push('\n');
    }
    let crc = crc32c(text.as_bytes());
    text.push_str(&format!("{CRC}{crc:08x}\n"));
    text.into_bytes()
}

/// `None` for bytes that are no whole record.
fn decode(bytes: &[u8]) -> Option<(CleanStop, Option<ManifestEnd>)> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (_, last) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    let checked = &text[..text.len() - last.len() - 1];
    if last != format!("{CRC}{:08x}", crc32c(checked.as_bytes())) {
        return None;
    }
    let mut lines = checked.lines();
    let end = match lines.next()? {
        TITLE => Some(decode_end(lines.next()?)?),
        TITLE_1 => None,
        _ => return None,
    };
    let scope = lines.next()?;
    let lanes = lines.map(|line| LaneId::from_key("", line)).collect();
    let lanes: Option<BTreeSet<LaneId>> = lanes;
    let record = match scope {
        ALL_BUT => lanes.map(CleanStop::AllBut),
        ONLY => lanes.map(CleanStop::Only),
        _ => None,
    };
    Some((record?, end))
}

fn decode_end(line: &str) -> Option<ManifestEnd> {
    let mut words = line.strip_prefix(MANIFEST)?.split(' ');
    let end = ManifestEnd {
        number: words.next()?.parse().ok()?,
        records: words.next()?.parse().ok()?,
        crc: u32::from_str_radix(words.next()?, 16).ok()?,
    };
    words.next().is_none().then_some(end)
}

#[cfg(test)]
mod tests {
    use millstream_base::{LaneIndex, StreamId, StreamletIndex};

    use super::*;

    fn lanes() -> BTreeSet<LaneId> {
        let lane = |streamlet, lane| LaneId {
            stream: StreamId(17),
            streamlet: StreamletIndex(streamlet),
            lane: LaneIndex(lane),
        };
        BTreeSet::from([lane(0, 0), lane(2, 31)])
    }

    const END: ManifestEnd = ManifestEnd {
        number: 3,
        records: 512,
        crc: 0x0bad_cafe,
    };

    #[test]
    fn a_clean_stop_record_of_the_first_format_has_no_end_of_the_manifest() {
        let mut text = format!("{TITLE_1}\n{ONLY}\n17/2/31\n");
        let crc = crc32c(text.as_bytes());
        text.push_str(&format!("{CRC}{crc:08x}\n"));
        let mut lanes = lanes();
        lanes.pop_first();
        let expected = Some((CleanStop::Only(lanes), None));
        assert_eq!(decode(text.as_bytes()), expected);
    }

    #[test]
    fn a_clean_stop_record_round_trips_and_other_bytes_are_refused() {
        for record in [
            CleanStop::AllBut(BTreeSet::new()),
            CleanStop::AllBut(lanes()),
            CleanStop::Only(lanes()),
        ] {
            let bytes = encode(&record, &END);
            assert_eq!(decode(&bytes), Some((record, Some(END))));
            for len in 0..bytes.len() {
                assert_eq!(decode(&bytes[..len]), None);
            }
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode(&flipped), None, "bit {bit}");
            }
        }
        assert_eq!(decode(&[0; 512]), None);
    }

    #[test]
    fn the_clean_stop_record_is_the_text_in_formats_md() {
        let page = include_str!("../../../../docs/formats.md");
        let text = String::from_utf8(encode(&CleanStop::AllBut(lanes()), &END)).unwrap();
        assert!(page.contains(&text), "{text}");
    }
}
