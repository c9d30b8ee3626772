//! Checkpoints of the beginning and of the end.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use millstream_base::{SystemDisk, Timestamp};
use millstream_exchange::Ranks;
use millstream_flow::sinks::LinesFile;
use millstream_flow::windows::{Count, WindowResult, Windows};
use millstream_flow::{
    BoxError, Checkpointing, Checkpoints, Flow, FlowSettings, Output, Resume, Running, ShardKey,
    Source, SourcePartitions, SourceStatus,
};

use crate::support::{MemoryStore, disorder, on_ranks, settings, wait_until};

/// Numbers from 0 on, up to a gate or the end.
struct Numbers {
    next: u64,
    end: u64,
    gate: u64,
    /// It has ended before.
    has_ended: bool,
}

impl Numbers {
    fn to(end: u64) -> Numbers {
        Numbers {
            next: 0,
            end,
            gate: u64::MAX,
            has_ended: false,
        }
    }
}

impl Source for Numbers {
    type Item = u64;

    fn partitions(&self) -> SourcePartitions<'_, u64> {
        SourcePartitions::One
    }

    fn poll(
        &mut self,
        out: &mut Output<u64>,
        budget: usize,
        _: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        assert!(!self.has_ended, "nothing is read again");
        let end = self.end.min(self.gate);
        let behind = end.min(self.next + budget as u64);
        out.extend(self.next..behind);
        self.next = behind;
        Ok(match self.next {
            next if next == self.end => SourceStatus::End,
            next if next == end => SourceStatus::Idle,
            _ => SourceStatus::Ready,
        })
    }

    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        Ok(self.next.to_le_bytes().to_vec())
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        self.next = u64::from_le_bytes(saved.try_into()?);
        Ok(())
    }
}

const END: u64 = 10_000;

/// Counts in windows and adds up, with results in a file. There are no checkpoints in between.
fn start(
    ranks: &Ranks,
    source: Numbers,
    place: &Arc<MemoryStore>,
    resume: Resume,
    file: &Path,
) -> Result<(Running, u64), String> {
    let settings = FlowSettings {
        ranks: ranks.clone(),
        checkpoints: Some(Checkpointing {
            store: Arc::clone(place) as Arc<dyn Checkpoints>,
            interval: Some(Duration::from_secs(3600)),
            resume,
        }),
        ..settings(2, 64)
    };
    let flow = Flow::with_settings("ends", settings);
    let counts = flow.windowed::<u64, _>("counts", Windows::tumbling(100), Count);
    let sum = flow.partial::<u64>("sum");
    let file = LinesFile::open(&SystemDisk, file).map_err(|error| error.to_string())?;
    let [windows, sums] = ["windows", "sums"].map(|name| flow.channel::<u64>(name));
    let time = |number: &u64| Timestamp(*number as i64);
    flow.source("numbers", source)
        .watermarks(time, disorder(0))
        .to_all(&[windows.clone(), sums.clone()]);
    flow.stage("windows", &windows)
        .key_by(|number| number % 3)
        .aggregate("count", &counts, time)
        .map(|result: &WindowResult<u64, u64>| (result.key, result.start.0, result.value))
        .sink("file", file);
    flow.stage("sums", &sums)
        .fold_local(&sum, |sum, number| *sum += number);
    let running = flow.run().map_err(|error| error.to_string())?;
    Ok((running, sum.merged()))
}

fn lines(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// The lines of `sources` sources.
fn expected(sources: u64) -> Vec<String> {
    let windows = (0..END / 100).flat_map(|window| (0..3).map(move |key| (key, 100 * window)));
    let line = |(key, start)| {
        let count = (start..start + 100)
            .filter(|number| number % 3 == key)
            .count();
        format!("[{key},{start},{}]", count as u64 * sources)
    };
    let mut lines: Vec<_> = windows.map(line).collect();
    lines.sort();
    lines
}

#[test]
fn a_flow_killed_before_its_first_checkpoint_continues_its_output_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results");
    let place = Arc::new(MemoryStore::default());
    let source = Numbers {
        gate: 5_000,
        ..Numbers::to(END)
    };
    let (running, _) = start(&Ranks::alone(), source, &place, Resume::Never, &file).unwrap();
    wait_until("there are results", || {
        fs::metadata(&file).unwrap().len() > 0
    });
    drop(running);
    assert_eq!(place.list().unwrap().len(), 1, "the one of the beginning");
    let source = Numbers::to(END);
    let (running, _) = start(&Ranks::alone(), source, &place, Resume::Always, &file).unwrap();
    running.join().unwrap();
    assert_eq!(lines(&file), expected(1));
}

