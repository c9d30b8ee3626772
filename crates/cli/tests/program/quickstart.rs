//! The main job: words of files, and ads.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use millstream_ads::{Event, Kind, WINDOW_MS, campaign_of_ads};
use millstream_base::{ByteSize, Offset};
use millstream_log::{Log, LogConfig, StreamConfig};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::{
    address_of, finish, get, get_json, program, run, run_with_input, send_signal, spawn, wait_until,
};

/// Counts words in the plainest way.
fn count(text: &[u8]) -> HashMap<&[u8], u64> {
    let mut counts = HashMap::new();
    let is_white = |byte: &u8| b" \t\n\x0b\x0c\r".contains(byte);
    for word in text.split(is_white).filter(|word| !word.is_empty()) {
        *counts.entry(word).or_default() += 1;
    }
    counts
}

#[track_caller]
fn check_report(report: &Value, text: &[u8], prefix: &str) {
    let counts = count(text);
    let words: u64 = counts.values().sum();
    let prefixed = counts
        .iter()
        .filter(|(word, _)| word.starts_with(prefix.as_bytes()));
    let prefixed: u64 = prefixed.map(|(_, count)| count).sum();
    let mut top: Vec<_> = counts.into_iter().collect();
    top.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    top.truncate(20);
    let top: Vec<_> = top
        .into_iter()
        .map(|(word, count)| json!([String::from_utf8_lossy(word), count]))
        .collect();
    assert_eq!(report["words"], words);
    assert_eq!(report["prefixed_words"], prefixed);
    assert_eq!(report["top"], json!(top));
}

/// Text with all that is awkward: no UTF-8, words of every length, all kinds of white space, zeros.
pub fn awkward_text() -> Vec<u8> {
    let mut random = 12345_u32;
    let mut text = Vec::new();
    for _ in 0..200_000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        text.push(match random >> 24 {
            0..=9 => b"\t\x0b\x0c\r"[(random >> 16) as usize % 4],
            10..=39 => b' ',
            40..=49 => b'\n',
            50..=59 => 0xE4,
            60 => 0,
            byte => b'a' + (byte % 3) as u8,
        });
    }
    text
}

#[test]
fn words_of_several_files_and_of_stdin_are_counted() {
    let dir = tempdir().unwrap();
    let text = awkward_text();
    let (first, second) = text.split_at(70_000);
    fs::write(dir.path().join("first"), first).unwrap();
    fs::write(dir.path().join("empty"), "").unwrap();
    let first_name = dir.path().join("first");
    let empty_name = dir.path().join("empty");
    let run = run_with_input(
        &dir.path().join("data"),
        &[
            "quickstart",
            "--json",
            "--prefix",
            "ab",
            "--file",
            first_name.to_str().unwrap(),
            "--file",
            empty_name.to_str().unwrap(),
            "--file",
            "-",
        ],
        second.to_vec(),
    );
    let report = run.assert_done().json();
    // The files are not glued together.
    let all = [first, b"\n", second].concat();
    check_report(&report, &all, "ab");
    let lines = |text: &[u8]| text.split_inclusive(|byte| *byte == b'\n').count();
    let records = lines(first) + lines(second);
    let line_ends = text.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(report["ingested_records"], records);
    assert_eq!(report["durable_records"], records);
    assert_eq!(report["ingested_bytes"], text.len() - line_ends);
    assert!(report["seconds"].as_f64() > Some(0.0));
    assert_eq!(report["retain_bytes"], json!({ "lines": null }));
    assert_eq!(report.as_object().unwrap().len(), 8);
}

#[test]
fn the_events_have_a_bound_that_the_user_may_change() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    let args = ["quickstart", "--rate", "1000", "--for", "300ms"];
    let args = [&args[..], &["--http", "127.0.0.1:0"]].concat();
    let kept = |events| {
        format!(
            "ads keeps {events}, ads.dead_letters keeps all records, campaign_counts keeps all records; `millstream \
             stream alter STREAM --retain-bytes SIZE` changes that"
        )
    };
    let first = run(&data, &args).assert_done().stderr;
    assert!(first.contains(&kept("the newest 4 GiB")), "{first}");
    let alter = ["stream", "alter", "ads", "--retain-bytes", "none"];
    run(&data, &alter).assert_done();
    let second = run(&data, &args).assert_done().stderr;
    assert!(second.contains(&kept("all records")), "{second}");
    let alter = ["stream", "alter", "campaign_counts", "--retain-bytes"];
    run(&data, &[&alter[..], &["1MiB"]].concat()).assert_done();
    let report = run(&data, &[&args[..], &["--json"]].concat());
    let expected = json!({ "ads": null, "ads.dead_letters": null, "campaign_counts": 1 << 20 });
    assert_eq!(report.assert_done().json()["retain_bytes"], expected);
}

