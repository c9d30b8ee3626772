//! Random trials with fixed seeds: kills, damage and repairs. Power cuts and full disks take a mount, so only
//! `make bench NAME=torture ARGS=--loop-disk` has them.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

/// The first seed, and the number of trials, that reach all kinds of crashes and damage. Every fourth is of a job.
const SEED: &str = "140";
const TRIALS: &str = "16";

/// All that the trials do.
const KINDS: [&str; 10] = [
    "kill",
    "kill-in-start",
    "stop",
    "flip",
    "cut",
    "swap",
    "copy",
    "remove-file",
    "remove-folder",
    "repair",
];

#[test]
fn torture_trials_find_no_violation() {
    let bench = Path::new(env!("CARGO_BIN_EXE_millstream-bench"));
    let program = bench.with_file_name("millstream");
    if !program.exists() {
        eprintln!("left out: {program:?} is not built");
        return;
    }
    // The files of a finding stay there until the next run. The output of the trials is visible also when the test
    // succeeds, since the test harness does not capture the output of other processes.
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("torture");
    let output = millstream_testing::command(bench)
        .args(["torture", "--seed", SEED, "--trials", TRIALS, "--json"])
        .arg("--out")
        .arg(&out)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "there are findings: see above");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let cases = report["cases"].as_array().unwrap();
    let case = |name: &str| cases.iter().find(|case| case["case"] == name);
    let trials = case("trials").unwrap();
    assert_eq!(trials["ours"].as_f64(), TRIALS.parse().ok(), "{trials}");
    assert!(
        trials["details"]["records_checked"].as_f64() > Some(0.0),
        "{trials}"
    );
    for kind in KINDS {
        assert!(
            case(&format!("trials/{kind}")).is_some(),
            "no {kind}: {report}"
        );
    }
}
