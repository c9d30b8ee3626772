//! Items that come too late for their windows: which are, and where they go.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use millstream_base::{Clock, Offset, Timestamp};
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, WindowResult, Windows};
use millstream_flow::{
    BoxError, Checkpointing, DeadLetter, DeadLetters, Emit, Flow, FlowSettings, LateTo, Origin,
    Output, PartitionId, Partitions, Parts, Resume, Running, Source, SourcePartitions,
    SourceStatus, Watermarks, Windowed,
};

use crate::idle::HandClock;
use crate::support::{Collect, Letters, MemoryStore, settings, wait_until};

/// Records of a partition, as offset and time.
#[derive(Debug, Clone)]
struct Batch {
    partition: u32,
    records: Vec<(u64, i64)>,
}

impl Parts for Batch {
    type Part<'a> = (u64, i64);

    fn for_each_part(&self, visit: impl FnMut(&(u64, i64))) {
        self.records.iter().for_each(visit);
    }

    fn origin(&self, (offset, time): &(u64, i64)) -> Option<Origin> {
        Some(Origin {
            stream: "orders".to_owned(),
            partition: self.partition,
            offset: Offset(*offset),
            timestamp: Timestamp(*time),
            key: None,
            value: Some(format!("at {time}").into_bytes()),
            headers: Vec::new(),
        })
    }
}

/// A source of two partitions whose records are given by hand.
#[derive(Clone)]
struct Lanes {
    state: Arc<Mutex<LanesState>>,
    partitions: Partitions,
}

#[derive(Default)]
struct LanesState {
    batches: VecDeque<Batch>,
    /// The first offset of each partition that was not given.
    next: [u64; 2],
    /// The first offset of each partition that was not taken.
    taken: [u64; 2],
    has_ended: bool,
    polls: u64,
    waker: Option<Waker>,
}

impl Lanes {
    fn new() -> Lanes {
        let partitions = Partitions::default();
        for partition in 0..2 {
            partitions.add(PartitionId(partition), Offset(0), Offset(0));
        }
        Lanes {
            state: Arc::default(),
            partitions,
        }
    }

    fn give(&self, partition: u32, times: impl IntoIterator<Item = i64>) {
        let mut state = self.state.lock().unwrap();
        let next = &mut state.next[partition as usize];
        let records: Vec<_> = (*next..).zip(times).collect();
        *next += records.len() as u64;
        state.batches.push_back(Batch { partition, records });
        drop(state);
        self.wake();
    }

    fn end(&self) {
        self.state.lock().unwrap().has_ended = true;
        self.wake();
    }

    fn wake(&self) {
        let waker = self.state.lock().unwrap().waker.clone();
        waker.inspect(Waker::wake_by_ref);
    }

    /// Waits until the sources have given all items, and all results are passed on.
    fn settle(&self) {
        let polls = || self.state.lock().unwrap().polls;
        let before = polls();
        wait_until("a source is asked", || {
            self.wake();
            polls() > before + 2 && self.state.lock().unwrap().batches.is_empty()
        });
    }
}

impl Source for Lanes {
    type Item = Batch;

    fn partitions(&self) -> SourcePartitions<'_, Batch> {
        SourcePartitions::Many {
            partition_of: |batch| PartitionId(batch.partition.into()),
            partitions: &self.partitions,
        }
    }

    fn poll(
        &mut self,
        out: &mut Output<Batch>,
        _: usize,
        waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        let mut state = self.state.lock().unwrap();
        state.polls += 1;
        state.waker = Some(waker.clone());
        let Some(batch) = state.batches.pop_front() else {
            return Ok(match state.has_ended {
                true => SourceStatus::End,
                false => SourceStatus::Idle,
            });
        };
        let next = batch.records.last().map_or(0, |(offset, _)| offset + 1);
        state.taken[batch.partition as usize] = next;
        self.partitions
            .pass(PartitionId(batch.partition.into()), Offset(next));
        out.push(batch);
        Ok(SourceStatus::Ready)
    }

    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        Ok(postcard::to_stdvec(&self.state.lock().unwrap().taken)?)
    }

    /// The partitions have nothing more.
    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let taken: [u64; 2] = postcard::from_bytes(saved)?;
        let mut state = self.state.lock().unwrap();
        (state.next, state.taken) = (taken, taken);
        for (partition, next) in taken.into_iter().enumerate() {
            let (partition, next) = (PartitionId(partition as u64), Offset(next));
            self.partitions.add(partition, next, next);
        }
        Ok(())
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// A flow that counts the records of some sources in windows of ten seconds, by a clock that moves by hand.
struct Scene {
    clock: Arc<HandClock>,
    sources: Vec<Lanes>,
    letters: Arc<Letters>,
    state: Windowed<u32, Count>,
    results: Arc<Mutex<Vec<WindowResult<u32, u64>>>>,
    running: Running,
    given: u64,
}

