//! Edits of Wikipedia on a day of 2015, a JSON object each.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Edits by user and by page.
pub type Counts = [BTreeMap<String, u64>; 2];

/// Returns the events; `None` if they are not on this machine.
pub fn read() -> Option<Vec<String>> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = std::env::var_os("MILLSTREAM_TEST_DATA").map_or(beside, PathBuf::from);
    let path = folder.join("clickstream/wikiticker_2015-09-12_sampled.jsonl.zst");
    let Ok(file) = File::open(&path) else {
        eprintln!(
            "skipped: there is no {}; set MILLSTREAM_TEST_DATA",
            path.display()
        );
        return None;
    };
    let lines = BufReader::new(zstd::Decoder::new(file).unwrap()).lines();
    let events: Vec<String> = lines.collect::<Result<_, _>>().unwrap();
    assert_eq!(events.len(), 39_244);
    Some(events)
}

/// Returns the user and the page of an event.
pub fn user_and_page(event: &[u8]) -> [String; 2] {
    let event: Value = serde_json::from_slice(event).unwrap();
    ["user", "page"].map(|field| event[field].as_str().unwrap().to_owned())
}

/// Counts them without a flow.
pub fn count(events: &[String]) -> Counts {
    let mut counts = Counts::default();
    for event in events {
        for (counts, key) in counts.iter_mut().zip(user_and_page(event.as_bytes())) {
            *counts.entry(key).or_default() += 1;
        }
    }
    counts
}
