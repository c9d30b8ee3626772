//! Applications on several ranks: threads of one process, and processes under MPI.

use std::fs;

use serde_json::Value;
use tempfile::tempdir;

use crate::support::{Run, finish, program};

/// A regular file.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");

/// Lines with words that are seldom, frequent, and in between.
fn text(lines: usize) -> String {
    let line = |number: usize| format!("the {} of {number}\n", number % 7);
    (0..lines).map(line).collect()
}

fn words(args: &[&str]) -> Run {
    let mut command = program();
    command.args(["flow", "run", "words", "--json"]).args(args);
    finish(command.spawn().unwrap())
}

#[track_caller]
fn counts(report: &Value) -> (Value, u64, u64) {
    let number = |name: &str| report[name].as_u64().unwrap();
    (report["top"].clone(), number("words"), number("different"))
}

#[test]
fn words_are_the_same_on_any_number_of_ranks() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("text");
    fs::write(&path, text(40_000)).unwrap();
    let path = path.to_str().unwrap();
    let alone = words(&["--file", path]).json();
    assert_eq!(
        alone["top"][0],
        serde_json::json!({ "word": "of", "count": 40_000 })
    );
    assert_eq!(counts(&alone).1, 160_000);
    for args in [
        ["--ranks", "1", "--gather-at", "0"],
        ["--ranks", "3", "--gather-at", "2"],
        ["--ranks", "4", "--instances", "3"],
    ] {
        let report = words(&[&["--file", path], &args[..]].concat()).json();
        assert_eq!(counts(&report), counts(&alone), "{args:?}");
    }
}

#[test]
fn events_of_ads_are_all_counted_on_any_number_of_ranks() {
    for (application, ranks) in [("swa", "1"), ("ysb", "3"), ("ysb-star", "2")] {
        let mut command = program();
        command.args(["flow", "run", application, "--json", "--ranks", ranks]);
        command.args(["--for", "700ms", "--window", "200ms", "--rate", "200000"]);
        // It fails if a result is missing or wrong.
        let report = finish(command.spawn().unwrap()).assert_done().json();
        let events = report["events"].as_u64().unwrap();
        assert!(events > 0 && events <= 140_000, "{report}");
        assert_eq!(
            (&report["missing"], &report["ranks"]),
            (&0.into(), &ranks.parse::<u64>().unwrap().into())
        );
        assert!(report["results"].as_u64() > Some(0), "{report}");
    }
    let mut command = program();
    command.args(["flow", "run", "swa", "--window", "0s"]);
    finish(command.spawn().unwrap()).assert_fails(2, &["from 1ms to 24h"]);
}

#[test]
fn a_rank_that_fails_to_start_ends_all_ranks() {
    let run = words(&["--file", "/nowhere", "--ranks", "3"]);
    run.assert_fails(1, &["cannot read /nowhere"]);
    let run = words(&["--file", FILE, "--ranks", "3", "--gather-at", "3"]);
    run.assert_fails(1, &["names no rank: there are 3"]);
}

#[cfg(not(feature = "mpi"))]
#[test]
fn a_rank_of_a_program_without_mpi_is_refused_with_the_remedy() {
    let mut command = program();
    command.args(["flow", "run", "words", "--file", FILE]);
    command.env("OMPI_COMM_WORLD_SIZE", "2");
    let run = finish(command.spawn().unwrap());
    run.assert_fails(1, &["--features mpi"]);
}

#[cfg(feature = "mpi")]
mod mpi {
    use super::*;
    use crate::support;
    use std::time::{Duration, Instant};

    fn mpirun(processes: &[&[&str]]) -> Run {
        finish(support::mpirun(processes).spawn().unwrap())
    }

    #[test]
    fn words_are_the_same_on_any_number_of_processes() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("text");
        fs::write(&path, text(40_000)).unwrap();
        let path = path.to_str().unwrap();
        let alone = words(&["--file", path]).json();
        let args = ["words", "--json", "--file", path];
        for count in 1..=4 {
            let report = mpirun(&vec![&args[..]; count]).json();
            assert_eq!(counts(&report), counts(&alone), "{count} processes");
        }
    }

    #[test]
    fn all_processes_refuse_a_run_with_different_programs_or_arguments() {
        let args = ["words", "--file", FILE];
        let other = ["words", "--file", FILE, "--prefix", "a"];
        let run = mpirun(&[&args, &other]);
        assert!(!run.status.success());
        assert!(run.stderr.contains("--prefix a\""), "{}", run.stderr);
        let run = mpirun(&[&args, &["logparser", "--file", FILE]]);
        assert!(!run.status.success());
        assert!(run.stderr.contains("it runs the program"), "{}", run.stderr);
    }

    #[test]
    fn a_process_that_fails_to_start_ends_all_processes() {
        let started_at = Instant::now();
        let run = mpirun(&[&["words", "--file", FILE], &["words", "--file", "/nowhere"]]);
        assert!(!run.status.success());
        assert!(
            run.stderr.contains("cannot read /nowhere"),
            "{}",
            run.stderr
        );
        assert!(started_at.elapsed() < Duration::from_secs(60));
    }
}
