//! Killed applications resume from their checkpoints: their results equal those of undisturbed runs.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Child;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::support::{Run, finish, program, send_signal, wait_until};

/// Enough text that counting its words takes a while.
const LONG_MIB: usize = 64;

/// Enough text that the run takes a checkpoint.
const SHORT_MIB: usize = 8;

/// A folder with a text, and a place for checkpoints.
struct Place {
    dir: TempDir,
}

impl Place {
    fn new(text_mib: usize) -> Place {
        let dir = tempdir().unwrap();
        let lines =
            (0..100_000).map(|number| format!("the {} of {}\n", number % 1_000, number % 7));
        let mib: String = lines.collect::<String>()[..(1 << 20) - 4].to_owned() + " to\n";
        fs::write(dir.path().join("text"), mib.repeat(text_mib)).unwrap();
        Place { dir }
    }

    fn text(&self) -> String {
        let path = self.dir.path().join("text");
        path.to_str().unwrap().to_owned()
    }

    fn checkpoints(&self) -> PathBuf {
        self.dir.path().join("checkpoints")
    }

    /// The flags for checkpoints at this interval.
    fn keep(&self, interval: &str) -> Vec<String> {
        let dir = self.checkpoints().to_str().unwrap().to_owned();
        let interval = interval.to_owned();
        vec![
            "--checkpoints".to_owned(),
            dir,
            "--checkpoint-interval".to_owned(),
            interval,
        ]
    }

    /// The number of the last checkpoint of which all ranks have kept their parts; 0 for none.
    fn newest(&self, ranks: u32) -> u64 {
        let newest = |rank: u32| newest_part(&self.checkpoints(), rank);
        (0..ranks).map(newest).min().unwrap()
    }
}

fn newest_part(dir: &Path, rank: u32) -> u64 {
    let files = fs::read_dir(dir).into_iter().flatten();
    let numbers = files.filter_map(|file| {
        let name = file.ok()?.file_name().into_string().ok()?;
        let (number, of) = name.strip_prefix("checkpoint.")?.split_once('.')?;
        (of == rank.to_string()).then(|| number.parse().unwrap())
    });
    numbers.max().unwrap_or(0)
}

fn start(args: &[&str], more: &[String]) -> Child {
    let mut command = program();
    command.args(["flow", "run"]).args(args).args(more);
    command.arg("--json").spawn().unwrap()
}

fn run(args: &[&str], more: &[String]) -> Run {
    finish(start(args, more))
}

fn with(args: &[String], more: &[&str]) -> Vec<String> {
    let more = more.iter().map(|arg| (*arg).to_owned());
    args.iter().cloned().chain(more).collect()
}

/// Kills a run with SIGKILL when it has kept some checkpoints more.
fn kill(place: &Place, ranks: u32, args: &[&str], more: &[String]) {
    let before = place.newest(ranks);
    let mut child = start(args, more);
    wait_until("checkpoints are kept", || {
        place.newest(ranks) > before + 2 || child.try_wait().unwrap().is_some()
    });
    send_signal(&child, Signal::KILL);
    let run = finish(child);
    assert_eq!(run.status.signal(), Some(9), "{run:?}");
}

/// Kills a run and the one that resumes it, and lets the third run end.
fn kill_twice(place: &Place, ranks: u32, args: &[&str], interval: &str) -> Value {
    let keep = place.keep(interval);
    kill(place, ranks, args, &keep);
    let resume = with(&keep, &["--resume"]);
    kill(place, ranks, args, &resume);
    run(args, &resume).assert_done().json()
}

#[test]
fn words_that_were_counted_before_kills_are_counted_once() {
    let place = Place::new(LONG_MIB);
    let text = place.text();
    let args = ["words", "--file", &text, "--ranks", "2", "--top", "2000"];
    let alone = run(&args, &[]).assert_done().json();
    let resumed = kill_twice(&place, 2, &args, "10ms");
    for field in ["top", "words", "different"] {
        assert_eq!(resumed[field], alone[field], "{field}");
    }
}

