//! The live page, the overview and the list of flows.

use millstream_serve::Content;
use serde_json::json;

use crate::support::{Sample, get, start};

#[test]
fn the_page_has_a_policy_that_allows_connections_to_this_server_only() {
    let answer = get(&start(), "/");
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: text/html"));
    assert!(answer.head.contains("default-src 'none'"));
    assert!(!answer.head.contains("unsafe"));
    assert!(answer.body.starts_with("<!doctype html>"));
}

#[test]
fn health_overview_flows_and_metrics_are_served() {
    let server = start();
    let health = get(&server, "/healthz");
    assert_eq!((health.status, health.body.as_str()), (200, "ok"));
    let overview = get(&server, "/api/v1/overview").json();
    assert_eq!(overview, Sample::new().overview());
    let flows = get(&server, "/api/v1/flows").json();
    assert_eq!(flows, json!(["ads", "two \"words\""]));
    let metrics = get(&server, "/metrics");
    let first = "# HELP millstream_events_total Events so far.\n\
                 # TYPE millstream_events_total counter\n\
                 millstream_events_total 5\n";
    assert!(metrics.body.starts_with(first), "{}", metrics.body);
    let content_type = "content-type: text/plain; version=0.0.4; charset=utf-8";
    assert!(metrics.head.contains(content_type));
    assert!(metrics.head.contains("cache-control: no-store"));
    assert!(metrics.head.contains("x-content-type-options: nosniff"));
}