#[test]
fn a_second_run_counts_the_records_of_the_first() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    let args = ["quickstart", "--json", "--file", "-"];
    run_with_input(&data, &args, b"an apple\n".to_vec()).assert_done();
    let report = run_with_input(&data, &args, b"an egg".to_vec())
        .assert_done()
        .json();
    check_report(&report, b"an apple an egg", "a");
    assert_eq!(report["ingested_records"], 1);
    assert_eq!(report["durable_records"], 2);
    let lines = run(&data, &["consume", "lines"]).assert_done();
    assert_eq!(lines.text(), "an apple\nan egg\n");
}

#[test]
fn the_default_output_is_a_table() {
    let dir = tempdir().unwrap();
    let args = ["quickstart", "--file", "-"];
    let run = run_with_input(&dir.path().join("data"), &args, b"b a b".to_vec()).assert_done();
    let text = run.text();
    assert!(
        text.starts_with("word  count\nb         2\na         1\n3 words, 1 of"),
        "{text}"
    );
}

#[test]
fn reports_count_one_in_the_singular() {
    let dir = tempdir().unwrap();
    let args = ["quickstart", "--file", "-"];
    let text = run_with_input(&dir.path().join("data"), &args, b"a".to_vec()).text();
    let expected = "1 word, 1 of them starts with \"a\", in 1 line; 1 line taken in";
    assert!(text.contains(expected), "{text}");
    let data = dir.path().join("more");
    run(&data, &["stream", "create", "s"]).assert_done();
    let produced = run_with_input(&data, &["produce", "s"], b"a".to_vec());
    assert_eq!(produced.text(), "1 record appended to s\n");
}

