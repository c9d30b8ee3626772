//! Files by byte ranges.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use millstream_base::SystemDisk;
use millstream_flow::sources::{LineBlock, LineError, LineFiles, LineLimits};
use millstream_flow::{Flow, Output, Source, SourceStatus};
use proptest::prelude::*;

use crate::support::{Collect, settings};

/// Writes the files and reads their lines with a flow, as (file, position, line) in order.
fn read(
    contents: &[Vec<u8>],
    limits: LineLimits,
    instances: usize,
) -> Result<Vec<(usize, u64, Vec<u8>)>, String> {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..contents.len())
        .map(|number| folder.path().join(format!("file {number}")))
        .collect();
    for (path, content) in paths.iter().zip(contents) {
        fs::write(path, content).unwrap();
    }
    let files = LineFiles::open(&SystemDisk, paths, limits).unwrap();
    let (sink, blocks) = Collect::new();
    let flow = Flow::with_settings("lines", settings(2, 4));
    flow.sources("read", files.split(instances))
        .sink("collect", sink);
    flow.run()
        .unwrap()
        .join()
        .map_err(|error| error.to_string())?;
    let blocks: Arc<Mutex<Vec<LineBlock>>> = blocks;
    let mut lines = Vec::new();
    for block in blocks.lock().unwrap().iter() {
        let mut position = block.position;
        for line in block.lines() {
            lines.push((block.file, position, line.to_vec()));
            position += line.len() as u64 + 1;
        }
    }
    if instances > 1 {
        lines.sort_unstable();
    }
    Ok(lines)
}

/// The same by a plain split.
fn split(contents: &[Vec<u8>]) -> Vec<(usize, u64, Vec<u8>)> {
    let mut lines = Vec::new();
    for (file, content) in contents.iter().enumerate() {
        let mut position = 0;
        for line in content.split_inclusive(|byte| *byte == b'\n') {
            let text = line.strip_suffix(b"\n").unwrap_or(line);
            lines.push((file, position, text.to_vec()));
            position += line.len() as u64;
        }
    }
    lines
}

/// Bytes of which many are line ends and some are no UTF-8.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![3 => Just(b'\n'), 1 => Just(b'\r'), 6 => Just(b'x'), 1 => any::<u8>()];
    prop::collection::vec(byte, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn block_sizes_do_not_change_the_lines(
        contents in prop::collection::vec(content(), 0..4),
        block_bytes in 1u64..70,
        instances in 1usize..5,
    ) {
        let limits = LineLimits { block_bytes, line_bytes_max: 1000 };
        prop_assert_eq!(read(&contents, limits, instances).unwrap(), split(&contents));
    }

    /// Lines far longer than the bytes that are read behind a range at first.
    #[test]
    fn long_lines_are_read_whole(
        lengths in prop::collection::vec(0usize..20_000, 1..8),
        block_bytes in 1u64..9000,
        ends_with_newline in any::<bool>(),
    ) {
        let mut content = Vec::new();
        for length in lengths {
            content.extend(std::iter::repeat_n(b'x', length));
            content.push(b'\n');
        }
        if !ends_with_newline {
            content.pop();
        }
        let limits = LineLimits { block_bytes, line_bytes_max: 20_000 };
        let contents = [content];
        prop_assert_eq!(read(&contents, limits, 2).unwrap(), split(&contents));
    }
}

#[test]
fn the_error_names_a_line_that_is_too_long() {
    let limits = LineLimits {
        block_bytes: 16,
        line_bytes_max: 5000,
    };
    for (length, end) in [(5001, "\n"), (5001, ""), (100_000, "\nz\n")] {
        let content = format!("a\nbc\n{}{end}", "x".repeat(length));
        let error = read(&[b"y\n".to_vec(), content.into_bytes()], limits, 1).unwrap_err();
        assert!(
            error.contains("file 1: the line at byte 5 is longer than 4.9 KiB"),
            "{error}"
        );
    }
    let content = format!("a\n{}", "x".repeat(5000)).into_bytes();
    assert_eq!(read(&[content], limits, 1).unwrap().len(), 2);
}

