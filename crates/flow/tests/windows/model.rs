//! The expected results of windows: computed from all items at once, by a single thread, in the plainest way.

use std::collections::BTreeMap;

/// The windows of the model.
#[derive(Debug, Clone, Copy)]
pub enum Spec {
    Tumbling { size: i64 },
    Sliding { size: i64, slide: i64 },
    Session { gap: i64 },
    Every { period: i64, purges: bool },
}

/// An item, and the watermark of its source when it was read.
#[derive(Debug, Clone, Copy)]
pub struct Item {
    pub key: u8,
    pub time: i64,
    pub value: i64,
    pub watermark: i64,
}

/// Updates replace earlier results.
pub fn settle(given: Vec<(Expected, bool)>) -> Vec<Expected> {
    let mut settled: Vec<Expected> = Vec::new();
    for (result, is_update) in given {
        let is_same = |other: &Expected| {
            (other.key, other.start, other.end) == (result.key, result.start, result.end)
        };
        if is_update {
            let before = settled.len();
            // Windows of equal size do not lie within each other, but at the edges of time.
            settled.retain(|other| {
                let is_within = other.start >= result.start && other.end <= result.end;
                !(other.key == result.key && is_within)
            });
            assert!(settled.len() < before, "{result:?}");
        } else {
            // Several windows may end with time itself.
            let is_new = result.end == i64::MAX || !settled.iter().any(is_same);
            assert!(is_new, "{result:?}");
        }
        settled.push(result);
    }
    settled.sort();
    settled
}

/// A result, ordered by its end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expected {
    pub end: i64,
    pub start: i64,
    pub key: u8,
    /// The values of the items, sorted.
    pub values: Vec<i64>,
    pub time_max: i64,
}

fn named(time: i128) -> i64 {
    time.clamp(i64::MIN.into(), i64::MAX.into())
        .try_into()
        .unwrap()
}

/// The watermark is at `watermark`: windows that end by the returned time take no more items.
fn closed_by(watermark: i64, lateness: i64) -> i64 {
    match watermark {
        i64::MAX => i64::MAX,
        _ => watermark.saturating_sub(lateness),
    }
}

/// The windows of `size`, one every `slide`, that hold `time`: none starts more than a slide
/// before the first moment there is.
fn windows_of(time: i64, size: i64, slide: i64) -> Vec<(i64, i64)> {
    let (time, size, slide) = (i128::from(time), i128::from(size), i128::from(slide));
    let first_start = i128::from(i64::MIN).div_euclid(slide) * slide;
    let mut start = time.div_euclid(slide) * slide;
    let mut windows = Vec::new();
    while start + size > time && start >= first_start {
        windows.push((named(start), named(start + size)));
        start -= slide;
    }
    windows
}

/// An item is late when all of its windows are over.
fn is_late(spec: Spec, lateness: i64, item: &Item) -> bool {
    let closed = closed_by(item.watermark, lateness);
    match spec {
        Spec::Tumbling { size } => windows_of(item.time, size, size)[0].1 <= closed,
        Spec::Sliding { size, slide } => windows_of(item.time, size, slide)[0].1 <= closed,
        Spec::Session { gap } => item.time.saturating_add(gap) <= closed,
        Spec::Every { .. } => item.watermark == i64::MAX,
    }
}

fn expected(key: u8, (start, end): (i64, i64), items: &[&Item]) -> Expected {
    let mut values: Vec<i64> = items.iter().map(|item| item.value).collect();
    values.sort_unstable();
    Expected {
        end,
        start,
        key,
        values,
        time_max: items.iter().map(|item| item.time).max().unwrap(),
    }
}

/// The last result of each window in order, and which of the items are late.
pub fn run(spec: Spec, lateness: i64, items: &[Item]) -> (Vec<Expected>, Vec<bool>) {
    let is_late = |item| is_late(spec, lateness, item);
    let late: Vec<bool> = items.iter().map(is_late).collect();
    let mut by_key: BTreeMap<u8, Vec<&Item>> = BTreeMap::new();
    for (item, late) in items.iter().zip(&late) {
        if !late {
            by_key.entry(item.key).or_default().push(item);
        }
    }
    let mut results = Vec::new();
    for (key, items) in by_key {
        let windows = match spec {
            Spec::Tumbling { size } => aligned(&items, lateness, size, size),
            Spec::Sliding { size, slide } => aligned(&items, lateness, size, slide),
            Spec::Session { gap } => sessions(items, gap),
            Spec::Every { period, purges } => every(&items, period, purges),
        };
        let of_key = windows.into_iter();
        results.extend(of_key.map(|(window, items)| expected(key, window, &items)));
    }
    results.sort();
    (results, late)
}

type Collected<'a> = Vec<((i64, i64), Vec<&'a Item>)>;

fn aligned<'a>(items: &[&'a Item], lateness: i64, size: i64, slide: i64) -> Collected<'a> {
    // By the start as well as the end: at the edges of time one of them is the same for several.
    let mut windows: BTreeMap<(i64, i64), Vec<&Item>> = BTreeMap::new();
    for item in items {
        let closed = closed_by(item.watermark, lateness);
        for window in windows_of(item.time, size, slide) {
            if window.1 <= closed {
                continue;
            }
            windows.entry(window).or_default().push(item);
        }
    }
    windows.into_iter().collect()
}

fn sessions(mut items: Vec<&Item>, gap: i64) -> Collected<'_> {
    items.sort_by_key(|item| item.time);
    let sessions = items.chunk_by(|a, b| i128::from(b.time) - i128::from(a.time) < gap.into());
    let window = |session: &[&Item]| {
        let last = session.last().unwrap().time;
        (session[0].time, last.saturating_add(gap))
    };
    sessions
        .map(|session| (window(session), session.to_vec()))
        .collect()
}

fn every<'a>(items: &[&'a Item], period: i64, purges: bool) -> Collected<'a> {
    // Also by the start: two may end with time itself.
    let mut periods: BTreeMap<(i64, i64), Vec<&Item>> = BTreeMap::new();
    for item in items {
        // An item that comes after its source's watermark counts as of then.
        let at = item.time.max(item.watermark);
        let of_item = windows_of(at, period, period)[0];
        periods.entry(of_item).or_default().push(item);
    }
    let mut sum = Vec::new();
    let mut windows = Vec::new();
    for ((_, end), items) in periods {
        if purges {
            sum.clear();
        }
        sum.extend(items);
        windows.push(((i64::MIN, end), sum.clone()));
    }
    windows
}
