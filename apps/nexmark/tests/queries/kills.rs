//! The program, killed in the midst of a query: each event counts once.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use millstream::{Error, Node};
use millstream_nexmark::{Event, EventGenerator, START};
use millstream_testing::start;
use serde_json::Value;

use super::program::{LIMIT, command};
use super::{GENERATOR, answers, folded, records, sorted};

const EVENTS: u64 = 40_000;

/// The kills of a query with more results than before.
const KILLS: usize = 3;

/// By how much later each run is killed than the one before, in milliseconds.
const STEP_MS: u64 = 80;

fn check(
    query: &str,
    read: impl Fn(Vec<Value>) -> Vec<Value>,
    answer: fn(&[Event]) -> Vec<Value>,
) -> Result<(), Error> {
    let generator = EventGenerator {
        start: START,
        ..GENERATOR
    };
    let (count, rate) = (EVENTS.to_string(), generator.rate.to_string());
    let seed = generator.seed.to_string();
    let options = [
        "--query",
        query,
        "--events",
        &count,
        "--rate",
        &rate,
        "--seed",
        &seed,
        "--sources",
        "2",
    ];
    let topic = format!("nexmark.{query}");
    let dir = tempfile::tempdir()?;
    let results = || -> Result<usize, Error> {
        let node = Node::embedded(dir.path())?;
        Ok(records(&node, &topic).map_or(0, |results| results.len()))
    };
    let (mut found, started_at) = (BTreeSet::new(), Instant::now());
    for after_ms in (1..).map(|run| run * STEP_MS) {
        let mut run = start(&mut command(dir.path(), &options), LIMIT)?;
        thread::sleep(Duration::from_millis(after_ms));
        let has_ended = run.try_wait()?.is_some();
        run.kill()?;
        run.wait()?;
        found.insert(results()?);
        // No results and those of some kills.
        if has_ended || found.len() > KILLS {
            break;
        }
        assert!(started_at.elapsed() < LIMIT, "no run has results");
    }
    let status = start(&mut command(dir.path(), &options), LIMIT)?.wait()?;
    assert!(status.success(), "{status}");
    let all = results()?;
    let is_in_the_midst = |found: &usize| (1..all).contains(found);
    assert!(found.iter().any(is_in_the_midst), "{found:?} of {all}");

    let events: Vec<Event> = (0..EVENTS).map(|number| generator.event(number)).collect();
    let node = Node::embedded(dir.path())?;
    assert_eq!(
        sorted(read(records(&node, &topic)?)),
        sorted(answer(&events))
    );
    Ok(())
}

#[test]
fn changes_are_exact_however_often_the_query_is_killed() -> Result<(), Error> {
    check("q17", folded, answers::q17)
}

#[test]
fn windows_are_exact_however_often_the_query_is_killed() -> Result<(), Error> {
    check("q5", super::same, answers::q5)
}