#[test]
fn the_figures_of_a_resumed_log_parser_include_earlier_runs() {
    for stages in ["fused", "separate"] {
        let place = Place::new(LONG_MIB);
        let text = place.text();
        let args = [
            "logparser",
            "--file",
            &text,
            "--prefix",
            "9",
            "--stages",
            stages,
        ];
        let alone = run(&args, &[]).assert_done().json();
        let resumed = kill_twice(&place, 1, &args, "10ms");
        for field in ["count", "words", "bytes"] {
            assert_eq!(resumed[field], alone[field], "{field} with {stages}");
        }
        let before = resumed["bytes_before"].as_u64().unwrap();
        assert!(before > 0 && before <= alone["bytes"].as_u64().unwrap());
        assert_eq!(alone["bytes_before"], 0);
    }
}

const FOR_ADS: [&str; 6] = ["--for", "3s", "--window", "200ms", "--rate", "40000"];

fn check_ads(report: &Value) {
    assert_eq!(report["missing"], 0, "{report}");
    let events = report["events"].as_u64().unwrap();
    assert!(events > 0 && events <= 120_000, "{report}");
    // The seconds of all runs, without the time between them.
    let seconds = report["seconds"].as_f64().unwrap();
    assert!((2.9..20.0).contains(&seconds), "{report}");
}

#[test]
fn each_window_of_ads_has_one_right_result_after_kills() {
    for (application, ranks) in [("swa", 1), ("ysb", 2), ("ysb-star", 2)] {
        let place = Place::new(0);
        let ranks_text = ranks.to_string();
        let args = [&[application, "--ranks", &ranks_text][..], &FOR_ADS].concat();
        // It fails if a result is missing, wrong, or there twice.
        let report = kill_twice(&place, ranks, &args, "50ms");
        check_ads(&report);
    }
}

#[test]
fn resuming_needs_a_checkpoint_unless_the_user_permits_none() {
    let place = Place::new(1);
    let text = place.text();
    for ranks in ["1", "3"] {
        let args = ["words", "--file", &text, "--ranks", ranks];
        let failed = run(&args, &with(&place.keep("1ms"), &["--resume"]));
        failed.assert_fails(1, &["there is no checkpoint to resume from"]);
    }
    let args = ["words", "--file", &text, "--ranks", "2"];
    let alone = run(&args, &[]).assert_done().json();
    let done = run(&args, &with(&place.keep("1ms"), &["--resume=if-any"])).assert_done();
    assert_eq!(done.json()["top"], alone["top"]);
    run(&args, &["--resume".to_owned()]).assert_fails(2, &["--checkpoints"]);
    let never = with(&place.keep("1ms"), &["--resume=never"]);
    run(&args, &never).assert_fails(2, &["always, if-any"]);
    let interval = ["--checkpoint-interval", "1s"].map(str::to_owned);
    run(&args, &interval).assert_fails(2, &["--checkpoints"]);
}

#[test]
fn a_run_refuses_checkpoints_of_another_run_and_overwrites_none() {
    let place = Place::new(SHORT_MIB);
    let text = place.text();
    let args = ["words", "--file", &text, "--ranks", "2"];
    let keep = place.keep("1ms");
    let done = run(&args, &keep).assert_done();
    let again = "resume from it, or remove it first";
    run(&args, &keep).assert_fails(1, &[again]);
    let resume = with(&keep, &["--resume"]);
    let other = with(&resume, &["--prefix", "o"]);
    run(&args, &other).assert_fails(1, &["words that start with \"\"", "those with \"o\""]);
    let args_of_three = ["words", "--file", &text, "--ranks", "3"];
    run(&args_of_three, &resume).assert_fails(1, &["the shards of all 3 ranks"]);
    // A run that came to its end gives its result again.
    let top = |run: Run| run.assert_done().json()["top"].clone();
    assert_eq!(top(run(&args, &resume)), top(done));

    let place = Place::new(0);
    let args = [&["ysb", "--ranks", "1"][..], &FOR_ADS].concat();
    let keep = place.keep("50ms");
    kill(&place, 1, &args, &keep);
    let other = with(&keep, &["--resume", "--instances", "5"]);
    run(&args, &other).assert_fails(1, &[]);
    let mut args = args;
    args[6] = "100ms";
    let other = with(&keep, &["--resume"]);
    run(&args, &other).assert_fails(1, &["in windows of 200 ms", "in windows of 100 ms"]);
}

