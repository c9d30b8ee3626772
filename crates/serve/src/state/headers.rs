//! The headers by which an answer about state says how far the flow was.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use millstream_base::Timestamp;
use millstream_flow::{Position, Progress, ReadLevel};
use serde_json::{Value, json};

use super::position::{Offsets, PARTITIONS_MAX, encoded};

const POSITION: HeaderName = HeaderName::from_static("millstream-position");
const WATERMARK: HeaderName = HeaderName::from_static("millstream-watermark");
const CHECKPOINT_AGE: HeaderName = HeaderName::from_static("millstream-checkpoint-age");
const COMMITTED: HeaderName = HeaderName::from_static("millstream-committed");
const NEXT: HeaderName = HeaderName::from_static("millstream-next");

/// The headers of an answer, at most: those of this file, and those that the server adds to each. More than these cost an
/// allocation.
const HEADERS_MAX: usize = 14;

/// Returns the headers of an answer: from the checkpoint that was read, or else from the present state. `ranks` are all
/// ranks of the flow that the request reached.
pub fn of(ranks: &[Progress], is_committed: bool, level: ReadLevel) -> HeaderMap {
    let age = oldest(ranks.iter().map(|rank| rank.checkpoint_age_seconds));
    let (positions, watermark) = match (level, age) {
        // The checkpoint of an earlier run.
        (ReadLevel::Committed, None) => (None, None),
        _ => (
            positions(ranks.iter().flat_map(|rank| &rank.positions)),
            least(ranks.iter().map(|rank| rank.watermark)),
        ),
    };
    let age = age.or_else(|| oldest(ranks.iter().map(|rank| rank.shard_age_seconds)));
    let mut headers = HeaderMap::with_capacity(HEADERS_MAX);
    headers.insert(COMMITTED, flag(is_committed));
    insert(&mut headers, POSITION, positions);
    let watermark = watermark.map(|Timestamp(ms)| ms.to_string());
    insert(&mut headers, WATERMARK, watermark);
    let age = age.map(|seconds| format!("{seconds:.3}"));
    insert(&mut headers, CHECKPOINT_AGE, age);
    headers
}

/// Returns the same of a checkpoint as an object, without the fields that have no header.
pub fn progress(ranks: &[Progress], checkpoint: u64) -> Value {
    let mut progress = json!({ "checkpoint": checkpoint });
    if let Some(positions) = positions(ranks.iter().flat_map(|rank| &rank.positions)) {
        progress["position"] = json!(positions);
    }
    if let Some(watermark) = least(ranks.iter().map(|rank| rank.watermark)) {
        progress["watermark"] = json!(watermark);
    }
    progress
}

/// Adds the last key of a list that goes on.
pub fn next(headers: &mut HeaderMap, key: Option<&str>) {
    insert(headers, NEXT, key.map(encoded));
}

/// The oldest age, if each rank has one.
fn oldest(ages: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    ages.reduce(|one, other| Some(f64::max(one?, other?)))?
}

/// A rank without a watermark has no stage with event time, or has yet to get the first one.
fn least(watermarks: impl Iterator<Item = Option<Timestamp>>) -> Option<Timestamp> {
    watermarks.flatten().min()
}

fn positions<'a>(positions: impl Iterator<Item = &'a Position>) -> Option<String> {
    let offsets = Offsets::of(positions);
    let is_shown = (1..=PARTITIONS_MAX).contains(&offsets.len());
    is_shown.then(|| offsets.to_string())
}

fn flag(is_set: bool) -> HeaderValue {
    HeaderValue::from_static(match is_set {
        true => "true",
        false => "false",
    })
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: Option<String>) {
    if let Some(Ok(value)) = value.map(|value| HeaderValue::from_str(&value)) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_partitions_have_no_header() {
        let of = |count| {
            let all: Vec<_> = (0..count)
                .map(|partition| Position {
                    stream: "a".to_owned(),
                    partition,
                    next: 1,
                    end: None,
                })
                .collect();
            positions(all.iter())
        };
        assert_eq!(of(0), None);
        assert!(of(PARTITIONS_MAX as u32).is_some());
        assert_eq!(of(PARTITIONS_MAX as u32 + 1), None);
    }
}
