//! The applications in the program: their counts, their reports, and the input that they refuse.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Child;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Signal, geteuid};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::quickstart::awkward_text;
use crate::support::{Run, address_of, finish, get, get_json, program, send_signal, wait_until};

const STAGES: [&str; 4] = ["read", "split", "filter", "count"];

/// `millstream flow run logparser` on some files.
fn start(files: &[&Path], args: &[&str]) -> Child {
    let mut command = program();
    command.args(["flow", "run", "logparser"]).args(args);
    for file in files {
        command.arg("--file").arg(file);
    }
    command.spawn().unwrap()
}

fn logparser(files: &[&Path], args: &[&str]) -> Run {
    finish(start(files, args))
}

fn written(dir: &TempDir, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.path().join(name);
    fs::write(&path, content).unwrap();
    path
}

/// Words with the prefix, and all words, counted in the plainest way.
fn count(text: &[u8], prefix: &[u8]) -> (u64, u64) {
    let mut counts = (0, 0);
    let mut word = Vec::new();
    for byte in text.iter().chain(b"\n") {
        if !b" \t\n\x0b\x0c\r".contains(byte) {
            word.push(*byte);
            continue;
        }
        if !word.is_empty() {
            counts.0 += u64::from(word.starts_with(prefix));
            counts.1 += 1;
        }
        word.clear();
    }
    counts
}

#[track_caller]
fn check_counts(report: &Value, texts: &[&[u8]], prefix: &str) {
    let each = texts.iter().map(|text| count(text, prefix.as_bytes()));
    let (prefixed, words) = each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert_eq!(report["count"], prefixed, "{report}");
    assert_eq!(report["words"], words, "{report}");
    let bytes: usize = texts.iter().map(|text| text.len()).sum();
    assert_eq!(report["bytes"], bytes, "{report}");
}

fn names_of(object: &Value) -> BTreeSet<&str> {
    object
        .as_object()
        .unwrap()
        .keys()
        .map(|name| &**name)
        .collect()
}

#[test]
fn every_way_to_run_the_log_parser_counts_as_a_plain_loop_does() {
    let dir = tempdir().unwrap();
    let text = awkward_text();
    // One has no line end at its end, and the other begins within a word.
    let (first, second) = text.split_at(130_000);
    let files = [
        written(&dir, "first", first),
        written(&dir, "second", second),
    ];
    let files = [&*files[0], &*files[1]];
    for stages in ["fused", "separate"] {
        for workers in ["1", "2"] {
            for scheduler in ["priority", "round-robin"] {
                for order in ["kept", "free"] {
                    let args = [
                        "--stages",
                        stages,
                        "--workers",
                        workers,
                        "--scheduler",
                        scheduler,
                        "--order",
                        order,
                        "--prefix",
                        "ab",
                        "--json",
                    ];
                    let report = logparser(&files, &args).assert_done().json();
                    check_counts(&report, &[first, second], "ab");
                }
            }
        }
    }
}

