//! Compares the flow with the simplest possible count.

use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use millstream_base::SystemDisk;
use millstream_base::text::is_white_space;
use millstream_flow::sources::{LineFiles, LineLimits};
use millstream_flow::{FlowSettings, Order, RoundRobin, Scheduler};
use millstream_logparser::{LogParser, Staging};
use tempfile::tempdir;

/// Blocks of a few lines, so that small files have many.
const LIMITS: LineLimits = LineLimits {
    block_bytes: 1 << 10,
    line_bytes_max: 1 << 14,
};

/// Returns the number of words beginning with `prefix`, and of all words.
fn count(text: &[u8], prefix: &[u8]) -> (u64, u64) {
    let (mut count, mut words) = (0, 0);
    let mut word = Vec::new();
    for byte in [text, b" "].concat() {
        if !is_white_space(&byte) {
            word.push(byte);
        } else if !word.is_empty() {
            words += 1;
            count += u64::from(word.get(..prefix.len()) == Some(prefix));
            word.clear();
        }
    }
    (count, words)
}

fn settings(workers: usize) -> FlowSettings {
    FlowSettings {
        workers: NonZeroUsize::new(workers).unwrap(),
        ..FlowSettings::default()
    }
}

#[track_caller]
fn check(texts: &[&[u8]], prefix: &[u8]) {
    let folder = tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..texts.len())
        .map(|file| folder.path().join(file.to_string()))
        .collect();
    for (path, text) in paths.iter().zip(texts) {
        fs::write(path, text).unwrap();
    }
    // The end of a file ends a word.
    let (expected_count, expected_words) = count(&texts.join(&b"\n"[..]), prefix);
    let expected_bytes = texts.iter().map(|text| text.len() as u64).sum::<u64>();
    let round_robin: Arc<dyn Scheduler> = Arc::new(RoundRobin::default());
    for staging in [Staging::Fused, Staging::Separate] {
        for workers in 1..=3 {
            for order in [Order::Kept, Order::Free] {
                let settings = settings(workers);
                for scheduler in [&settings.scheduler, &round_robin].map(Arc::clone) {
                    let files = LineFiles::open(&SystemDisk, paths.clone(), LIMITS).unwrap();
                    let settings = FlowSettings {
                        order,
                        scheduler,
                        ..settings.clone()
                    };
                    let parser = LogParser::start(files, prefix, staging, settings).unwrap();
                    parser.running().join().unwrap();
                    let found = (parser.count(), parser.words(), parser.bytes());
                    let expected = (expected_count, expected_words, expected_bytes);
                    assert_eq!(found, expected, "{staging:?} {workers} {order:?}");
                }
            }
        }
    }
}

/// Returns bytes with awkward contents: invalid UTF-8, words of every length, all kinds of white space,
/// zeros.
fn awkward_text(bytes: usize) -> Vec<u8> {
    let mut random = 12345_u32;
    let byte = |_| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match random >> 24 {
            0..=9 => b"\t\x0b\x0c\r"[(random >> 16) as usize % 4],
            10..=39 => b' ',
            40..=49 => b'\n',
            50..=59 => 0xE4,
            60 => 0,
            byte => b'a' + (byte % 3) as u8,
        }
    };
    (0..bytes).map(byte).collect()
}

#[test]
fn words_of_awkward_files_are_counted() {
    let text = awkward_text(200_000);
    let (first, second) = text.split_at(70_001);
    check(&[first, b"", second], b"ab");
    check(&[first], b"\xe4");
}

#[test]
fn a_vertical_tab_separates_words() {
    assert_eq!(count(b"a\x0bb a\x0b", b"a"), (2, 3));
    check(&[b"a\x0bb a\x0b"], b"a");
    // Also in the search of 64 bytes at once.
    check(&[b"a\x0bb ".repeat(100).as_slice()], b"b");
}

#[test]
fn small_files_with_and_without_a_final_line_feed_are_counted() {
    check(&[b""], b"a");
    check(&[b"\n \n"], b"a");
    check(&[b"an", b"apple and\n", b"a\0b\0 \0a"], b"a");
    check(&[b"an apple"], b"");
    check(&[b"an apple"], b"applesauce");
}

/// Both white space and words may be longer than a block.
#[test]
fn words_and_gaps_longer_than_a_block_are_counted() {
    let text = [
        vec![b'a'; 5_000],
        vec![b'\n'; 5_000],
        b"b a\n".repeat(2_000),
        vec![b' '; 5_000],
        vec![b'a'; 40],
    ];
    check(&[&text.concat()], b"aa");
}

#[test]
fn killed_workers_do_not_change_the_counts() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("text");
    let text = awkward_text(3_000_000);
    fs::write(&path, &text).unwrap();
    let (expected_count, expected_words) = count(&text, b"ab");
    for staging in [Staging::Fused, Staging::Separate] {
        let files = LineFiles::open(&SystemDisk, [path.clone()], LIMITS).unwrap();
        let parser = LogParser::start(files, b"ab", staging, settings(3)).unwrap();
        let running = parser.running();
        while !running.is_finished() {
            running.kill_workers(2);
            std::thread::yield_now();
        }
        let summary = running.join().unwrap();
        assert!(summary.workers_replaced > 0, "{staging:?}");
        let found = (parser.count(), parser.words(), parser.bytes());
        let expected = (expected_count, expected_words, text.len() as u64);
        assert_eq!(found, expected, "{staging:?}");
    }
}

#[test]
fn a_line_that_is_too_long_ends_the_flow_and_names_the_file() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("text");
    let text = [&b"short\n"[..], &[b'x'; 20_000]].concat();
    fs::write(&path, text).unwrap();
    for staging in [Staging::Fused, Staging::Separate] {
        let files = LineFiles::open(&SystemDisk, [path.clone()], LIMITS).unwrap();
        let parser = LogParser::start(files, b"x", staging, settings(2)).unwrap();
        let error = parser.running().join().unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert!(error.contains("the line at byte 6"), "{error}");
    }
}
