//! `millstream flow describe`: the flows of a running program, their checkpoints and their state.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use humantime::format_duration;
use millstream_base::{ByteSize, nearest};
use millstream_flow::{CheckpointCounts, LastCheckpoint, StateElement};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::json;
use ureq::Agent;

use crate::args::DescribeFlowArgs;
use crate::console::{Align, Table, count_of, grouped, print, print_json, time};

/// How long the program may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// An answer has at most this many bytes: a flow of a thousand stages takes fewer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// The figures of a flow on one rank.
#[derive(Debug, Serialize, Deserialize)]
struct FlowState {
    flow: String,
    rank: u32,
    /// Those that the program has.
    ranks: Vec<u32>,
    is_finished: bool,
    workers: u64,
    lag_records: Option<u64>,
    checkpoints: Option<CheckpointCounts>,
    elements: Vec<StateElement>,
}

pub fn run(args: &DescribeFlowArgs, is_json: bool) -> anyhow::Result<()> {
    let flows = find(args)?;
    if is_json {
        return print_json(&json!({ "flows": flows }));
    }
    for (index, flow) in flows.iter().enumerate() {
        if index > 0 {
            print(|out| writeln!(out))?;
        }
        show(flow)?;
    }
    Ok(())
}

/// Returns the flow of the arguments, or all flows, on each rank that the program has.
fn find(args: &DescribeFlowArgs) -> anyhow::Result<Vec<FlowState>> {
    let names: Vec<String> = get(args.at, "/api/v1/flows")?;
    let asked = match &args.flow {
        Some(flow) if !names.contains(flow) => return Err(unknown(flow, &names, args.at)),
        Some(flow) => vec![flow.clone()],
        None if names.is_empty() => bail!("the program at {} runs no flow", args.at),
        None => names,
    };
    let mut flows = Vec::new();
    for name in asked {
        let path = format!(
            "/api/v1/flows/{}/metrics",
            utf8_percent_encode(&name, NON_ALPHANUMERIC)
        );
        let first: FlowState = get(args.at, &path)?;
        let others: Vec<u32> = first.ranks.iter().skip(1).copied().collect();
        flows.push(first);
        for rank in others {
            flows.push(get(args.at, &format!("{path}?rank={rank}"))?);
        }
    }
    Ok(flows)
}

fn unknown(flow: &str, names: &[String], at: SocketAddr) -> anyhow::Error {
    match nearest(flow, names.iter().map(String::as_str)) {
        Some(nearest) => {
            anyhow!("the program at {at} runs no flow {flow}; did you mean {nearest}?")
        }
        None if names.is_empty() => anyhow!("the program at {at} runs no flow"),
        None => anyhow!(
            "the program at {at} runs no flow {flow}; it runs {}",
            names.join(", ")
        ),
    }
}

fn show(flow: &FlowState) -> anyhow::Result<()> {
    let mut lines = vec![("flow", flow.flow.clone())];
    if flow.ranks.len() > 1 || flow.rank > 0 {
        lines.push(("rank", flow.rank.to_string()));
    }
    lines.push((
        "state",
        match flow.is_finished {
            true => "ended".to_owned(),
            false => format!("running, {}", count_of(flow.workers, "worker")),
        },
    ));
    lines.extend(flow.lag_records.map(|lag| ("lag", count_of(lag, "offset"))));
    match &flow.checkpoints {
        None => lines.push(("checkpoints", "it takes none".to_owned())),
        Some(counts) => lines.extend(checkpoint_lines(counts)),
    }
    print(|out| {
        for (name, text) in &lines {
            writeln!(out, "{name:12} {text}")?;
        }
        Ok(())
    })?;
    match flow.elements.is_empty() {
        true => Ok(()),
        false => table(&flow.elements).print(),
    }
}