impl Scene {
    fn new(sources: usize) -> Scene {
        Scene::with(sources, None)
    }

    fn with(sources: usize, checkpoints: Option<Checkpointing>) -> Scene {
        let (clock, letters) = (Arc::new(HandClock::default()), Arc::new(Letters::default()));
        let sources: Vec<_> = (0..sources).map(|_| Lanes::new()).collect();
        let (sink, results) = Collect::new();
        let flow = Flow::with_settings(
            "late",
            FlowSettings {
                clock: Arc::clone(&clock) as Arc<dyn Clock>,
                dead_letters: Some(Arc::clone(&letters) as Arc<dyn DeadLetters>),
                checkpoints,
                ..settings(2, 64)
            },
        );
        let state = flow.windowed("counts", Windows::tumbling(10_000), Count);
        flow.sources("orders", sources.clone())
            .each(|(_, time), emit: &mut Emit<i64>| {
                emit(time);
                Ok(())
            })
            .watermarks(
                |time| Timestamp(*time),
                Watermarks::bounded(Duration::ZERO).ahead_max(None),
            )
            .key_by(|_| 0u32)
            .aggregate("count", &state, |time| Timestamp(*time))
            .sink("results", sink);
        let running = flow.run().unwrap();
        Scene {
            clock,
            sources,
            letters,
            state,
            results,
            running,
            given: 0,
        }
    }

    fn give(&mut self, source: usize, partition: u32, times: &[i64]) {
        self.given += times.len() as u64;
        self.sources[source].give(partition, times.iter().copied());
        self.settle();
    }

    fn settle(&self) {
        self.sources.iter().for_each(Lanes::settle);
    }

    /// One partition continues for 65 seconds while the others give nothing.
    fn go_on(&mut self) {
        for second in 2..=66 {
            self.clock.advance(SECOND);
            self.give(0, 0, &[second * 1_000]);
        }
    }

    /// Waits until the window that ends at this time has come out.
    fn wait_for_window(&self, end: i64) {
        wait_until("a window closes", || {
            let results = self.results.lock().unwrap();
            results.iter().any(|window| window.end == Timestamp(end))
        });
    }

    /// Ends the flow. Returns the late records, by partition and offset.
    fn end(self) -> Vec<(u32, u64)> {
        self.sources.iter().for_each(Lanes::end);
        self.running.join().unwrap();
        let results = self.results.lock().unwrap();
        let counted: u64 = results.iter().map(|window| window.value).sum();
        let letters = self.letters.0.lock().unwrap();
        assert_eq!(counted + letters.len() as u64, self.given);
        assert_eq!(self.state.late_events(), letters.len() as u64);
        let late = letters.iter().map(|letter| {
            let origin = letter.origin.as_ref().expect("the flow knows the record");
            assert!(letter.error.starts_with("late: "), "{}", letter.error);
            assert_eq!(letter.item, format!("at {}", origin.timestamp.0));
            (origin.partition, origin.offset.0)
        });
        late.collect()
    }
}

