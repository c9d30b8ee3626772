//! Entries and values of state elements.

use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::Timestamp;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Windows, fold};
use millstream_flow::{Flow, PartialState, Watermarks};
use serde_json::{Value, json};

use crate::support::{ANSWER_TIME_MAX, OneFlow, get, run, start, start_with};

#[test]
fn flows_and_their_elements_are_listed() {
    let server = start();
    let ads = json!({ "flow": "ads", "elements": ["broken", "campaign_counts", "large"] });
    let words = json!({ "flow": "two \"words\"", "elements": ["a/b"] });
    assert_eq!(get(&server, "/state/ads").json(), ads);
    assert_eq!(get(&server, "/state/two%20%22words%22").json(), words);
    assert_eq!(get(&server, "/state").json(), json!([ads, words]));
    get(&server, "/state/%FF").check_error(400, "UTF-8");
}

#[test]
fn a_value_is_found_by_its_key() {
    let server = start();
    let answer = get(&server, "/state/ads/campaign_counts/campaign-00042");
    assert_eq!(answer.json(), json!({ "views": 42 }));
}

#[test]
fn names_and_keys_may_be_any_percent_encoded_text() {
    let server = start();
    let path = "/state/two%20%22words%22/a%2Fb/gr%C3%BC%C3%9Fe%2F%E2%98%83%20100%25";
    assert_eq!(get(&server, path).json(), json!(7));
    let path = "/state/two%20%22words%22/a%2Fb/plus+plus";
    assert_eq!(get(&server, path).json(), json!(8));
    get(&server, "/state/two%20%22words%22/a%2Fb/%FF").check_error(400, "UTF-8");
}

#[test]
fn entries_are_ordered_and_bounded() {
    let server = start();
    let count = |path| {
        let list = get(&server, path).json();
        let list = list.as_array().expect("a list").clone();
        assert!(list.is_sorted_by_key(|entry| entry["key"].to_string()));
        list.len()
    };
    assert_eq!(count("/state/ads/campaign_counts"), 100);
    assert_eq!(count("/state/ads/campaign_counts?limit=3"), 3);
    assert_eq!(count("/state/ads/campaign_counts?limit=10000"), 150);
    assert_eq!(count("/state/ads/large?limit=10000"), 10_000);
    let last = get(&server, "/state/ads/campaign_counts?limit=1").json();
    let entry = json!([{ "key": "campaign-00149", "value": { "views": 149 } }]);
    assert_eq!(last, entry);
}

#[test]
fn malformed_queries_are_refused() {
    let server = start();
    let list = |query: &str| get(&server, &format!("/state/ads/campaign_counts?{query}"));
    for query in ["limit=0", "limit=10001", "limit=many", "limit=-1", "limt=3"] {
        let answer = list(query);
        answer.check_error(400, &format!("the query \"{query}\" is refused"));
        answer.check_error(400, "limit=<n>, a number from 1 to 10000");
        // The words of a library would mean nothing to the user.
        assert!(!answer.body.contains("deserialize"), "{}", answer.body);
    }
}

