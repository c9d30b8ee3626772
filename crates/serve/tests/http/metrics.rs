//! Metrics for Prometheus, and the metrics of one flow.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millstream_flow::sources::Generator;
use millstream_flow::{Class, Flow, FlowSettings, Objective, Pool};
use serde_json::Value;

use crate::support::{ANSWER_TIME_MAX, OneFlow, get, start, start_with};

/// Prometheus refuses a whole page if it cannot parse one line.
#[test]
fn prometheus_gets_every_metric_of_every_stage_with_its_type() {
    let body = get(&start(), "/metrics").body;
    let mut kinds = BTreeMap::new();
    let mut values = BTreeMap::new();
    let mut current = "";
    for line in body.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a kind");
            assert!(kinds.insert(name, kind).is_none(), "{name} comes twice");
            assert_eq!(current, name, "the help comes first");
        } else if let Some(help) = line.strip_prefix("# HELP ") {
            current = help.split_once(' ').expect("a help").0;
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let value: f64 = value.parse().expect("a number");
            assert!(value.is_finite() && value >= 0.0, "{line}");
            assert!(series.starts_with(current), "{series} is among {current}");
            assert!(
                values.insert(series, value).is_none(),
                "{series} comes twice"
            );
        }
    }
    assert_eq!(kinds["millstream_stage_items_in_total"], "counter");
    assert_eq!(kinds["millstream_stage_readable_items"], "gauge");
    assert_eq!(kinds["millstream_flow_latency_seconds"], "histogram");
    // This node has no keyed streams, but state that can be watched.
    assert_eq!(kinds["millstream_http_watches"], "gauge");
    assert_eq!(values["millstream_http_watches"], 0.0);
    let of_stage = |name: &str, flow: &str, stage: &str| {
        values[format!("millstream_stage_{name}{{flow=\"{flow}\",stage=\"{stage}\"}}").as_str()]
    };
    assert_eq!(of_stage("items_in_total", "ads", "large"), 20_000.0);
    assert_eq!(of_stage("items_out_total", "ads", "read large"), 20_000.0);
    assert_eq!(of_stage("readable_items", "ads", "large"), 0.0);
    assert!(of_stage("busy_seconds_total", "ads", "large") > 0.0);
    assert!(of_stage("item_seconds", "ads", "large") < 1.0);
    assert_eq!(of_stage("items_in_total", r#"two \"words\""#, "a/b"), 2.0);
    let latency = |part: &str| values[format!("millstream_flow_latency_seconds_{part}").as_str()];
    let count = latency(r#"count{flow="ads"}"#);
    assert!(count >= 200.0, "{count}");
    assert_eq!(latency(r#"bucket{flow="ads",le="+Inf"}"#), count);
    assert_eq!(latency(r#"bucket{flow="ads",le="100"}"#), count);
    assert!(latency(r#"sum{flow="ads"}"#) > 0.0);
    assert_eq!(values[r#"millstream_flow_finished{flow="ads"}"#], 1.0);
}

/// The pool of the process has all flows of this program and its objectives.
#[test]
fn the_pool_is_there_as_json_and_for_prometheus() {
    let server = start();
    let pool = Pool::of_process();
    let member = pool.join("work \"a\"", Class::BestEffort, NonZeroUsize::MIN);
    let mut seat = member.seat();
    seat.take();
    let within = Duration::from_secs(5);
    let meter = pool.objective("queries", Objective::p99(within)).unwrap();
    drop(meter.begin().unwrap());
    let body = get(&server, "/api/v1/pool").body;
    let view: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(view["slots"], pool.slots().get());
    assert_eq!(view["level"], 100);
    let of = |list: &str, name: &str| {
        let list = view[list].as_array().unwrap();
        let found = list.iter().find(|it| it["name"] == name);
        found
            .unwrap_or_else(|| panic!("{name} is not in {view}"))
            .clone()
    };
    let work = of("members", "work \"a\"");
    assert_eq!(work["class"], "best-effort");
    assert_eq!((&work["share"], &work["holding"]), (&1.into(), &1.into()));
    assert!(work["taken_seconds"].as_f64().unwrap() > 0.0);
    let queries = of("objectives", "queries");
    assert_eq!(
        (&queries["percentile"], &queries["within_seconds"]),
        (&99.0.into(), &5.0.into())
    );
    assert_eq!(
        (&queries["answered"], &queries["late"]),
        (&1.into(), &0.into())
    );
    let metrics = get(&server, "/metrics").body;
    for line in [
        "millstream_pool_best_effort_level_ratio 1\n",
        "millstream_pool_slot_seconds_total{member=\"work \\\"a\\\"\"} ",
        "millstream_objective_seconds{work=\"queries\"} 5\n",
        "millstream_objective_answered_total{work=\"queries\"} 1\n",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
}

#[test]
fn the_metrics_of_one_flow_are_json() {
    let server = start();
    let metrics = get(&server, "/api/v1/flows/ads/metrics").json();
    assert_eq!(metrics["flow"], "ads");
    assert_eq!(metrics["is_finished"], true);
    assert_eq!(metrics["workers_replaced"], 0);
    assert_eq!(metrics["lost_wakeups"], 0);
    let stages = metrics["stages"].as_array().expect("a list");
    let names = stages.iter().map(|stage| stage["stage"].as_str());
    let expected = [
        "read campaign_counts",
        "campaign_counts",
        "read large",
        "large",
    ];
    assert!(names.eq(expected.map(Some)), "{stages:?}");
    assert_eq!(stages[3]["items_in"], 20_000);
    assert_eq!(stages[3]["readable"], 0);
    let latency = &metrics["latency"];
    let steps = latency["histogram"].as_array().expect("a list");
    let samples: u64 = steps.iter().filter_map(|step| step[1].as_u64()).sum();
    assert_eq!(latency["samples"], samples);
    assert!(latency["p50_us"].as_f64() <= latency["p99_us"].as_f64());
    let metrics = get(&server, "/api/v1/flows/two%20%22words%22/metrics").json();
    assert_eq!(metrics["flow"], "two \"words\"");
    get(&server, "/api/v1/flows/adds/metrics").check_error(404, r#"unknown flow "adds""#);
    get(&server, "/api/v1/flows/%FF/metrics").check_error(400, "UTF-8");
    let answer = get(&server, "/api/v1/flows/ads");
    answer.check_error(404, "/api/v1/flows/<flow>/metrics");
}

#[test]
fn throughput_is_recorded_for_every_second() {
    let settings = FlowSettings::default();
    let clock = Arc::clone(&settings.clock);
    let flow = Flow::with_settings("steady", settings);
    let count = flow.partial::<u64>("count");
    let numbers = Generator::new(|number| number).rate(10_000.0, clock);
    flow.source("numbers", numbers)
        .boundary("count")
        .fold_local(&count, |count, _| *count += 1);
    let running = Arc::new(flow.run().expect("threads"));
    let server = start_with(Arc::new(OneFlow(Arc::clone(&running))));
    let started_at = Instant::now();
    let metrics = loop {
        let metrics = get(&server, "/api/v1/flows/steady/metrics").json();
        if metrics["throughput"]
            .as_array()
            .is_some_and(|samples| samples.len() >= 2)
        {
            break metrics;
        }
        assert!(started_at.elapsed() < ANSWER_TIME_MAX, "{metrics}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(metrics["is_finished"], false);
    assert!(metrics["workers"].as_u64() >= Some(1));
    let samples = metrics["throughput"].as_array().expect("a list");
    let seconds = |sample: &Value| sample["seconds"].as_f64().expect("a number");
    assert!(seconds(&samples[0]) >= 0.9, "{samples:?}");
    assert!(
        seconds(&samples[1]) >= seconds(&samples[0]) + 0.9,
        "{samples:?}"
    );
    assert!(metrics["watched_seconds"].as_f64() >= Some(seconds(&samples[1])));
    for sample in samples {
        let rates = sample["items_per_second"].as_array().expect("a list");
        assert_eq!(rates.len(), 2);
        for rate in rates {
            let rate = rate.as_f64().expect("a number");
            assert!((5_000.0..20_000.0).contains(&rate), "{samples:?}");
        }
    }
    running.stop();
    running.join().expect("the end");
    server.stop();
}