#[test]
fn a_temporary_folder_is_named_and_removed() {
    let dir = tempdir().unwrap();
    let mut command = crate::support::program();
    command
        .args(["quickstart", "--file", "-"])
        .env("TMPDIR", dir.path());
    let run = finish(command.spawn().unwrap()).assert_done();
    assert!(
        run.stderr.contains(dir.path().to_str().unwrap()),
        "{}",
        run.stderr
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Real books, whose words were counted by another program.
#[test]
fn counts_of_real_books_equal_those_of_another_program() {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = std::env::var_os("MILLSTREAM_TEST_DATA").map_or(beside, PathBuf::from);
    let Ok(answers) = fs::read(folder.join("answers/text.json")) else {
        eprintln!(
            "skipped: there are no answers in {}; set MILLSTREAM_TEST_DATA",
            folder.display()
        );
        return;
    };
    let answers: Value = serde_json::from_slice(&answers).unwrap();
    let mut checked = 0;
    for (name, answer) in answers["files"].as_object().unwrap() {
        let Ok(packed) = fs::read(folder.join(format!("{name}.zst"))) else {
            eprintln!("skipped: {name}");
            continue;
        };
        let mut text = Vec::new();
        zstd::Decoder::new(&packed[..])
            .unwrap()
            .read_to_end(&mut text)
            .unwrap();
        let dir = tempdir().unwrap();
        let path = dir.path().join("text");
        fs::write(&path, &text).unwrap();
        let args = ["quickstart", "--json", "--file", path.to_str().unwrap()];
        let report = run(&dir.path().join("data"), &args).assert_done().json();
        check_report(&report, &text, "a");
        assert_eq!(report["words"], answer["words"], "{name}");
        if let Some(prefixed) = answer.get("words_starting_with_lowercase_a") {
            assert_eq!(report["prefixed_words"], *prefixed, "{name}");
        }
        checked += 1;
    }
    assert!(checked > 0);
}

/// Views and clicks, by campaign and start of the window.
type Windows = BTreeMap<(u64, i64), [u64; 2]>;

/// The content of the stream `ads`: events, views, clicks, and the latter two by window.
fn recount(data: &Path) -> ([u64; 3], Windows) {
    let events = run(data, &["consume", "ads"]).assert_done().stdout;
    let campaigns = campaign_of_ads();
    let mut sums = [0; 3];
    let mut windows = Windows::new();
    // A line end behind each event, which may have others within.
    for event in events.chunks(137) {
        assert_eq!(event[136], b'\n');
        let event = Event::decode(&event[..136]).unwrap();
        sums[0] += 1;
        let kind = match event.kind {
            Kind::View => 0,
            Kind::Click => 1,
            Kind::Purchase => continue,
        };
        sums[1 + kind] += 1;
        let campaign = campaigns[event.ad.0 as usize].0.into();
        let start = event.time.0.div_euclid(WINDOW_MS) * WINDOW_MS;
        windows.entry((campaign, start)).or_default()[kind] += 1;
    }
    (sums, windows)
}

/// The content of the stream of results, which has each window once.
#[track_caller]
fn results(data: &Path) -> Windows {
    let results = run(data, &["consume", "campaign_counts"])
        .assert_done()
        .text();
    let mut windows = Windows::new();
    for line in results.lines() {
        let result: Value = serde_json::from_str(line).unwrap();
        let number = |name: &str| result[name].as_u64().unwrap();
        let start = result["window_start"].as_i64().unwrap();
        let counts = [number("views"), number("clicks")];
        let before = windows.insert((number("campaign"), start), counts);
        assert_eq!(before, None, "{line} is there twice");
    }
    windows
}

#[test]
fn ads_are_counted_exactly_also_by_the_next_run() {
    let dir = tempdir().unwrap();
    let args = [
        "quickstart",
        "--json",
        "--for",
        "1s",
        "--rate",
        "20000",
        "--http",
        "127.0.0.1:0",
    ];
    let mut stored = 0;
    for _ in 0..2 {
        let report = run(dir.path(), &args).assert_done().json();
        let ingested = report["ingested_records"].as_u64().unwrap();
        assert!(ingested > 1000);
        stored += ingested;
        assert_eq!(report["ingested_bytes"], 136 * ingested);
        let ([events, views, clicks], windows) = recount(dir.path());
        assert_eq!(events, stored);
        for (name, expected) in [
            ("durable_records", events),
            ("events", events),
            ("views", views),
            ("clicks", clicks),
            ("counted", views + clicks),
            ("windows", windows.len() as u64),
        ] {
            assert_eq!(report[name], expected, "{name}");
        }
        // Windows that are open at the end of a run are left to the next one.
        for (window, counts) in results(dir.path()) {
            assert_eq!(counts, windows[&window], "{window:?}");
        }
    }
}

/// Removes all but the last record of a stream, as retention does.
fn remove_oldest(data: &Path, stream: &str) {
    let log = Log::open(LogConfig::new(data)).unwrap();
    let lane = log.stream(stream).unwrap().partition(0).unwrap();
    let last = Offset(lane.last_stable_offset().0 - 1);
    for removed in log.delete_before(&[(lane, last)]) {
        assert_eq!(removed.unwrap(), last);
    }
    log.close().unwrap();
}

/// A figure of `/metrics`, 0 where it is absent.
fn figure(address: &str, name: &str) -> f64 {
    let metrics = get(address, "/metrics");
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(0.0, |value| value.trim().parse().unwrap())
}

#[test]
fn a_second_start_resumes_from_the_checkpoint_of_a_killed_one_and_counts_removed_records() {
    let dir = tempdir().unwrap();
    let args = ["quickstart", "--rate", "max", "--http", "127.0.0.1:0"];
    let mut child = spawn(dir.path(), &args);
    let address = address_of(&mut child);
    wait_until("two checkpoints are kept", || {
        figure(&address, "millstream_flow_checkpoints_total{flow=\"ads\"}") >= 2.0
    });
    child.kill().unwrap();
    finish(child);
    let ([before, ..], _) = recount(dir.path());

    // The second run counts the rest, and stops in order. A busy machine may make no event in less time.
    let goes_on = [&args[..], &["--json", "--for", "1s"]].concat();
    let report = run(dir.path(), &goes_on).assert_done().json();
    let ([events, views, clicks], _) = recount(dir.path());
    assert!(events > before);
    assert_eq!(report["events"], events);
    assert_eq!(report["counted"], views + clicks);

    // Now the events go: all counts stay.
    remove_oldest(dir.path(), "ads");
    let args = [&args[..], &["--json", "--for", "100ms"]].concat();
    let report = run(dir.path(), &args).assert_done().json();
    let ingested = report["ingested_records"].as_u64().unwrap();
    assert_eq!(report["events"], events + ingested);
    let kept = recount(dir.path()).0[0];
    assert!(
        kept < events,
        "retention has removed nothing: {kept} of {events}"
    );

    // A new count covers only the stored records.
    let report = run(dir.path(), &[&args[..], &["--anew"]].concat())
        .assert_done()
        .json();
    let read = report["events"].as_u64().unwrap();
    assert!(read < events, "{read} of {events}");
}

#[test]
fn retention_keeps_the_events_behind_the_last_checkpoint() {
    let dir = tempdir().unwrap();
    let open = || Log::open(LogConfig::new(dir.path())).unwrap();
    let log = open();
    let config = StreamConfig {
        segment: ByteSize(64 << 10),
        group_segments: 1,
        retention: Some(ByteSize(1 << 20)),
        ..StreamConfig::default()
    };
    log.create_stream("ads", config).unwrap();
    log.close().unwrap();
    let args = ["quickstart", "--rate", "max", "--http", "127.0.0.1:0"];
    for _ in 0..3 {
        let mut child = spawn(dir.path(), &args);
        let address = address_of(&mut child);
        wait_until("more events than the stream keeps have come", || {
            figure(&address, "millstream_ingested_records_total") >= 20_000.0
        });
        child.kill().unwrap();
        finish(child);
        let log = open();
        let lane = log.stream("ads").unwrap().partition(0).unwrap();
        let kept = lane.earliest_offset();
        wait_until(
            "the events are in their files, and retention removes some",
            || {
                log.apply_retention().unwrap();
                lane.earliest_offset() > kept
            },
        );
        log.close().unwrap();
    }
    let report = run(
        dir.path(),
        &[&args[..], &["--json", "--for", "100ms"]].concat(),
    );
    let report = report.assert_done().json();
    let log = open();
    let lane = log.stream("ads").unwrap().partition(0).unwrap();
    assert_eq!(report["events"], lane.next_offset().0);
}

#[test]
fn words_resume_from_the_checkpoint_and_count_removed_records() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    let args = ["quickstart", "--json", "--file", "-"];
    let text = format!("{}\n", "plum ".repeat(100)).repeat(20_000);
    run_with_input(&data, &args, text.clone().into_bytes()).assert_done();
    remove_oldest(&data, "lines");
    let report = run_with_input(&data, &args, b"an egg".to_vec())
        .assert_done()
        .json();
    assert_eq!(report["words"], 2_000_002);
    assert_eq!(report["durable_records"], 2);

    let mut child = spawn(&data, &[&args[..], &["--http", "127.0.0.1:0"]].concat());
    let address = address_of(&mut child);
    let stdin = child.stdin.as_mut().unwrap();
    stdin.write_all(b"an apple\n").unwrap();
    wait_until("the new words are counted with the old ones", || {
        get(&address, "/state/words/counts/an").ends_with("\r\n2")
    });
    assert!(get(&address, "/state/words/counts/plum").ends_with("\r\n2000000"));
    child.kill().unwrap();
    finish(child);
    let report = run_with_input(&data, &args, b"an ear".to_vec())
        .assert_done()
        .json();
    assert_eq!(report["words"], 2_000_006);
}

#[test]
fn a_checkpoint_of_another_stream_is_refused_with_the_remedy() {
    let dir = tempdir().unwrap();
    let args = ["quickstart", "--json", "--file", "-"];
    run_with_input(dir.path(), &args, b"an apple".to_vec()).assert_done();
    // The stream is made again: the checkpoint is of another one.
    run(dir.path(), &["stream", "delete", "lines"]).assert_done();
    run_with_input(dir.path(), &args, b"an egg".to_vec())
        .assert_fails(1, &["checkpoint", "--anew", "count everything again"]);
    let anew = [&args[..], &["--anew"]].concat();
    let report = run_with_input(dir.path(), &anew, b"a pear".to_vec()).assert_done();
    assert_eq!(report.json()["words"], 2);
}

#[test]
fn ads_are_served_until_sigterm() {
    let dir = tempdir().unwrap();
    let mut child = spawn(
        dir.path(),
        &["quickstart", "--rate", "50000", "--http", "127.0.0.1:0"],
    );
    let address = &address_of(&mut child);
    wait_until("campaign 7 has counts", || {
        get(address, "/state/ads/campaign_counts/7").contains("\"views\":")
    });
    assert!(get(address, "/api/v1/overview").contains("\"counted\":"));
    let metrics = get(address, "/metrics");
    for part in [
        "\nmillstream_ingested_records_total ",
        "\nmillstream_stage_items_in_total{flow=\"ads\",stage=\"count\"} ",
        "\nmillstream_flow_workers{flow=\"ads\"} ",
    ] {
        assert!(metrics.contains(part), "{metrics}");
    }

    send_signal(&child, Signal::TERM);
    let text = finish(child).assert_done().text();
    let number = |name: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].trim().replace(',', "").parse().unwrap()
    };
    let counted = number("views and clicks counted");
    assert_eq!(counted, number("views  ") + number("clicks  "));
    let ([_, views, clicks], _) = recount(dir.path());
    assert_eq!(counted, views + clicks);
}