#[test]
fn a_finished_flow_restores_its_states_and_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results");
    let place = Arc::new(MemoryStore::default());
    let source = Numbers::to(END);
    let (running, _) = start(&Ranks::alone(), source, &place, Resume::Never, &file).unwrap();
    running.join().unwrap();
    let written = fs::read(&file).unwrap();
    assert_eq!(lines(&file), expected(1));
    for _ in 0..3 {
        let source = Numbers {
            has_ended: true,
            ..Numbers::to(END)
        };
        let started = start(&Ranks::alone(), source, &place, Resume::Always, &file);
        let (running, sum) = started.unwrap();
        assert_eq!(sum, END * (END - 1) / 2);
        let newest = running.state("counts").unwrap().get("1").unwrap();
        assert_eq!(newest["window_start"], 9_900);
        let summary = running.join().unwrap();
        assert!(summary.stages.iter().all(|stage| stage.items_in == 0));
        assert_eq!(fs::read(&file).unwrap(), written);
    }
}

#[test]
fn a_flow_stopped_before_its_first_interval_resumes_at_its_position() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results");
    let place = Arc::new(MemoryStore::default());
    let source = Numbers {
        gate: 5_050,
        ..Numbers::to(END)
    };
    let (running, _) = start(&Ranks::alone(), source, &place, Resume::Never, &file).unwrap();
    wait_until("there are results", || {
        fs::metadata(&file).unwrap().len() > 0
    });
    running.stop();
    running.join().unwrap();
    let source = Numbers::to(END);
    let (running, sum) = start(&Ranks::alone(), source, &place, Resume::Always, &file).unwrap();
    assert!(sum > 0);
    let summary = running.join().unwrap();
    let given: u64 = summary.stages[0].items_in;
    assert!(given < END, "{given}: finished work is not repeated");
    assert_eq!(lines(&file), expected(1));
}

#[test]
fn ranks_that_finished_one_after_another_end_at_once_when_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let place = Arc::new(MemoryStore::default());
    let file = |rank: u32| folder.path().join(format!("results {rank}"));
    for (resume, has_ended) in [
        (Resume::Never, false),
        (Resume::Always, true),
        (Resume::IfAny, true),
    ] {
        on_ranks(3, |ranks| {
            let source = Numbers {
                has_ended,
                ..Numbers::to(END)
            };
            let (running, _) = start(ranks, source, &place, resume, &file(ranks.rank())).unwrap();
            running.join().unwrap();
        });
        let mut all: Vec<_> = (0..3).flat_map(|rank| lines(&file(rank))).collect();
        all.sort();
        assert_eq!(all, expected(3), "{resume:?}");
    }
}

#[test]
fn ranks_resume_from_the_checkpoint_before_one_finished_and_the_other_died() {
    let folder = tempfile::tempdir().unwrap();
    let place = Arc::new(MemoryStore::default());
    let file = |rank: u32| folder.path().join(format!("results {rank}"));
    let run = |resume| {
        on_ranks(2, |ranks| {
            let source = Numbers::to(END);
            let (running, _) = start(ranks, source, &place, resume, &file(ranks.rank())).unwrap();
            running.join().is_ok()
        })
    };
    // The checkpoint of the beginning is gone when the end is complete.
    let beginning = {
        let place = Arc::new(MemoryStore::default());
        on_ranks(2, |ranks| {
            let file = folder.path().join(format!("beginning {}", ranks.rank()));
            let source = Numbers {
                gate: 0,
                ..Numbers::to(END)
            };
            // The other one may be dropped before this one has begun, but not before both have stored their shards.
            drop(start(ranks, source, &place, Resume::Never, &file));
        });
        let parts = place.parts.lock().unwrap();
        parts.clone()
    };
    assert_eq!(beginning.len(), 2);
    assert_eq!(run(Resume::Never), [true, true]);
    {
        let mut parts = place.parts.lock().unwrap();
        let last = *parts.keys().max().unwrap();
        assert_eq!(last.rank, 1);
        parts.remove(&last);
        parts.extend(beginning);
    }
    assert_eq!(run(Resume::Always), [true, true]);
    let mut all: Vec<_> = (0..2).flat_map(|rank| lines(&file(rank))).collect();
    all.sort();
    assert_eq!(all, expected(2));
}

#[test]
fn the_message_about_missing_shards_counts_the_ranks_that_have_one() {
    let parts = [(3, 1), (4, 1), (4, 3)];
    let parts = parts.map(|(checkpoint, rank)| {
        (
            ShardKey {
                checkpoint,
                rank,
                run: 0,
            },
            Vec::new(),
        )
    });
    let place = Arc::new(MemoryStore::default());
    place.parts.lock().unwrap().extend(parts);
    let folder = tempfile::tempdir().unwrap();
    let errors = on_ranks(4, |ranks| {
        let file = folder.path().join(ranks.rank().to_string());
        start(ranks, Numbers::to(1), &place, Resume::Always, &file).err()
    });
    for error in errors {
        assert_eq!(
            error.unwrap(),
            "flow \"ends\": there is no checkpoint with the shards of all 4 ranks to resume from; the newest, 4, has only the shards of 2 ranks (1, 3), such as the shard of rank 3 of checkpoint 4"
        );
    }
}