#[test]
fn a_second_run_refuses_the_checkpoint_directory_of_the_first() {
    let place = Place::new(1);
    let ads = ["swa", "--ranks", "2", "--for", "100s", "--rate", "1000"];
    let keep = place.keep("50ms");
    let mut first = start(&ads, &keep);
    wait_until("the first run keeps checkpoints", || {
        place.newest(2) > 1 || first.try_wait().unwrap().is_some()
    });
    let holder = format!("process {}", first.id());
    let text = place.text();
    let words = ["words", "--file", &text, "--ranks", "1"];
    for resume in [&[][..], &["--resume"], &["--resume=if-any"]] {
        let more = with(&keep, resume);
        for args in [&ads[..], &words] {
            let parts = ["in use by another run", &holder, "another directory"];
            run(args, &more).assert_fails(1, &parts);
        }
    }
    send_signal(&first, Signal::KILL);
    finish(first);
    // A killed process holds no lock any more: the next run keeps checkpoints.
    kill(&place, 2, &ads, &with(&keep, &["--resume"]));
}

#[test]
fn a_damaged_checkpoint_is_reported_with_the_remedy() {
    let place = Place::new(1);
    let text = place.text();
    let args = ["words", "--file", &text, "--ranks", "1"];
    let keep = place.keep("1ms");
    let alone = run(&args, &keep).assert_done().json();
    let number = place.newest(1);
    let path = place.checkpoints().join(format!("checkpoint.{number}.0"));
    let whole = fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    let name = path.to_str().unwrap();
    let resume = with(&keep, &["--resume"]);
    for (bytes, what) in [
        (&damaged[..], "its checksum is wrong"),
        (&whole[..3], "it is cut short"),
    ] {
        fs::write(&path, bytes).unwrap();
        let anew = "start it anew, without resuming";
        run(&args, &resume).assert_fails(1, &[name, what, "no older checkpoint", anew]);
    }
    // An older checkpoint, copied from the newest one.
    fs::write(place.checkpoints().join("checkpoint.1.0"), &whole).unwrap();
    let parts = [name, "it is cut short", "go on from checkpoint 1,"];
    run(&args, &resume).assert_fails(1, &parts);
    fs::remove_file(&path).unwrap();
    let resumed = run(&args, &resume).assert_done().json();
    assert_eq!(resumed["top"], alone["top"]);
}

#[test]
fn a_flow_reports_failed_checkpoints_and_continues() {
    let place = Place::new(LONG_MIB / 4);
    let text = place.text();
    // As on a full disk, also for root: a part cannot be written.
    let unfinished = place.checkpoints().join("unfinished.1");
    for application in ["words", "logparser"] {
        let args = [application, "--file", &text, "--ranks", "2"];
        let alone = run(&args, &[]).assert_done().json();
        let child = start(&args, &place.keep("1ms"));
        wait_until("it has begun, and no part is being written", || {
            place.newest(2) > 0 && fs::create_dir(&unfinished).is_ok()
        });
        let done = finish(child).assert_done();
        assert_eq!(done.json()["words"], alone["words"]);
        let told = &done.stderr;
        assert!(
            told.contains(
                "rank 1: a checkpoint cannot be kept, and the flow goes on: cannot create"
            ),
            "{told}"
        );
        assert!(told.contains("to keep one failed"), "{told}");
        assert!(!told.contains("rank 0"), "{told}");
        fs::read_dir(place.checkpoints())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.is_file())
            .for_each(|path| fs::remove_file(path).unwrap());
        // Nor does it begin where it can keep nothing at all.
        run(&args, &place.keep("1ms")).assert_fails(
            1,
            &["the first checkpoint cannot be stored", "checkpoint.1.1"],
        );
        fs::remove_dir_all(place.checkpoints()).unwrap();
    }
    fs::create_dir(place.checkpoints()).unwrap();
    fs::write(place.checkpoints().join("notes"), "").unwrap();
    let args = ["words", "--file", &text, "--ranks", "2"];
    run(&args, &place.keep("1ms")).assert_fails(1, &["notes is not a file of a checkpoint"]);
}