#[test]
fn quickstart_serves_other_clients_at_the_listener_of_its_events() {
    let dir = tempdir().unwrap();
    let args = [
        "quickstart",
        "--listen",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
    ];
    let mut child = spawn(dir.path(), &args);
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut told = String::new();
    let address = loop {
        let start = told.len();
        assert!(stderr.read_line(&mut told).unwrap() > 0, "{told}");
        if let Some(address) = told[start..].strip_prefix("clients find it at ") {
            break address.trim().to_owned();
        }
    };
    child.stderr = Some(stderr.into_inner());
    let ask = |args: &[&str]| {
        let mut command = program();
        command.args(args).args(["--server", &address]);
        finish(command.stdin(Stdio::piped()).spawn().unwrap()).assert_done()
    };
    wait_until("there are events", || {
        let events = ask(&["consume", "ads", "--limit", "3", "--json"]).json();
        events["records"].as_array().unwrap().len() == 3
    });
    assert!(ask(&["stream", "list"]).text().contains("campaign_counts"));
    send_signal(&child, Signal::TERM);
    finish(child).assert_done();
    let locked = ["quickstart", "--authentication", "--for", "1s"];
    run(dir.path(), &locked).assert_fails(1, &["without logins", "millstream start"]);
    let open = ["quickstart", "--listen", "0.0.0.0:0", "--for", "1s"];
    run(dir.path(), &open).assert_fails(2, &["0.0.0.0:0"]);
}