#[test]
fn a_file_that_shrinks_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    fs::write(&path, "some\nlines\n".repeat(10_000)).unwrap();
    let mut files = LineFiles::open(&SystemDisk, [path.clone()], LineLimits::default()).unwrap();
    fs::write(&path, "some\n").unwrap();
    let mut out = Output::default();
    let error = files.poll(&mut out, 1, Waker::noop()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("had 110000 bytes and ends at 5 now"),
        "{error}"
    );
}

#[test]
fn the_error_names_files_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let error = LineFiles::open(&SystemDisk, [missing], LineLimits::default())
        .err()
        .unwrap();
    assert!(
        matches!(&error, LineError::Io { path, .. } if path.ends_with("missing")),
        "{error}"
    );

    let folders = [folder.path().to_owned()];
    let mut files = LineFiles::open(&SystemDisk, folders, LineLimits::default()).unwrap();
    let error = files
        .poll(&mut Output::default(), 1, Waker::noop())
        .unwrap_err();
    assert!(error.to_string().contains("directory"), "{error}");
}

#[test]
fn an_empty_list_of_files_ends_at_once_and_impossible_limits_are_refused() {
    let mut none = LineFiles::open(&SystemDisk, [], LineLimits::default()).unwrap();
    let status = none.poll(&mut Output::default(), 1, Waker::noop()).unwrap();
    assert_eq!(status, SourceStatus::End);
    for (block_bytes, line_bytes_max) in [(0, 10), (20, 10)] {
        let limits = LineLimits {
            block_bytes,
            line_bytes_max,
        };
        assert!(LineFiles::open(&SystemDisk, [], limits).is_err());
    }
}

/// The items of a source in a number of turns.
fn turns(source: &mut LineFiles, turns: usize) -> Vec<u8> {
    let mut out = Output::default();
    for _ in 0..turns {
        source.poll(&mut out, 1, Waker::noop()).unwrap();
    }
    let blocks = out.items().iter();
    blocks.flat_map(|block| block.bytes.to_vec()).collect()
}

#[test]
fn resumed_sources_continue_behind_the_last_lines_of_all_sharing_sources() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| folder.path().join(name));
    let text: String = (0..50).map(|number| format!("line {number}\n")).collect();
    let (first, second) = text.split_at(200);
    fs::write(&paths[0], first).unwrap();
    fs::write(&paths[1], second).unwrap();
    let limits = LineLimits {
        block_bytes: 16,
        line_bytes_max: 64,
    };
    let open = |limits| LineFiles::open(&SystemDisk, paths.clone(), limits).unwrap();
    for before in [0, 1, 7, 20, 1000] {
        let mut sources = open(limits).split(2);
        let mut given = turns(&mut sources[0], before);
        given.extend(turns(&mut sources[1], before));
        let saved = sources[0].save().unwrap();
        assert_eq!(saved, sources[1].save().unwrap());
        let mut sources = open(limits).split(3);
        sources[2].restore(&saved).unwrap();
        given.extend(turns(&mut sources[1], 1000));
        assert_eq!(String::from_utf8(given).unwrap(), text);
    }
    let saved = open(limits).save().unwrap();
    let error = |files: &mut LineFiles| files.restore(&saved).unwrap_err().to_string();
    let other = LineLimits {
        block_bytes: 32,
        ..limits
    };
    assert!(error(&mut open(other)).starts_with("blocks had 16 B"));
    fs::write(&paths[1], "something else\n").unwrap();
    let said = error(&mut open(limits));
    let expected = format!(
        "{} had {} bytes, and has 15",
        paths[1].display(),
        second.len()
    );
    assert!(said.starts_with(&expected), "{said}");
    let one = LineFiles::open(&SystemDisk, [paths[0].clone()], limits);
    let said = error(&mut one.unwrap());
    assert!(
        said.starts_with("there were 2 files, and there are 1"),
        "{said}"
    );
}