#[cfg(feature = "mpi")]
mod mpi {
    use super::*;
    use crate::support::mpirun;

    fn start(args: &[&str], more: &[String]) -> Child {
        let more = more.iter().map(String::as_str);
        let args: Vec<&str> = args.iter().copied().chain(more).chain(["--json"]).collect();
        mpirun(&[&args, &args]).spawn().unwrap()
    }

    /// Returns the processes of the ranks: their arguments name a folder that only this test uses.
    fn ranks(place: &Place) -> Vec<rustix::process::Pid> {
        let is_rank = |process: &Path| {
            let executable = fs::read_link(process.join("exe")).unwrap_or_default();
            let told = fs::read(process.join("cmdline")).unwrap_or_default();
            executable == Path::new(env!("CARGO_BIN_EXE_millstream"))
                && String::from_utf8_lossy(&told).contains(place.dir.path().to_str().unwrap())
        };
        let processes = fs::read_dir("/proc").unwrap();
        let ranks = processes.filter_map(|process| {
            let process = process.ok()?;
            let number = process.file_name().to_str()?.parse().ok()?;
            let pid = rustix::process::Pid::from_raw(number)?;
            is_rank(&process.path()).then_some(pid)
        });
        ranks.collect()
    }

    fn kill_a_rank(place: &Place, args: &[&str], more: &[String]) {
        let before = place.newest(2);
        let child = start(args, more);
        wait_until("checkpoints are kept", || place.newest(2) > before + 2);
        let last = ranks(place).pop().expect("the ranks are at work");
        rustix::process::kill_process(last, Signal::KILL).unwrap();
        let run = finish(child);
        assert!(!run.status.success(), "{run:?}");
        wait_until("all ranks end", || ranks(place).is_empty());
    }

    #[test]
    fn a_killed_process_ends_all_and_all_resume_together() {
        let place = Place::new(LONG_MIB);
        let text = place.text();
        let words = ["words", "--file", &text, "--top", "2000"];
        let alone = run(&words, &[]).assert_done().json();
        let keep = place.keep("1ms");
        kill_a_rank(&place, &words, &keep);
        let resume = with(&keep, &["--resume"]);
        let resumed = finish(start(&words, &resume)).assert_done().json();
        for field in ["top", "words", "different"] {
            assert_eq!(resumed[field], alone[field], "{field}");
        }
        for application in ["ysb", "ysb-star"] {
            let place = Place::new(0);
            let args = [&[application][..], &FOR_ADS].concat();
            let keep = place.keep("50ms");
            kill_a_rank(&place, &args, &keep);
            let resume = with(&keep, &["--resume=if-any"]);
            check_ads(&finish(start(&args, &resume)).assert_done().json());
        }
    }

    #[test]
    fn no_process_resumes_without_a_checkpoint() {
        let place = Place::new(1);
        let text = place.text();
        let resume = with(&place.keep("1s"), &["--resume"]);
        let run = finish(start(&["words", "--file", &text], &resume));
        assert!(!run.status.success());
        let told = &run.stderr;
        assert!(
            told.contains("there is no checkpoint to resume from"),
            "{told}"
        );
    }
}
