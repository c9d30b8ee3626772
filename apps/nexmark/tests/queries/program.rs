//! The program's options.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use millstream::{Error, Node};
use millstream_nexmark::{Event, EventGenerator, QUERIES, START};
use millstream_testing::start;
use serde_json::Value;

use super::{EVENTS, GENERATOR, answers};

/// The longest time that one run may take.
pub const LIMIT: Duration = Duration::from_secs(120);

pub fn command(data: &Path, options: &[&str]) -> Command {
    let mut command = millstream_testing::command(env!("CARGO_BIN_EXE_nexmark"));
    command.arg("--data").arg(data).args(options);
    command
}

/// Runs to the end. Returns whether it succeeded, and the lines on stdout and stderr.
fn run(data: &Path, options: &[&str]) -> Result<(bool, String), Error> {
    let mut command = command(data, options);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = start(&mut command, LIMIT)?;
    let mut lines = String::new();
    if let (Some(mut out), Some(mut err)) = (run.stdout.take(), run.stderr.take()) {
        out.read_to_string(&mut lines)?;
        err.read_to_string(&mut lines)?;
    }
    Ok((run.wait()?.success(), lines))
}

#[test]
fn a_query_reads_the_events_of_a_topic() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let generated = ["--query", "events", "--events", "2000", "--seed", "5"];
    assert_eq!(run(dir.path(), &generated)?, (true, String::new()));
    let read = ["--query", "q0", "--topic", "nexmark.events", "--until-now"];
    assert_eq!(run(dir.path(), &read)?, (true, String::new()));
    let node = Node::embedded(dir.path())?;
    let events = super::records(&node, "nexmark.events")?;
    assert_eq!(events.len(), 2000);
    let bids = events.iter().filter_map(|event| event.get("Bid").cloned());
    let found = super::records(&node, "nexmark.q0")?;
    assert_eq!(super::sorted(found), super::sorted(bids));
    Ok(())
}

#[test]
fn ranks_generate_each_event_once() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let options = [
        "--query",
        "events",
        "--events",
        "1003",
        "--sources",
        "2",
        "--ranks",
        "3",
    ];
    assert_eq!(run(dir.path(), &options)?, (true, String::new()));
    let node = Node::embedded(dir.path())?;
    let events = super::sorted(super::records(&node, "nexmark.events")?);
    assert_eq!(events.len(), 1003);
    let mut different = events.clone();
    different.dedup();
    assert_eq!(different, events);
    let is_person = |event: &&String| event.starts_with("{\"Person\"");
    assert_eq!(events.iter().filter(is_person).count(), 21);
    Ok(())
}

/// Answers a query by a plain computation.
type Answer = fn(&[Event]) -> Vec<Value>;

#[test]
fn two_ranks_compute_windows_joins_and_changes() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let generator = EventGenerator {
        start: START,
        ..GENERATOR
    };
    let events = super::events(generator);
    let (count, rate) = (EVENTS.to_string(), generator.rate.to_string());
    let seed = generator.seed.to_string();
    let of_events = ["--events", &count, "--rate", &rate, "--seed", &seed];
    let queries: [(&str, Answer); 3] = [
        ("q4", answers::q4),
        ("q5", answers::q5),
        ("q8", answers::q8),
    ];
    for (query, answer) in queries {
        let mut options = vec!["--query", query, "--ranks", "2", "--sources", "2"];
        options.extend(of_events);
        assert_eq!(run(dir.path(), &options)?, (true, String::new()));
        let node = Node::embedded(dir.path())?;
        let mut found = super::records(&node, &format!("nexmark.{query}"))?;
        if query == "q4" {
            found = super::folded(found);
        }
        assert_eq!(super::sorted(found), super::sorted(answer(&events)));
    }
    Ok(())
}

#[test]
fn the_help_describes_each_query_and_wrong_options_are_refused() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let (succeeds, help) = run(dir.path(), &["--help"])?;
    assert!(succeeds);
    for query in QUERIES {
        let line = help
            .lines()
            .find(|line| line.contains(&format!("- {}:", query.name)));
        assert!(line.is_some(), "{}: {help}", query.name);
    }
    assert!(help.contains("--until-now"), "{help}");
    for (options, reason) in [
        (vec!["--query", "q99"], "invalid value 'q99'"),
        (
            vec!["--events", "5"],
            "required arguments were not provided",
        ),
        (vec!["--query", "q0", "--rate", "0"], "invalid value '0'"),
        (
            vec!["--query", "q0", "--topic", "a", "--events", "5"],
            "cannot be used with",
        ),
    ] {
        let (succeeds, error) = run(dir.path(), &options)?;
        assert!(!succeeds && error.contains(reason), "{options:?}: {error}");
    }
    let missing = ["--query", "q0", "--topic", "missing", "--until-now"];
    let (succeeds, error) = run(dir.path(), &missing)?;
    assert!(
        !succeeds && error.starts_with("error: topic missing"),
        "{error}"
    );
    let node = Node::embedded(dir.path())?;
    assert!(node.topic("nexmark.q0").json::<Value>().read_all().is_err());
    Ok(())
}
