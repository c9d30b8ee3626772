//! librdkafka's regression suite against the server: which of its tests pass.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::benchmark::Benchmark;
use crate::measure::Bench;
use crate::project::{build_peers, peer, root};
use crate::report::{Better, Case};
use crate::server::Server;

pub const BENCHMARK: Benchmark = Benchmark {
    name: "librdkafka",
    measures: "Runs the regression suite of librdkafka, the library behind most Kafka clients, against the server, and counts the passing tests.",
    cases: &[(SUITE, suite)],
};

const SUITE: &str = "suite";

/// No tests without a broker, no slow sockets, four tests at once, and a report.
const ARGUMENTS: [&str; 4] = ["-L", "-E", "-p4", "-r"];

/// In quick runs: fewer rounds and parts of the tests,
const QUICK_ARGUMENT: &str = "-Q";
/// and only a few tests of records, groups and administration.
const QUICK_TESTS: &str = "0001,0012,0030";

/// The version that the suite takes the server for: some tests are for newer brokers only.
const KAFKA_VERSION: &str = "4.0.0";

const DATA_BYTES_MAX: u64 = 8 << 30;

/// The suite's report of its tests.
#[derive(Deserialize)]
struct Tests {
    tests: BTreeMap<String, Test>,
}

#[derive(Deserialize)]
struct Test {
    state: String,
}

fn suite(bench: &Bench) -> Result<Vec<Case>> {
    build_peers(["librdkafka"]);
    let built = peer("librdkafka/sources/tests");
    let runner = built.join("test-runner");
    ensure!(
        runner.exists(),
        "there is no {runner:?}: see bench/peers/setup.sh"
    );
    let folder = bench.folder("librdkafka", DATA_BYTES_MAX)?;
    let (data, log) = (folder.path().join("data"), folder.path().join("server.log"));
    let settings = vec![
        ("MILLSTREAM_PARTITIONS", "4".to_owned()),
        ("MILLSTREAM_POOL", "512MiB".to_owned()),
    ];
    let mut server = Server::start(&data, &log, settings)?;
    let address = server.address().to_string();
    let (conf, report) = (folder.path().join("test.conf"), bench.path("report.json"));
    fs::write(
        &conf,
        format!("bootstrap.servers={address}\ntest.topic.random=true\n"),
    )?;
    let _ = fs::remove_file(&report);
    let printed_to = bench.path("suite.log");
    let printed = File::create(&printed_to)?;
    let mut command = millstream_testing::command(&runner);
    command
        .current_dir(&built)
        .args(ARGUMENTS)
        .env("RDKAFKA_TEST_CONF", &conf)
        .env("TEST_REPORT", &report)
        .env("TEST_KAFKA_VERSION", KAFKA_VERSION)
        .env("KAFKA_PATH", root().join("bench/peers/librdkafka"))
        .env("BROKERS", &address)
        .stdin(Stdio::null())
        .stdout(printed.try_clone()?)
        .stderr(printed);
    if bench.is_quick() {
        command.arg(QUICK_ARGUMENT).env("TESTS", QUICK_TESTS);
    }
    let started_at = Instant::now();
    let status = command.status().context("cannot start the suite")?;
    let seconds = started_at.elapsed().as_secs_f64();
    server.check_it_runs()?;
    server.stop()?;
    eprintln!(
        "librdkafka: {status}; its output is in {}",
        printed_to.display()
    );
    Ok(vec![case(&report, seconds)?])
}

/// The tests that passed of those that ran.
fn case(report: &Path, seconds: f64) -> Result<Case> {
    let text = fs::read_to_string(report).with_context(|| format!("cannot read {report:?}"))?;
    let Tests { mut tests } = serde_json::from_str(&text)?;
    // The suite as a whole.
    tests.remove("<MAIN>");
    let names = |state: &str| {
        let of_state = tests.iter().filter(|(_, test)| test.state == state);
        of_state.map(|(name, _)| name.as_str()).collect::<Vec<_>>()
    };
    let passed = names("PASSED").len() as f64;
    let failed = [names("FAILED"), names("RUNNING")].concat();
    let ran = passed + failed.len() as f64;
    ensure!(ran > 0.0, "no test ran: see {report:?}");
    let mut case = Case::new(SUITE, "tests", Better::Higher, vec![passed])
        .bound(ran)
        .detail("skipped", names("SKIPPED").len() as f64)
        .detail("seconds", seconds);
    for name in failed {
        eprintln!("librdkafka: {name} failed");
        case = case.detail(&format!("failed_{name}"), 1.0);
    }
    Ok(case)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_failed_are_named_and_those_skipped_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let report = r#"{ "id": "x", "tests": {
            "<MAIN>": { "state": "PASSED" }, "0001_a": { "state": "PASSED" },
            "0002_b": { "state": "FAILED" }, "0003_c": { "state": "SKIPPED" },
            "0004_d": { "state": "RUNNING" } } }"#;
        fs::write(&path, report).unwrap();
        let case = case(&path, 3.0).unwrap();
        assert_eq!((case.ours, case.limit), (1.0, Some(3.0)));
        let failed = case
            .details
            .keys()
            .filter(|name| name.starts_with("failed"));
        assert_eq!(
            failed.collect::<Vec<_>>(),
            ["failed_0002_b", "failed_0004_d"]
        );
    }
}