#[test]
fn the_report_has_the_fields_that_the_help_lists() {
    let dir = tempdir().unwrap();
    let text = "an apple and a pear\n".repeat(200_000);
    let file = written(&dir, "text", &text);
    for (stages, names) in [("fused", &STAGES[..1]), ("separate", &STAGES)] {
        let args = ["--stages", stages, "--json"];
        let run = logparser(&[&file], &args).assert_done();
        assert_eq!(run.stderr, "");
        let report = run.json();
        check_counts(&report, &[text.as_bytes()], "a");
        let mut fields = names_of(&report);
        // Only if the machine reports it.
        fields.remove("joules");
        let expected = "bytes bytes_before count cpu_seconds is_stopped latency seconds stages throughput \
                        words workers_replaced";
        assert!(fields.into_iter().eq(expected.split(' ')), "{report}");
        assert_eq!(report["is_stopped"], false);
        assert_eq!(report["workers_replaced"], 0);
        let seconds = report["seconds"].as_f64().unwrap();
        assert!(seconds > 0.0);
        assert!(report["cpu_seconds"].as_f64() > Some(0.0));

        // Rates by the lengths of their intervals add up to all bytes.
        let (mut from, mut sum) = (0.0, 0.0);
        for interval in report["throughput"].as_array().unwrap() {
            let [to, rate] = [0, 1].map(|index| interval[index].as_f64().unwrap());
            assert!(to > from && to <= seconds + 0.1, "{report}");
            sum += (to - from) * rate * 1e6;
            from = to;
        }
        // They are rounded to a thousandth of a second.
        let error = (sum / text.len() as f64 - 1.0).abs();
        assert!(error < 0.1, "{sum} {report}");

        let latency = &report["latency"];
        let steps = latency["histogram"].as_array().unwrap();
        let samples: u64 = steps.iter().map(|step| step[1].as_u64().unwrap()).sum();
        assert_eq!(latency["samples"], samples);
        // Each block is one.
        assert!(samples > 0, "{latency}");
        let percentiles = ["p50_us", "p90_us", "p99_us", "p999_us", "max_us"];
        // One of which there are too few samples is absent.
        let percentiles = percentiles.iter().filter_map(|name| latency[name].as_f64());
        let percentiles: Vec<f64> = percentiles.collect();
        assert!(
            !percentiles.is_empty() && percentiles.is_sorted(),
            "{latency}"
        );

        let found = report["stages"].as_array().unwrap();
        assert!(
            found
                .iter()
                .map(|stage| stage["stage"].as_str().unwrap())
                .eq(names.iter().copied())
        );
        for stage in found {
            assert!(stage["items_in"].as_u64() > Some(0), "{stage}");
            assert!(stage["activations"].as_u64() > Some(0), "{stage}");
            assert!(stage["busy_seconds"].as_f64() > Some(0.0), "{stage}");
            assert_eq!(stage["readable"], 0, "{stage}");
            assert_eq!(stage["dead_letters"], 0, "{stage}");
        }
        for pair in found.windows(2) {
            assert_eq!(pair[0]["items_out"], pair[1]["items_in"], "{report}");
        }
    }
}

#[test]
fn the_default_output_is_a_table() {
    let dir = tempdir().unwrap();
    let file = written(&dir, "text", "an apple\nand a pear\n");
    let text = logparser(&[&file], &["--stages", "separate", "--prefix", "an"])
        .assert_done()
        .text();
    let lines: Vec<&str> = text.lines().collect();
    let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
    assert_eq!(
        words(0),
        ["stage", "items", "time/item", "results/item", "busy"]
    );
    for (line, stage) in STAGES.into_iter().enumerate() {
        assert_eq!(words(line + 1)[..2], [stage, "1"], "{text}");
    }
    let last = lines.last().unwrap();
    let expected = "5 words, 2 of them start with \"an\", in 20 bytes; ";
    assert!(last.starts_with(expected), "{text}");
}

#[test]
fn binary_data_and_empty_files_are_counted_like_any() {
    let dir = tempdir().unwrap();
    let mut random = 1_u32;
    let binary: Vec<u8> = (0..500_000)
        .map(|_| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 24) as u8
        })
        .collect();
    let zeros = vec![0; 1_000_000];
    let texts: [&[u8]; 4] = [&binary, b"", b"\n", &zeros];
    for (index, text) in texts.into_iter().enumerate() {
        let file = written(&dir, &index.to_string(), text);
        for stages in ["fused", "separate"] {
            let args = ["--json", "--stages", stages, "--prefix", "a"];
            let report = logparser(&[&file], &args).assert_done().json();
            check_counts(&report, &[text], "a");
        }
    }
    // Every word starts with nothing.
    let report = logparser(&[&dir.path().join("0")], &["--json", "--prefix", ""]);
    check_counts(&report.assert_done().json(), &[&binary], "");
}

/// The columns of a file that `--record` wrote, by its first line.
fn columns(csv: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let names = lines.next().unwrap();
    let rows: Vec<_> = lines.collect();
    assert!(rows.iter().all(|row| row.len() == names.len()), "{csv}");
    let column = |index: usize| rows.iter().map(|row| row[index]).collect();
    let columns = names.iter().enumerate();
    columns
        .map(|(index, name)| (*name, column(index)))
        .collect()
}

