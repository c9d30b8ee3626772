//! Checks that foreign and damaged files are refused, with an error that names the reason.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::{ANNOUNCED, IDENTITY, pair};
use millstream_share::{Announced, Mapping, Publisher, SharedFile, Subscription};

#[track_caller]
fn refused(path: &Path, reason: &str) {
    let error = Subscription::open(path, ANNOUNCED).unwrap_err().to_string();
    assert!(error.contains(reason), "{error}");
    assert!(error.contains(&path.display().to_string()), "{error}");
}

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

#[test]
fn a_missing_file_is_refused() {
    refused(Path::new("/proc/self/fd/1000000"), "opening it failed");
}

#[test]
fn a_file_that_could_shrink_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plain");
    File::create(&path).unwrap().set_len(4096).unwrap();
    refused(&path, "is not a memory file sealed against shrinking");
    let error = Mapping::read_only(&path, 4096).unwrap_err().to_string();
    assert!(error.contains("sealed"), "{error}");
}

#[test]
fn a_pipe_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
    refused(&path, "is not a memory file");
}

#[test]
fn a_foreign_file_is_refused() {
    let file = SharedFile::create("other", 4096).unwrap();
    refused(&file.path(), "does not begin with MILLRING");
    let short = SharedFile::create("other", 8).unwrap();
    overwrite(&short.path(), 0, b"MILLRING");
    refused(&short.path(), "does not begin with MILLRING");
}

#[test]
fn another_version_is_refused() {
    let (publisher, ..) = pair(4);
    overwrite(&publisher.path(), 8, &2u32.to_le_bytes());
    refused(
        &publisher.path(),
        "version 2 of the layout, but this program knows 1",
    );
}

#[test]
fn another_subscription_is_refused() {
    let publisher = Publisher::create(1, 4, IDENTITY + 1).unwrap();
    refused(&publisher.path(), "is of subscription");
}

#[test]
fn another_number_of_sources_is_refused() {
    let publisher = Publisher::create(2, 4, IDENTITY).unwrap();
    refused(&publisher.path(), "has 2 sources, not 1");
}

#[test]
fn an_impossible_header_is_refused() {
    for (at, value) in [(12, 0), (12, u32::MAX), (16, 0), (16, 3), (16, u32::MAX)] {
        let (publisher, ..) = pair(4);
        overwrite(&publisher.path(), at, &u32::to_le_bytes(value));
        refused(&publisher.path(), "is damaged");
    }
}

#[test]
fn a_truncated_file_is_refused() {
    let whole = SharedFile::create("whole", 384 + 256 + 128 * 4).unwrap();
    let short = SharedFile::create("short", 384 + 256 + 128 * 3).unwrap();
    for file in [&whole, &short] {
        let path = file.path();
        overwrite(&path, 0, b"MILLRING");
        overwrite(&path, 8, &1u32.to_le_bytes());
        overwrite(&path, 12, &1u32.to_le_bytes());
        overwrite(&path, 16, &4u32.to_le_bytes());
        overwrite(&path, 24, &IDENTITY.to_le_bytes());
    }
    Subscription::open(&whole.path(), ANNOUNCED).unwrap();
    refused(&short.path(), "has 1024 bytes, not 1152");
}

#[test]
fn no_file_is_created_with_counts_out_of_bounds() {
    let error = Publisher::create(1, 3, IDENTITY).unwrap_err().to_string();
    assert!(error.contains("a power of two"), "{error}");
}

#[test]
fn a_file_can_neither_shrink_nor_grow() {
    let shared = SharedFile::create("sealed", 4096).unwrap();
    let file = OpenOptions::new().write(true).open(shared.path()).unwrap();
    assert!(file.set_len(0).is_err());
    assert!(file.set_len(8192).is_err());
}

#[test]
fn a_file_of_another_size_than_announced_is_not_mapped() {
    let file = SharedFile::create("pool", 8192).unwrap();
    let error = Mapping::read_only(&file.path(), 4096).unwrap_err();
    let expected = format!("{} has 8192 bytes, not 4096", file.path().display());
    assert_eq!(error.to_string(), expected);
}

#[test]
fn slices_of_a_mapping_show_writes_and_stay_within_the_file() {
    let file = SharedFile::create("pool", 8192).unwrap();
    let mapping = Mapping::read_only(&file.path(), 8192).unwrap();
    let slice = mapping.slice(4000, 200).unwrap();
    overwrite(&file.path(), 4100, b"chunk");
    assert_eq!(&slice[100..105], b"chunk");
    assert_eq!(mapping.slice(8192, 0).unwrap().len(), 0);
    for (position, bytes) in [(8192, 1), (0, 8193), (u64::MAX, 1), (1, u64::MAX)] {
        assert!(mapping.slice(position, bytes).is_none());
    }
    // The bytes stay mapped while a slice exists.
    drop((file, mapping));
    assert_eq!(&slice[100..105], b"chunk");
}

#[test]
fn a_file_with_other_counts_than_announced_is_refused() {
    let (publisher, ..) = pair(4);
    let none = Announced {
        places: &[],
        ..ANNOUNCED
    };
    assert!(Subscription::open(&publisher.path(), none).is_err());
}
