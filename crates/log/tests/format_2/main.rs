//! Data directories of format 2 open with all that they hold.
//!
//! `data/format-2` has two directories that the program of commit e39737d made: `clean` was closed, and `killed` is a copy of
//! the files while the log was open. The text beside each has the content that that program read from it. The directories
//! never change. `make` made them; only that program can make them again.

mod description;
mod make;

use std::path::{Path, PathBuf};

use millstream_base::{ByteSize, Timestamp};
use millstream_log::{Background, Log, LogConfig};
use millstream_record::{ChunkBuilder, Compression};

use description::{describe, resend_last_chunks};

fn data(name: &str) -> PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/format-2");
    data.join(name)
}

fn config(dir: &Path) -> LogConfig {
    LogConfig {
        journal: ByteSize(512 << 10),
        journal_file: ByteSize(256 << 10),
        background: Background::Manual,
        ..LogConfig::with_pool(dir, ByteSize(16 << 20))
    }
}

/// Copies a folder as it is now.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// Returns a copy of a directory of the test data.
fn copy_of(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy(&data(name), dir.path());
    // The journal folder of `clean` is empty, and git keeps no empty folders.
    std::fs::create_dir_all(dir.path().join("journal")).unwrap();
    dir
}

/// Compares two descriptions line by line, so that a failure shows the line.
fn assert_same(found: &str, expected: &str) {
    for (number, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "line {}", number + 1);
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}

fn opens_with_all_that_it_holds(name: &str) {
    let expected = std::fs::read_to_string(data(&format!("{name}.txt"))).unwrap();
    let dir = copy_of(name);
    let log = Log::open(config(dir.path())).unwrap();
    assert_same(&describe(&log), &expected);
    assert!(resend_last_chunks(&log) >= 4);
    log.close().unwrap();

    // The second start reads the files that the first one has written.
    let log = Log::open(config(dir.path())).unwrap();
    assert_same(&describe(&log), &expected);

    let mut builder = ChunkBuilder::new(Compression::None);
    builder.push(Timestamp(1), None, Some(b"new"), &[]).unwrap();
    let chunk = builder.finish(None).unwrap().to_vec();
    let mut ends = Vec::new();
    for name in log.stream_names() {
        let stream = log.stream(&name).unwrap();
        for partition in 0..stream.partition_count() {
            let appended = stream.partition(partition).unwrap().append(&chunk).unwrap();
            ends.push((name.clone(), partition, appended.next_offset));
        }
    }
    log.close().unwrap();

    let log = Log::open(config(dir.path())).unwrap();
    for (name, partition, end) in ends {
        if name != "memory" {
            let partition = log.stream(&name).unwrap().partition(partition).unwrap();
            assert_eq!(partition.durable_offset(), end, "{name}");
        }
    }
}

#[test]
fn a_closed_directory_of_format_2_opens_with_all_of_its_data() {
    opens_with_all_that_it_holds("clean");
}

#[test]
fn a_directory_of_format_2_of_a_killed_program_opens_with_all_of_its_data() {
    let journal = std::fs::read_dir(data("killed/journal")).unwrap();
    assert_eq!(journal.count(), 2);
    opens_with_all_that_it_holds("killed");
}