fn checkpoint_lines(counts: &CheckpointCounts) -> Vec<(&'static str, String)> {
    let mut lines = vec![(
        "checkpoint",
        counts.last.as_ref().map_or("none yet".to_owned(), last),
    )];
    lines.push(("interval", time(counts.interval_seconds)));
    let failed = match (counts.failed, &counts.error) {
        (0, _) => "none".to_owned(),
        (failed, None) => grouped(failed),
        (failed, Some(error)) => format!("{}, the last one: {error}", grouped(failed)),
    };
    lines.push(("failures", failed));
    lines
}

/// A checkpoint in words, as far as this run knows it.
fn last(last: &LastCheckpoint) -> String {
    let mut text = format!("number {}", grouped(last.number));
    match last.age_seconds {
        Some(age) => {
            let age = Duration::from_secs(age.max(0.0) as u64);
            text += &format!(", {} ago", format_duration(age));
        }
        None => text += ", of an earlier run",
    }
    if let (Some(pause), Some(seconds)) = (last.pause_seconds, last.seconds) {
        text += &format!(": paused for {}, written in {}", time(pause), time(seconds));
    }
    text += &last
        .bytes
        .map_or(String::new(), |bytes| format!(", {}", ByteSize(bytes)));
    if let (Some(changes @ 1..), Some(bytes)) = (last.changes, last.change_bytes) {
        text += &format!(
            " and {} of {}",
            count_of(changes, "change"),
            ByteSize(bytes)
        );
    }
    text
}

fn table(elements: &[StateElement]) -> Table {
    let mut table = Table::new(&[
        ("state", Align::Left),
        ("kind", Align::Left),
        ("entries", Align::Right),
        ("memory", Align::Right),
        ("in checkpoints", Align::Left),
    ]);
    for element in elements {
        let unknown = || "unknown".to_owned();
        table.row([
            element.name.clone(),
            element.kind.clone(),
            element.entries.map_or_else(unknown, grouped),
            element
                .memory_bytes
                .map_or_else(unknown, |bytes| ByteSize(bytes).to_string()),
            element.stored.name().to_owned(),
        ]);
    }
    table
}

/// Asks the program. It listens on loopback only, and without TLS.
fn get<T: for<'a> Deserialize<'a>>(at: SocketAddr, path: &str) -> anyhow::Result<T> {
    let url = format!("http://{at}{path}");
    let asked = Agent::config_builder()
        .timeout_global(Some(ANSWER_TIME_MAX))
        .http_status_as_error(false)
        .proxy(None)
        .build()
        .new_agent()
        .get(&url)
        .call();
    let mut answer = asked.with_context(|| {
        format!(
            "no program answers at http://{at}/; a program serves its flows with --http ADDRESS, and --at ADDRESS \
             names that address here"
        )
    })?;
    let status = answer.status();
    let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX);
    let body = body.read_to_vec().with_context(|| url.clone())?;
    if !status.is_success() {
        #[derive(Deserialize)]
        struct Refusal {
            error: String,
        }
        let refusal: Result<Refusal, _> = serde_json::from_slice(&body);
        let why = refusal.map_or_else(|_| status.to_string(), |it| it.error);
        bail!("{url}: {why}");
    }
    serde_json::from_slice(&body).with_context(|| format!("{url} is no answer of a flow"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(checkpoint: LastCheckpoint, expected: &str) {
        assert_eq!(last(&checkpoint), expected);
    }

    #[test]
    fn a_checkpoint_is_described_as_far_as_it_is_known() {
        let earlier = LastCheckpoint {
            number: 1_234,
            ..LastCheckpoint::default()
        };
        check(earlier, "number 1,234, of an earlier run");
        let own = LastCheckpoint {
            kept_at_ms: Some(0),
            age_seconds: Some(61.9),
            seconds: Some(0.0123),
            pause_seconds: Some(0.00042),
            bytes: Some(512),
            changes: Some(0),
            change_bytes: Some(0),
            ..earlier
        };
        let written = "number 1,234, 1m 1s ago: paused for 420 µs, written in 12.3 ms, 512 B";
        check(own, written);
        let changes = LastCheckpoint {
            changes: Some(1),
            change_bytes: Some(2_048),
            ..own
        };
        check(
            changes,
            &format!("{written} and 1 change of {}", ByteSize(2_048)),
        );
    }
}
