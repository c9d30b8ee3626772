//! Damage to a data directory, as a loss of power leaves it.

use std::fs;
use std::path::Path;

/// Takes the last chunk of the only group of a `written` stream away, as a loss of power does to bytes that were not synced. The
/// node in `dir` has to be stopped, and the stream to have one partition.
///
/// # Panics
/// When `dir` does not hold one chunk file of the stream.
pub fn lose_power(dir: &Path, stream: u64) {
    fs::remove_file(dir.join("clean-stop")).unwrap();
    let folder = dir.join(format!("streams/{stream}"));
    let log = folder.join("0-0-0000000001-00000000000000000000-0001.log");
    // It has the end of the synced bytes.
    fs::remove_file(log.with_extension("index")).unwrap();
    let bytes = fs::read(&log).unwrap();
    let (mut at, mut last) = (4096, 4096);
    while at < bytes.len() {
        let behind = i32::from_be_bytes(bytes[at + 8..at + 12].try_into().unwrap());
        last = at;
        at += 12 + behind as usize;
    }
    fs::write(&log, &bytes[..last]).unwrap();
}
