//! Every case runs, at a small size, so that no benchmark breaks unseen.

use std::process::Command;

use serde_json::Value;

#[test]
fn every_case_of_the_log_runs() {
    let dir = tempfile::tempdir().unwrap();
    let bench = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_millstream-bench"))
            .args(["log", "--quick", "--json", "--out"])
            .arg(dir.path())
            .args(words)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let report = bench(&[]);
    let cases = report["cases"].as_array().unwrap();
    assert!(cases.len() >= 15, "{report}");
    for case in cases {
        assert!(case["ours"].as_f64().is_some_and(f64::is_finite), "{case}");
        let name = case["case"].as_str().unwrap().replace('/', "-");
        let rounds = case["rounds"]["ours"].as_array().unwrap().len();
        let is_drawn = dir.path().join(format!("{name}.png")).exists();
        assert_eq!(is_drawn, rounds > 1, "{name}");
    }
    assert!(dir.path().join("ratios.png").exists());
    // Nothing of the data stays, and one case alone leaves the results of the others in place.
    let left = std::fs::read_dir(dir.path().join("data")).unwrap().count();
    assert_eq!(left, 0);
    let one = bench(&["--case", "append-memory"]);
    assert_eq!(one["cases"].as_array().unwrap().len(), 1);
    let stored = std::fs::read(dir.path().join("log.json")).unwrap();
    let stored: Value = serde_json::from_slice(&stored).unwrap();
    assert_eq!(stored["cases"].as_array().unwrap().len(), cases.len());
}
