//! Waiting for any of many lanes.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use millstream_base::{ByteSize, Offset, Timestamp};
use millstream_log::{
    Background, Durability, Log, LogConfig, LogError, StreamConfig, StreamPartition, Watch, Watched,
};
use millstream_record::{ChunkBuilder, Compression};

/// Nothing here takes longer, unless a wake-up is lost.
const WAIT_MAX: Duration = Duration::from_secs(60);

fn open(dir: &std::path::Path, background: Background) -> Log {
    Log::open(LogConfig {
        background,
        ..LogConfig::with_pool(dir, ByteSize(16 << 20))
    })
    .unwrap()
}

fn with_lanes(lanes: u32, durability: Durability) -> StreamConfig {
    StreamConfig {
        streamlets: lanes,
        durability,
        ..StreamConfig::default()
    }
}

fn append(lane: &StreamPartition) -> Offset {
    let mut builder = ChunkBuilder::new(Compression::None);
    builder
        .push(Timestamp(0), None, Some(b"hello"), &[])
        .unwrap();
    lane.append(builder.finish(None).unwrap())
        .unwrap()
        .next_offset
}

/// Counts how often a task is woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async { tokio::time::timeout(WAIT_MAX, future).await.unwrap() })
}

#[test]
fn each_of_a_thousand_waiters_is_woken_for_its_own_lane() {
    const LANES: u32 = 1000;
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path(), Background::Manual);
    let config = with_lanes(LANES, Durability::Sync);
    let stream = log.create_stream("s", config).unwrap();
    let lanes: Vec<StreamPartition> = (0..LANES).map(|n| stream.partition(n).unwrap()).collect();
    let watches: Vec<(Watch, Watched)> = lanes
        .iter()
        .map(|lane| {
            let watch = Watch::default();
            let watched = watch.add(lane, u64::from(lane.index()));
            watched.arm(Offset(0));
            (watch, watched)
        })
        .collect();
    let woken: Vec<Arc<Woken>> = lanes.iter().map(|_| Arc::default()).collect();
    let mut waits: Vec<_> = watches
        .iter()
        .map(|(watch, _)| Box::pin(watch.ready()))
        .collect();
    for (wait, woken) in waits.iter_mut().zip(&woken) {
        let waker = Waker::from(Arc::clone(woken));
        assert!(
            wait.as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }
    for n in [3, 500, 3] {
        append(&lanes[n]);
        while log.step() {}
    }
    for (n, woken) in woken.iter().enumerate() {
        let times = usize::from(n == 3 || n == 500);
        assert_eq!(woken.0.load(Ordering::Relaxed), times, "lane {n}");
    }
    let waker = Waker::noop();
    let ready = waits[500].as_mut().poll(&mut Context::from_waker(waker));
    assert_eq!(ready, Poll::Ready(vec![500]));
}

#[test]
fn an_armed_lane_notifies_once_and_never_of_a_known_offset() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path(), Background::Manual);
    let stream = log
        .create_stream("s", with_lanes(2, Durability::Sync))
        .unwrap();
    let (first, second) = (stream.partition(0).unwrap(), stream.partition(1).unwrap());
    let watch = Watch::default();
    let (one, two) = (watch.add(&first, 1), watch.add(&second, 2));
    append(&first);
    while log.step() {}
    assert_eq!(watch.take_ready(), [0; 0], "nothing was armed");

    one.arm(first.durable_offset());
    two.arm(second.durable_offset());
    assert_eq!(watch.take_ready(), [0; 0], "nothing has changed");
    one.arm(Offset(0));
    assert_eq!(watch.take_ready(), [1], "it is beyond already");
    one.arm(Offset(2));
    for expected in [&[][..], &[1], &[]] {
        append(&first);
        while log.step() {}
        assert_eq!(watch.take_ready(), expected);
    }
    drop(one);
    append(&second);
    append(&first);
    while log.step() {}
    assert_eq!(watch.take_ready(), [2]);

    two.arm(second.durable_offset());
    log.delete_stream("s").unwrap();
    assert_eq!(watch.take_ready(), [2], "the stream is gone");
    two.arm(second.durable_offset());
    assert_eq!(watch.take_ready(), [2], "and stays so");
}

/// Producers append to all lanes, and one consumer waits for any of them: a lost wake-up leaves it waiting for ever.
#[test]
fn no_wake_up_is_lost_between_threads() {
    const LANES: u32 = 8;
    const CHUNKS: u64 = 2_000;
    for durability in [Durability::Async, Durability::Written, Durability::Memory] {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path(), Background::Threads);
        let stream = log
            .create_stream("s", with_lanes(LANES, durability))
            .unwrap();
        let lanes: Vec<StreamPartition> =
            (0..LANES).map(|n| stream.partition(n).unwrap()).collect();
        std::thread::scope(|scope| {
            for lane in &lanes {
                scope.spawn(move || {
                    for n in 0..CHUNKS {
                        append(lane);
                        if n % 64 == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            block_on(async {
                let watch = Watch::default();
                let mut known = [Offset(0); LANES as usize];
                let watched: Vec<Watched> = lanes
                    .iter()
                    .map(|lane| watch.add(lane, lane.index().into()))
                    .collect();
                watched.iter().for_each(|watched| watched.arm(Offset(0)));
                while known != [Offset(CHUNKS); LANES as usize] {
                    for key in watch.ready().await {
                        let n = key as usize;
                        let durable = lanes[n].durable_offset();
                        assert!(durable > known[n], "lane {n} woke without new records");
                        known[n] = durable;
                        watched[n].arm(durable);
                    }
                }
            });
        });
        log.close().unwrap();
    }
}

#[test]
fn a_waiter_for_one_lane_is_woken_when_it_is_durable_or_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path(), Background::Threads);
    let stream = log
        .create_stream("s", with_lanes(1, Durability::Sync))
        .unwrap();
    let lane = stream.partition(0).unwrap();
    let end = append(&lane);
    block_on(lane.durable(end)).unwrap();
    assert!(lane.durable_offset() >= end);

    let (is_waiting, polls) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_waiting.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            log.delete_stream("s").unwrap();
        });
        let error = block_on(async {
            let mut wait = pin!(lane.durable(end.plus(1)));
            std::future::poll_fn(|context| {
                let poll = wait.as_mut().poll(context);
                polls.fetch_add(1, Ordering::Relaxed);
                is_waiting.store(true, Ordering::Release);
                poll
            })
            .await
            .unwrap_err()
        });
        assert!(matches!(error, LogError::UnknownStream { .. }), "{error}");
    });
    assert!(polls.load(Ordering::Relaxed) > 1, "it did wait");
}