/// A partition lies behind, and gives nothing for longer than a partition may be idle.
fn a_partition_behind_its_end_is_not_idle(source: usize, end: Option<Offset>) {
    let mut scene = Scene::new(source + 1);
    scene.give(0, 0, &[1_000]);
    scene.give(source, 1, &[1_000]);
    let partitions = scene.sources[source].partitions.clone();
    assert!(partitions.note_end(PartitionId(1), end));
    scene.go_on();
    let waits = scene.running.waits();
    let reason = match end {
        Some(_) => "1 of its partitions have records that it has still to read",
        None => "the server of 1 of its partitions does not answer",
    };
    assert!(waits.iter().any(|it| it.reason == reason), "{waits:?}");
    // It is read again. Producers need a moment, too, if its server was away.
    partitions.note_end(PartitionId(1), Some(Offset(3)));
    scene.give(0, 0, &[67_000]);
    scene.give(source, 1, &[2_000, 3_000, 66_000]);
    assert_eq!(scene.end(), []);
}

#[test]
fn a_partition_with_records_that_are_not_read_is_not_idle() {
    a_partition_behind_its_end_is_not_idle(0, Some(Offset(3)));
}

#[test]
fn a_partition_whose_end_is_unknown_is_not_idle() {
    a_partition_behind_its_end_is_not_idle(0, None);
}

#[test]
fn a_source_with_records_that_are_not_read_is_not_idle() {
    a_partition_behind_its_end_is_not_idle(1, Some(Offset(3)));
}

#[test]
fn a_source_whose_end_is_unknown_is_not_idle() {
    a_partition_behind_its_end_is_not_idle(1, None);
}

#[test]
fn a_flow_that_resumes_waits_for_a_partition_until_that_is_idle() {
    let store = Arc::new(MemoryStore::default());
    let start = |resume| {
        let checkpoints = Checkpointing {
            store: Arc::clone(&store) as _,
            interval: Some(SECOND),
            resume,
        };
        Scene::with(1, Some(checkpoints))
    };
    let mut scene = start(Resume::Never);
    scene.give(0, 1, &[9_500]);
    scene.give(0, 0, &[10_000]);
    scene.running.stop();
    scene.running.join().unwrap();
    let given = scene.given;
    let mut scene = start(Resume::Always);
    scene.given = given;
    scene.clock.advance(SECOND);
    scene.give(0, 0, &[25_000]);
    // Its last record came before the flow stopped.
    scene.give(0, 1, &[9_600]);
    for second in 26..=90 {
        scene.clock.advance(SECOND);
        scene.give(0, 0, &[second * 1_000]);
    }
    scene.wait_for_window(60_000);
    assert_eq!(scene.end(), []);
}

#[test]
fn late_records_of_an_idle_partition_become_dead_letters_with_their_origin() {
    let mut scene = Scene::new(1);
    scene.give(0, 0, &[1_000]);
    scene.give(0, 1, &[1_000]);
    scene.go_on();
    scene.wait_for_window(60_000);
    scene.give(0, 1, &[2_000, 67_000, 3_000]);
    wait_until("letters are stored", || {
        scene.letters.0.lock().unwrap().len() == 2
    });
    let error = scene.letters.0.lock().unwrap()[0].error.clone();
    let expected =
        "late: event time 2000 ms, watermark 66000 ms, windows over since 10000 ms, of partition 1";
    assert_eq!(error, expected);
    let [late] = &scene.running.late_events()[..] else {
        panic!("one state has windows");
    };
    assert_eq!((late.late_events, late.to), (2, LateTo::DeadLetters));
    let [source] = &scene.running.late_sources()[..] else {
        panic!("one partition is late");
    };
    assert_eq!(
        (&*source.stage, source.partition, source.late_events),
        ("orders", Some(1), 2)
    );
    assert_eq!(scene.end(), [(1, 1), (1, 3)]);
}

#[test]
fn late_records_of_an_idle_source_become_dead_letters_with_their_origin() {
    let mut scene = Scene::new(2);
    scene.give(0, 0, &[1_000]);
    scene.give(1, 1, &[1_000]);
    scene.go_on();
    scene.wait_for_window(60_000);
    scene.give(1, 1, &[2_000, 67_000, 3_000]);
    assert_eq!(scene.end(), [(1, 1), (1, 3)]);
}