#[test]
fn a_record_has_every_figure_of_every_stage_at_every_time() {
    let dir = tempdir().unwrap();
    let text = "an apple and a pear\n".repeat(1_000_000);
    let file = written(&dir, "text", &text);
    let record = dir.path().join("record.csv");
    let args = [
        "--json",
        "--stages",
        "separate",
        "--record",
        record.to_str().unwrap(),
    ];
    let report = logparser(&[&file], &args).assert_done().json();
    let csv = fs::read_to_string(&record).unwrap();
    let columns = columns(&csv);
    let mut expected = names_of(&report["stages"][0]);
    expected.extend(["seconds", "workers", "workers_replaced"]);
    let latencies = ["p50", "p90", "p99", "p999", "max"].map(|name| format!("latency_{name}_us"));
    expected.extend(latencies.iter().map(|name| &**name));
    assert!(columns.keys().copied().eq(expected), "{:?}", columns.keys());
    let times: Vec<f64> = columns["seconds"]
        .iter()
        .map(|at| at.parse().unwrap())
        .collect();
    assert!(times.is_sorted());
    assert_eq!(times.len() % STAGES.len(), 0);
    // Figures that only some stages have, and percentiles before there are enough samples.
    const MAY_BE_EMPTY: [&str; 10] = [
        "room",
        "capacity",
        "watermark_ms",
        "watermark_lag_seconds",
        "silent_seconds",
        "lag_records",
        "latency_p50_us",
        "latency_p90_us",
        "latency_p99_us",
        "latency_p999_us",
    ];
    for (name, cells) in &columns {
        for cell in cells {
            let may_be_empty = MAY_BE_EMPTY.contains(name) && cell.is_empty();
            let is_number = cell.parse::<f64>().is_ok_and(|number| number >= 0.0);
            assert!(
                *name == "stage" || may_be_empty || is_number,
                "{name}: {cell}"
            );
        }
    }
    // The last lines are the flow at its end.
    let end = times.len() - STAGES.len();
    assert_eq!(columns["stage"][end..], STAGES);
    for (index, stage) in report["stages"].as_array().unwrap().iter().enumerate() {
        for name in ["items_in", "items_out", "activations", "dead_letters"] {
            assert_eq!(
                columns[name][end + index],
                stage[name].to_string(),
                "{name}"
            );
        }
    }
    let took = report["seconds"].as_f64().unwrap();
    assert!((times[end] - took).abs() < 0.002, "{} {took}", times[end]);
}

#[test]
fn a_record_must_be_writable_and_must_not_overwrite_an_input() {
    let dir = tempdir().unwrap();
    let file = written(&dir, "text", "an apple\n");
    let link = dir.path().join("link");
    symlink(&file, &link).unwrap();
    for record in [&file, &link] {
        let record = record.to_str().unwrap();
        logparser(&[&file], &["--record", record]).assert_fails(1, &[record, "overwrite"]);
        assert_eq!(fs::read(&file).unwrap(), b"an apple\n");
    }
    let nowhere = dir.path().join("no-such-folder/record.csv");
    let nowhere = nowhere.to_str().unwrap();
    for record in [nowhere, dir.path().to_str().unwrap(), "/dev/full"] {
        logparser(&[&file], &["--record", record]).assert_fails(1, &["cannot write", record]);
    }
}

#[test]
fn workers_that_are_killed_are_replaced_and_the_count_is_right() {
    let dir = tempdir().unwrap();
    let text = "an apple and a pear\n".repeat(500_000);
    let file = written(&dir, "text", &text);
    for stages in ["fused", "separate"] {
        // As much work as it takes for some to die, however fast the machine is.
        let mut times = 4;
        loop {
            let args = ["--json", "--kill-workers", "60%/100ms", "--stages", stages];
            let report = logparser(&vec![&*file; times], &args).assert_done().json();
            check_counts(&report, &vec![text.as_bytes(); times], "a");
            if report["workers_replaced"].as_u64() > Some(1) {
                break;
            }
            times *= 2;
            assert!(times <= 256, "{report}");
        }
    }
}

#[test]
fn the_applications_are_listed() {
    let list = |args: &[&str]| {
        let mut command = program();
        finish(command.args(["flow", "list"]).args(args).spawn().unwrap()).assert_done()
    };
    let text = list(&[]).text();
    assert!(text.contains("\nlogparser  "), "{text}");
    let applications = list(&["--json"]).json();
    assert_eq!(applications["applications"][0]["name"], "logparser");
}

