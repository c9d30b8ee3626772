//! Every case runs, at a small size, so that no benchmark breaks unseen. A flow that loses a wake-up fails its case.

use std::path::Path;

use serde_json::Value;

/// Runs a benchmark and gives its report.
fn run(name: &str, out: &Path, words: &[&str]) -> Value {
    let output = millstream_testing::command(env!("CARGO_BIN_EXE_millstream-bench"))
        .args([name, "--quick", "--json", "--out"])
        .arg(out)
        .args(words)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Runs all cases of a benchmark, and one alone, which gives this number of figures.
#[track_caller]
fn check(name: &str, cases_min: usize, one: &str, numbers: usize) {
    let dir = tempfile::tempdir().unwrap();
    let report = run(name, dir.path(), &[]);
    let out = dir.path().join(name);
    let cases = report["cases"].as_array().unwrap();
    assert!(cases.len() >= cases_min, "{report}");
    for case in cases {
        assert!(case["ours"].as_f64().is_some_and(f64::is_finite), "{case}");
        let name = case["case"].as_str().unwrap().replace('/', "-");
        let rounds = case["rounds"]["ours"].as_array().unwrap().len();
        let is_drawn = out.join(format!("{name}.png")).exists();
        assert_eq!(is_drawn, rounds > 1, "{name}");
    }
    assert!(out.join("ratios.png").exists());
    // Nothing of the data stays, and one case alone leaves the results of the others in place.
    let left = std::fs::read_dir(out.join("data")).unwrap().count();
    assert_eq!(left, 0);
    let report = run(name, dir.path(), &["--case", one]);
    assert_eq!(report["cases"].as_array().unwrap().len(), numbers);
    let stored = std::fs::read(out.join(format!("{name}.json"))).unwrap();
    let stored: Value = serde_json::from_slice(&stored).unwrap();
    assert_eq!(stored["cases"].as_array().unwrap().len(), cases.len());
}

#[test]
fn every_case_of_the_log_runs() {
    check("log", 15, "append-memory", 1);
}

/// But for the network where there is no server, and for Valkey where it is not installed.
#[test]
fn every_case_of_keys_runs() {
    let program = Path::new(env!("CARGO_BIN_EXE_millstream-bench")).with_file_name("millstream");
    let cases_of_server = if program.exists() { 22 } else { 0 };
    check("keys", 14 + cases_of_server, "put", 2);
}

/// But for the peers, which take tools that are not everywhere: those that are built run, too.
#[test]
fn every_case_of_the_engine_runs() {
    check("engine", 17, "kills", 2);
}

/// But for librdkafka's program, where it is not built, and for Kafka, which takes long to start.
#[test]
fn every_case_of_the_broker_runs() {
    let program = Path::new(env!("CARGO_BIN_EXE_millstream-bench")).with_file_name("millstream");
    if program.exists() {
        check("broker", 11, "resources", 3);
    } else {
        eprintln!("left out: {program:?} is not built");
    }
}

#[test]
fn every_case_of_push_runs() {
    check("push", 20, "idle", 1);
}

/// But for Flink and Spark, which take long to start, and for timely dataflow where it is not built.
#[test]
fn ads_are_counted_in_windows() {
    for name in ["swa", "ysb", "ysb-star"] {
        let dir = tempfile::tempdir().unwrap();
        let report = run(name, dir.path(), &[]);
        let case = &report["cases"][0];
        assert_eq!(case["case"], "throughput", "{report}");
        let rounds = case["rounds"]["ours"].as_array().unwrap();
        let fit = case["details"]["rounds_within_the_budget"].as_f64();
        assert!(
            !rounds.is_empty() && rounds.len() as f64 <= fit.unwrap(),
            "{report}"
        );
        assert!(report["commit"].is_string(), "{report}");
        let out = dir.path().join(name);
        for picture in ["sustainable.png", "latency-by-rate.png"] {
            assert!(out.join(picture).exists());
        }
        let csv = std::fs::read_to_string(out.join("rates.csv")).unwrap();
        assert!(
            csv.contains("\nours,1,0,") && csv.contains("\nby hand,1,0,"),
            "{csv}"
        );
    }
}

/// A few clients of each kind, and a server that is killed in the middle.
#[test]
fn a_short_soak_passes() {
    let program = Path::new(env!("CARGO_BIN_EXE_millstream-bench")).with_file_name("millstream");
    if program.exists() {
        let dir = tempfile::tempdir().unwrap();
        let report = run("soak", dir.path(), &[]);
        assert!(report["cases"].as_array().unwrap().len() >= 5, "{report}");
    } else {
        eprintln!("left out: {program:?} is not built");
    }
}

#[test]
fn the_engine_draws_its_throughput_over_time() {
    let dir = tempfile::tempdir().unwrap();
    run("engine", dir.path(), &["--case", "equilibrium"]);
    let out = dir.path().join("engine");
    assert!(out.join("equilibrium-throughput.png").exists());
    let csv = std::fs::read_to_string(out.join("equilibrium-throughput.csv")).unwrap();
    assert!(csv.lines().count() > 5, "{csv}");
    assert!(csv.starts_with("round,contender,seconds,mb_per_s\n1,ours,"));
}

#[test]
fn every_case_of_windows_runs() {
    check("windows", 44, "count", 4);
}

/// But for Flink, which takes long to start.
#[test]
fn every_case_of_state_runs() {
    check("state", 10, "throughput", 3);
}

/// But for Flink, which takes long to start.
#[test]
fn every_case_of_nexmark_runs() {
    check("nexmark", 44, "q5", 2);
}

/// But for Valkey where it is not installed.
#[test]
fn every_case_of_serving_runs() {
    check("serving", 11, "freshness", 2);
}

#[test]
fn tasks_with_an_objective_run_beside_analytics() {
    let dir = tempfile::tempdir().unwrap();
    let report = run("slo", dir.path(), &[]);
    let cases = report["cases"].as_array().unwrap();
    let names: Vec<&str> = cases
        .iter()
        .map(|case| case["case"].as_str().unwrap())
        .collect();
    let expected = ["peak-90", "peak-150"].map(|peak| {
        let figures = ["within-30-ms", "analytics"];
        figures.map(|figure| format!("{peak}/{figure}"))
    });
    assert_eq!(names, expected.as_flattened());
    for case in cases {
        let percent = case["ours"].as_f64().unwrap();
        assert!(percent > 0.0 && percent < 101.0, "{case}");
    }
    let out = dir.path().join("slo");
    for peak in ["peak-90", "peak-150"] {
        for picture in ["load", "latency"] {
            assert!(out.join(format!("{peak}-{picture}.png")).exists());
        }
        let csv = std::fs::read_to_string(out.join(format!("{peak}.csv"))).unwrap();
        assert!(csv.lines().count() > 10, "{csv}");
        assert!(csv.starts_with("round,seconds,rate_per_s,"), "{csv}");
    }
}

/// But for processes, where there is no MPI.
#[test]
fn every_case_of_ranks_runs() {
    let program = Path::new(env!("CARGO_BIN_EXE_millstream-bench")).with_file_name("millstream");
    if program.exists() {
        check("ranks", 24, "pipelining", 4);
    } else {
        eprintln!("left out: {program:?} is not built");
    }
}