#[test]
fn http_serves_the_counts_of_words_on_request() {
    let dir = tempdir().unwrap();
    let args = ["quickstart", "--file", "-", "--http", "127.0.0.1:0"];
    let mut child = spawn(&dir.path().join("data"), &args);
    let address = address_of(&mut child);
    let stdin = child.stdin.as_mut().unwrap();
    stdin.write_all(b"b a b\n").unwrap();
    wait_until("b is counted", || {
        get(&address, "/state/words/counts/b").ends_with("\r\n2")
    });
    assert_eq!(get_json(&address, "/api/v1/flows"), json!(["words"]));
    assert_eq!(
        get_json(&address, "/api/v1/overview")["ingested_records"],
        1
    );
    let metrics = get_json(&address, "/api/v1/flows/words/metrics");
    assert_eq!(metrics["stages"][0]["stage"], "lines");
    assert!(get(&address, "/metrics").contains("{flow=\"words\",stage=\"lines\"}"));
    drop(child.stdin.take());
    assert!(finish(child).assert_done().text().contains("3 words"));
}

#[test]
fn quickstart_accepts_all_workers_and_an_unlimited_rate() {
    let dir = tempdir().unwrap();
    let args = [
        "quickstart",
        "--json",
        "--for",
        "500ms",
        "--rate",
        "max",
        "--workers",
        "3",
        "--http",
        "127.0.0.1:0",
    ];
    let report = run(dir.path(), &args).assert_done().json();
    let sum = report["views"].as_u64().unwrap() + report["clicks"].as_u64().unwrap();
    assert_eq!(report["counted"], sum);
    assert_eq!(report["durable_records"], report["ingested_records"]);
}
