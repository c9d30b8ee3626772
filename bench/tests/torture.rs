//! Random trials of a minute: each run has another seed, which is printed.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

#[test]
fn a_minute_of_torture_finds_nothing() {
    let bench = Path::new(env!("CARGO_BIN_EXE_millstream-bench"));
    let program = bench.with_file_name("millstream");
    if !program.exists() {
        eprintln!("left out: {program:?} is not built");
        return;
    }
    // The files of a finding stay there until the next run. The seed is seen also where the test succeeds, since the test's
    // harness does not capture what another process prints.
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("torture");
    let output = Command::new(bench)
        .args(["torture", "--for", "60s", "--json", "--out"])
        .arg(&out)
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "there are findings: see above");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let trials = &report["cases"][0];
    assert_eq!(trials["case"], "trials", "{report}");
    assert!(
        trials["details"]["run_s"].as_f64() >= Some(60.0),
        "{trials}"
    );
    assert!(
        trials["details"]["records_checked"].as_f64() > Some(0.0),
        "{trials}"
    );
}
