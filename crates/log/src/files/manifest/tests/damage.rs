//! The reader distinguishes damaged manifests from manifests that a crash has torn.

use super::super::record::{HEAD_BYTES, RECORD_BYTES};
use super::*;

/// Returns a manifest of 5 records that it began with, and 4 that were synced one after another.
fn manifest_of_synced_records() -> (SimDisk, Vec<Record>) {
    let disk = SimDisk::new(1);
    let manifest = create(&disk);
    let all: Vec<Record> = (0..9).map(|id| Record::Group(group(0, id, 0))).collect();
    append_synced(&manifest, &all[..5]);
    manifest.rewrite(|_| true).unwrap();
    for record in &all[5..] {
        append_synced(&manifest, &[*record]);
    }
    (disk.kill(), all)
}

#[test]
fn any_flipped_bit_is_reported_as_damage_or_as_a_torn_last_record() {
    let (disk, all) = manifest_of_synced_records();
    let bytes = disk.read_file(PATH).unwrap().len() as u64;
    let last = bytes - RECORD_BYTES as u64;
    for byte in 0..bytes {
        disk.flip_bit(PATH, 8 * byte + byte % 8).unwrap();
        match read(&disk, Path::new(PATH), None) {
            Err(LogError::Corrupted { .. }) => assert!(byte < last, "byte {byte}"),
            Err(error) => panic!("{error}"),
            Ok(found) => {
                assert!(byte >= last, "byte {byte}");
                assert!(found.unwrap().listed == list_of(&all[..8]));
            }
        }
        disk.flip_bit(PATH, 8 * byte + byte % 8).unwrap();
    }
}

#[test]
fn a_manifest_truncated_into_its_initial_records_is_damaged() {
    let (disk, all) = manifest_of_synced_records();
    let bytes = disk.read_file(PATH).unwrap();
    let began_with = HEAD_BYTES as usize + 6 * RECORD_BYTES;
    for len in 0..bytes.len() {
        disk.write_file(PATH, &bytes[..len]).unwrap();
        match read(&disk, Path::new(PATH), None) {
            Err(LogError::Corrupted { .. }) => assert!(len < began_with, "{len} bytes"),
            Err(error) => panic!("{error}"),
            Ok(found) => {
                let whole = (len - began_with) / RECORD_BYTES;
                let expected = list_of(&all[..5 + whole]);
                assert!(found.unwrap().listed == expected, "{len} bytes");
            }
        }
    }
}