/// A flow whose items, given by their times, come from one partition in order.
fn times(
    count: u64,
    time: fn(u64) -> i64,
    letters: Arc<dyn DeadLetters>,
    is_dropping: bool,
) -> (u64, u64) {
    let flow = Flow::with_settings(
        "late",
        FlowSettings {
            dead_letters: Some(letters),
            ..settings(2, 64)
        },
    );
    let state = flow.windowed("counts", Windows::tumbling(10), Count);
    let sum = flow.partial::<u64>("sum");
    let keyed = flow
        .source("times", Generator::new(time).limit(count))
        .watermarks(
            |time| Timestamp(*time),
            Watermarks::bounded(Duration::ZERO).ahead_max(None),
        )
        .key_by(|_| 0u32);
    let keyed = match is_dropping {
        true => keyed.drop_late(),
        false => keyed,
    };
    keyed
        .aggregate("count", &state, |time| Timestamp(*time))
        .fold_local(&sum, |sum, window| *sum += window.value);
    flow.run().unwrap().join().unwrap();
    (sum.merged(), state.late_events())
}

/// Counts letters, and how often some are stored.
#[derive(Default)]
struct Puts {
    letters: AtomicUsize,
    puts: AtomicUsize,
}

impl DeadLetters for Puts {
    fn put(&self, letters: &[DeadLetter]) -> Result<(), BoxError> {
        self.letters.fetch_add(letters.len(), Ordering::Relaxed);
        self.puts.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn one_ahead(number: u64) -> i64 {
    if number == 0 { 1_000 } else { 1 }
}

#[test]
fn many_late_items_are_stored_as_dead_letters_in_batches() {
    const LATE: usize = 50_000;
    let (puts, began_at) = (Arc::new(Puts::default()), Instant::now());
    let counted = times(LATE as u64 + 1, one_ahead, Arc::clone(&puts) as _, false);
    assert_eq!(counted, (1, LATE as u64));
    assert_eq!(puts.letters.load(Ordering::Relaxed), LATE);
    // By number, by time, and at the end.
    let puts_max = LATE / 1_024 + (began_at.elapsed().as_millis() / 100) as usize + 2;
    let puts = puts.puts.load(Ordering::Relaxed);
    assert!(puts <= puts_max, "{puts} of at most {puts_max}");
}

#[test]
fn a_flow_with_dead_letters_may_drop_late_items() {
    let letters = Arc::new(Letters::default());
    let counted = times(10, one_ahead, Arc::clone(&letters) as _, true);
    assert_eq!(counted, (1, 9));
    assert_eq!(*letters.0.lock().unwrap(), []);
}

#[test]
fn a_late_item_is_one_dead_letter_though_its_record_is_processed_twice() {
    let (letters, source) = (Arc::new(Letters::default()), Lanes::new());
    source.give(0, [1_000_000, 5, 6]);
    source.end();
    let flow = Flow::with_settings(
        "late",
        FlowSettings {
            dead_letters: Some(Arc::clone(&letters) as Arc<dyn DeadLetters>),
            ..settings(1, 64)
        },
    );
    let state = flow.windowed("counts", Windows::tumbling(10_000), Count);
    let sum = flow.partial::<u64>("sum");
    let has_panicked = AtomicBool::new(false);
    flow.source("orders", source)
        .each(move |(offset, time), emit: &mut Emit<i64>| {
            emit(time);
            let panics = *offset == 1 && !has_panicked.swap(true, Ordering::Relaxed);
            assert!(!panics, "once, behind a late item");
            Ok(())
        })
        .watermarks(
            |time| Timestamp(*time),
            Watermarks::bounded(Duration::ZERO).ahead_max(None),
        )
        .key_by(|_| 0u32)
        .aggregate("count", &state, |time| Timestamp(*time))
        .fold_local(&sum, |sum, window| *sum += window.value);
    flow.run().unwrap().join().unwrap();
    assert_eq!((sum.merged(), state.late_events()), (1, 2));
    let letters = letters.0.lock().unwrap();
    let offsets = letters.iter().map(|letter| {
        let origin = letter.origin.as_ref().expect("the flow knows the record");
        origin.offset
    });
    assert_eq!(offsets.collect::<Vec<_>>(), [Offset(1), Offset(2)]);
}