#[test]
fn files_that_cannot_be_read_are_named_before_anything_runs() {
    let dir = tempdir().unwrap();
    let good = written(&dir, "good", "text\n");
    let fifo = dir.path().join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let record = dir.path().join("record.csv");
    for (path, part) in [
        (dir.path().join("missing"), "No such file"),
        (dir.path().to_owned(), "folder"),
        (fifo, "no regular file"),
        ("/dev/null".into(), "no regular file"),
        (good.join("text"), "Not a directory"),
    ] {
        let name = path.to_str().unwrap();
        let args = ["--record", record.to_str().unwrap()];
        logparser(&[&good, &path], &args).assert_fails(1, &[name, part]);
        assert!(!record.exists());
    }
    logparser(&["-".as_ref()], &[]).assert_fails(1, &["stdin", "quickstart"]);
}

#[test]
fn a_file_without_permission_is_named() {
    let dir = tempdir().unwrap();
    let file = written(&dir, "secret", "text\n");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    if geteuid().is_root() {
        eprintln!("skipped: root may read every file");
        return;
    }
    logparser(&[&file], &[]).assert_fails(1, &[file.to_str().unwrap(), "Permission denied"]);
}

#[test]
fn a_line_of_more_than_8_mib_is_refused_with_its_place() {
    let dir = tempdir().unwrap();
    let mut text = b"first\nsecond\n".to_vec();
    text.resize(13 + (8 << 20), b'x');
    let longest = written(&dir, "longest", &text);
    text.push(b'x');
    let long = written(&dir, "long", [&text, &b"\nlast\n"[..]].concat());
    let name = long.to_str().unwrap();
    for stages in ["fused", "separate"] {
        for workers in ["1", "2"] {
            let args = ["--stages", stages, "--workers", workers];
            let parts = ["logparser", "\"read\"", name, "byte 13", "8 MiB"];
            logparser(&[&long], &args).assert_fails(1, &parts);
            let report = logparser(&[&longest], &[&args[..], &["--json"]].concat());
            assert_eq!(report.assert_done().json()["words"], 3);
        }
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_an_error() {
    let dir = tempdir().unwrap();
    let text = "an apple and a pear\n".repeat(400_000);
    let work = written(&dir, "work", &text);
    let name = dir.path().join("shrinking");
    for stages in ["fused", "separate"] {
        fs::write(&name, &text).unwrap();
        // It follows much other input, so that the flow has not read it yet when it shrinks.
        let mut files = vec![&*work; 20];
        files.push(&name);
        let mut child = start(&files, &["--stages", stages, "--http", "127.0.0.1:0"]);
        // It serves when all files are open.
        address_of(&mut child);
        File::options()
            .write(true)
            .open(&name)
            .unwrap()
            .set_len(1_000)
            .unwrap();
        let was = format!("had {} bytes", text.len());
        let parts = [
            "\"read\"",
            name.to_str().unwrap(),
            "shrunk",
            &was,
            "at 1000 now",
        ];
        finish(child).assert_fails(1, &parts);
    }
}

#[test]
fn wrong_values_are_wrong_usage() {
    let dir = tempdir().unwrap();
    let file = written(&dir, "text", "text\n");
    for (args, part) in [
        (["--workers", "0"], "from 1 to 1024"),
        (["--workers", "1025"], "from 1 to 1024"),
        (["--workers", "-1"], "from 1 to 1024"),
        (["--stages", "both"], "fused, separate"),
        (["--scheduler", "fair"], "priority, round-robin"),
        (["--order", "none"], "kept, free"),
        (["--kill-workers", "60"], "60%/4s"),
        (["--kill-workers", "0%/4s"], "from 1% to 100%"),
        (["--kill-workers", "101%/4s"], "from 1% to 100%"),
        (["--kill-workers", "60%/99ms"], "at least 100ms"),
        (["--kill-workers", "60%/0s"], "at least 100ms"),
        (["--http", "8080"], "127.0.0.1:8080"),
    ] {
        logparser(&[&file], &args).assert_fails(2, &[args[0], args[1], part]);
    }
    logparser(&[], &[]).assert_fails(2, &["--file"]);
    let mut command = program();
    let unknown = command.args(["flow", "run", "logpraser"]).spawn().unwrap();
    finish(unknown).assert_fails(2, &["logparser"]);
}

/// Starts to count a file again and again, with something to see of it over HTTP.
fn start_for_long(dir: &TempDir, args: &[&str]) -> (Child, String, u64) {
    let text = "an apple and a pear\n".repeat(1_000_000);
    let file = written(dir, "text", &text);
    let files = vec![&*file; 500];
    let args = [args, &["--http", "127.0.0.1:0"]].concat();
    let mut child = start(&files, &args);
    let address = address_of(&mut child);
    wait_until("some of it is read", || {
        get_json(&address, "/api/v1/overview")["bytes"].as_u64() > Some(0)
    });
    (child, address, 500 * text.len() as u64)
}

#[test]
fn ctrl_c_ends_a_flow_with_the_counts_so_far() {
    let dir = tempdir().unwrap();
    for stages in ["fused", "separate"] {
        let (child, _, bytes) = start_for_long(&dir, &["--json", "--stages", stages]);
        send_signal(&child, Signal::INT);
        let report = finish(child).assert_done().json();
        assert_eq!(report["is_stopped"], true);
        let read = report["bytes"].as_u64().unwrap();
        assert!(read > 0 && read < bytes, "{report}");
        // Blocks are of whole lines, of 20 bytes and 5 words each; 4 start with an a.
        assert_eq!(read % 20, 0);
        assert_eq!(report["words"], read / 4);
        assert_eq!(report["count"], read / 20 * 4);
    }
    let (child, ..) = start_for_long(&dir, &[]);
    send_signal(&child, Signal::TERM);
    let text = finish(child).assert_done().text();
    assert!(text.contains("\nstopped before the end: "), "{text}");
    assert!(
        text.contains(" of 10,000,000,000 bytes were read\n"),
        "{text}"
    );
}

#[test]
fn http_serves_the_progress_of_a_flow_on_request() {
    let dir = tempdir().unwrap();
    let (child, address, bytes) = start_for_long(&dir, &["--stages", "separate"]);
    assert_eq!(get_json(&address, "/api/v1/flows"), json!(["logparser"]));
    let overview = get_json(&address, "/api/v1/overview");
    assert_eq!(overview["flow"], "logparser");
    assert_eq!(overview["input_bytes"], bytes);
    let mut metrics = Value::Null;
    wait_until("a second has passed", || {
        metrics = get_json(&address, "/api/v1/flows/logparser/metrics");
        !metrics["throughput"].as_array().unwrap().is_empty()
    });
    let stages = metrics["stages"].as_array().unwrap();
    assert!(
        stages
            .iter()
            .map(|stage| stage["stage"].as_str().unwrap())
            .eq(STAGES)
    );
    let rates = metrics["throughput"][0]["items_per_second"]
        .as_array()
        .unwrap();
    assert!(
        rates.iter().all(|rate| rate.as_f64() > Some(0.0)),
        "{metrics}"
    );
    assert!(
        metrics["latency"]["samples"].as_u64() > Some(0),
        "{metrics}"
    );
    let text = get(&address, "/metrics");
    for stage in STAGES {
        let series =
            format!("\nmillstream_stage_items_in_total{{flow=\"logparser\",stage=\"{stage}\"}} ");
        assert!(text.contains(&series), "{text}");
    }
    assert!(text.contains("\nmillstream_flow_latency_seconds_count{flow=\"logparser\"} "));
    let count = get_json(&address, "/state/logparser/count/count").as_u64();
    assert!(count > Some(0));
    let unknown = get(&address, "/api/v1/flows/logpraser/metrics");
    assert!(unknown.starts_with("HTTP/1.1 404 "), "{unknown}");
    send_signal(&child, Signal::TERM);
    finish(child).assert_done();
    assert!(std::net::TcpStream::connect(&address).is_err());
}

#[test]
fn a_busy_http_port_fails_a_flow_only_if_the_user_named_it() {
    let dir = tempdir().unwrap();
    let file = written(&dir, "text", "text\n");
    // Another process may have the port already.
    let _default = TcpListener::bind("127.0.0.1:8080");
    let run = logparser(&[&file], &[]).assert_done();
    assert_eq!(run.stderr, "");
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap().to_string();
    logparser(&[&file], &["--http", &address]).assert_fails(1, &[&address, "--http", "in use"]);
}