#[test]
fn errors_name_the_unknown_item() {
    let server = start();
    get(&server, "/state/adds/campaign_counts").check_error(404, r#"unknown flow "adds""#);
    get(&server, "/state/adds/x/y").check_error(404, r#"unknown flow "adds""#);
    get(&server, "/state/ads/counts/x").check_error(404, r#"unknown element "counts""#);
    let answer = get(&server, "/state/ads/campaign_counts/x%20y");
    answer.check_error(404, r#"unknown key "x y""#);
    get(&server, "/state/adds").check_error(404, r#"unknown flow "adds""#);
    get(&server, "/state/ads/counts").check_error(404, "/state/<flow> lists its elements");
    let answer = get(&server, "/state/ads/campaign_counts?watch");
    answer.check_error(409, "the flow takes no checkpoints");
    get(&server, "/states").check_error(404, "no page at \"/states\"");
    get(&server, "/api/v2/overview").check_error(404, "/api/v1/overview");
}

#[test]
fn a_broken_state_element_breaks_one_request() {
    let server = start();
    get(&server, "/state/ads/broken/x").check_error(500, "report it");
    assert_eq!(get(&server, "/api/v1/overview").status, 200);
}

/// A state element whose reads wait for the end of a test.
#[derive(Default)]
struct Blocked;

static IS_BLOCKED: (Mutex<bool>, Condvar) = (Mutex::new(true), Condvar::new());

impl PartialState for Blocked {
    fn merge(&mut self, _: &Self) {}

    fn get(_: &[&Self], _: &str) -> Option<Value> {
        let (is_blocked, changed) = &IS_BLOCKED;
        let is_blocked = is_blocked.lock().unwrap();
        let waited = changed.wait_timeout_while(is_blocked, ANSWER_TIME_MAX, |it| *it);
        drop(waited);
        None
    }

    fn keys(_: &[&Self], _: usize) -> Vec<String> {
        Vec::new()
    }
}

#[test]
fn a_read_is_refused_in_time_while_others_hold_all_threads() {
    /// As many as the server has threads for reads of state.
    const READS: usize = 6;
    let flow = Flow::new("slow");
    flow.partial::<Blocked>("blocked");
    let sum = flow.partial::<u64>("sum");
    flow.source("numbers", Generator::new(|number| number).limit(3))
        .fold_local(&sum, |sum, number| *sum += number);
    let server = start_with(Arc::new(OneFlow(run(flow))));
    thread::scope(|scope| {
        let blocked = || get(&server, "/state/slow/blocked/x");
        let blocked: Vec<_> = (0..READS).map(|_| scope.spawn(blocked)).collect();
        let began_at = Instant::now();
        let refused = loop {
            let answer = get(&server, "/state/slow/sum/count");
            // All of the others have begun when one is refused.
            if answer.status != 200 {
                break answer;
            }
            assert!(began_at.elapsed() < ANSWER_TIME_MAX);
        };
        refused.check_error(503, "have held all threads for 5 s: try again later");
        assert!(refused.head.contains("retry-after: 1"), "{refused:?}");
        *IS_BLOCKED.0.lock().unwrap() = false;
        IS_BLOCKED.1.notify_all();
        for blocked in blocked {
            assert_eq!(blocked.join().unwrap().status, 404);
        }
    });
    assert_eq!(get(&server, "/state/slow/sum/count").json(), 3);
}

#[test]
fn a_result_that_json_cannot_hold_is_left_out_of_lists() {
    let flow = Flow::new("shop");
    // A number above `u64::MAX` is no JSON.
    let sum = fold(
        || 0_u128,
        |sum: &mut u128, number: &u64| *sum += u128::from(*number),
        |sum: &mut u128, other: &u128| *sum += *other,
    );
    let sums = flow.windowed("sums", Windows::tumbling(10), sum);
    let windows = flow.partial::<u64>("windows");
    flow.source("orders", Generator::new(|number| number).limit(3))
        .watermarks(|_| Timestamp(5), Watermarks::bounded(Duration::ZERO))
        .map(|number| match number {
            0 => 7,
            _ => u64::MAX,
        })
        .key_by(|number| number.count_ones())
        .aggregate("add", &sums, |_| Timestamp(5))
        .fold_local(&windows, |windows, _| *windows += 1);
    let server = start_with(Arc::new(OneFlow(run(flow))));
    assert_eq!(get(&server, "/state/shop/windows/count").json(), 2);
    let entries = get(&server, "/state/shop/sums").json();
    let entries = entries.as_array().expect("a list");
    assert_eq!(entries.len(), 1, "{entries:?}");
    assert_eq!(entries[0]["key"], "3");
    assert_eq!(entries[0]["value"]["value"], 7);
    get(&server, "/state/shop/sums/64").check_error(404, "unknown key \"64\"");
}

#[test]
fn keys_in_paths_are_plain_strings_and_numbers_or_else_json() {
    let flow = Flow::new("shop");
    let windows = Windows::tumbling(10);
    let all = flow.windowed("all items", windows, Count);
    let numbers = flow.windowed("numbers", windows, Count);
    let pairs = flow.windowed("pairs", windows, Count);
    let channels = ["all", "numbers", "pairs"].map(|name| flow.channel::<u64>(name));
    let time = |number: &u64| Timestamp(*number as i64);
    flow.source("orders", Generator::new(|number| number).limit(10))
        .watermarks(time, Watermarks::bounded(Duration::ZERO))
        .to_all(&channels);
    let sums = flow.partial::<u64>("sums");
    flow.stage("of all", &channels[0])
        .aggregate("count all", &all, time)
        .fold_local(&sums, |sum, window| *sum += window.value);
    flow.stage("of numbers", &channels[1])
        .key_by(|number| number % 5)
        .aggregate("count numbers", &numbers, time)
        .fold_local(&sums, |sum, window| *sum += window.value);
    flow.stage("of pairs", &channels[2])
        .key_by(|number| (["a", "b/c"][*number as usize % 2].to_owned(), number % 2))
        .aggregate("count pairs", &pairs, time)
        .fold_local(&sums, |sum, window| *sum += window.value);
    let server = start_with(Arc::new(OneFlow(run(flow))));
    let value = |path: &str| get(&server, path).json()["value"].clone();
    assert_eq!(value("/state/shop/all%20items/all"), 10);
    assert_eq!(value("/state/shop/numbers/3"), 2);
    assert_eq!(value("/state/shop/pairs/%5B%22a%22,0%5D"), 5);
    assert_eq!(value("/state/shop/pairs/%5B%22b%2Fc%22,1%5D"), 5);
    let entries = get(&server, "/state/shop/pairs").json();
    assert_eq!(entries[0]["key"], r#"["a",0]"#);
    assert_eq!(entries[1]["key"], r#"["b/c",1]"#);
    let unknown = get(&server, "/state/shop/pairs/%5B%22a%22%5D");
    assert_eq!(unknown.status, 404);
}
