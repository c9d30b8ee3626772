//! Partitions that are far ahead of others in event time.

use std::fmt::Debug;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millstream_client::{ConsumerConfig, DeliveryMode};
use millstream_connect::{CheckpointDir, ServerEnd, ServerSource, StreamSource};
use millstream_flow::{FlowSettings, Parts, Source};
use millstream_record::Record;

use super::orders::{Counting, LARGE_BYTES, Setting, plain, produce, produce_large, resuming};
use millstream_log::{Stream, StreamConfig};
use tempfile::tempdir;

/// The orders of the fast partition are a second apart.
const STEP: u64 = 100;

/// Behind the numbers of its orders, which are all there from the beginning.
const END: u64 = 2_000 * STEP;

/// Seconds that a partition may be ahead by default.
const SKEW_MAX: u64 = 120;

/// Orders that the fast partition may give beyond that: a slice for each instance, which is of 1 MiB at most.
const SLICES: u64 = 3 * 102;

/// The most bytes that a source of a server may read ahead.
const PREFETCH_BYTES: usize = 256 << 10;

fn fast() -> impl Iterator<Item = u64> {
    numbers(0, END)
}

fn numbers(from: u64, end: u64) -> impl Iterator<Item = u64> {
    (from..end).step_by(STEP as usize)
}

/// The path by which a source gets its records.
#[derive(Debug, Clone, Copy)]
enum Way {
    Pulled,
    Sent,
    Shared,
}

const WAYS: [Way; 3] = [Way::Pulled, Way::Sent, Way::Shared];

impl Way {
    fn setting(self, partitions: u32) -> Setting {
        match self {
            Way::Shared => Setting::new(partitions),
            Way::Pulled | Way::Sent => Setting::with(partitions, |_, _| {}),
        }
    }

    /// Returns sources that may hold little in memory, so that they stop reading partitions that are far ahead.
    fn sources(self, setting: &Setting, instances: usize, end: ServerEnd) -> Vec<ServerSource> {
        let consumer = ConsumerConfig {
            delivery: match self {
                Way::Pulled => DeliveryMode::Pull,
                Way::Sent | Way::Shared => DeliveryMode::Push,
            },
            partition_bytes_max: 8 << 10,
            prefetch_bytes: PREFETCH_BYTES,
            ..ConsumerConfig::default()
        };
        ServerSource::of_stream(&setting.client(), &consumer, "s", instances, end).unwrap()
    }
}

/// A flow over a partition 0, which is slow, a partition 1, which is fast, and a partition 2, which is empty.
struct Scene<'s> {
    setting: &'s Setting,
    counting: Counting,
    /// The numbers of all orders outside of the fast partition.
    others: Vec<u64>,
}

impl<'s> Scene<'s> {
    fn new<S>(setting: &'s Setting, sources: impl FnOnce() -> Vec<S>, flow: FlowSettings) -> Self
    where
        S: Source<Item: Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
    {
        produce_large(&setting.stream, 1, fast());
        produce(&setting.stream, 0, [0]);
        Scene::of(setting, sources(), flow)
    }

    fn of<S>(setting: &'s Setting, sources: Vec<S>, flow: FlowSettings) -> Self
    where
        S: Source<Item: Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
    {
        Scene {
            setting,
            counting: Counting::start(sources, flow),
            others: vec![0],
        }
    }

    fn produce(&mut self, partition: u32, numbers: impl IntoIterator<Item = u64>) {
        let numbers = Vec::from_iter(numbers);
        produce(&self.setting.stream, partition, numbers.iter().copied());
        self.others.extend(numbers);
    }

    /// The flow reads so far ahead of the slow partition, which is at the order of this number, and no further.
    fn check_held_behind(&self, number: u64) {
        let held_at = self.others.len() as u64 + number / STEP + SKEW_MAX;
        self.counting.wait_until_read(held_at);
        let started_at = Instant::now();
        while started_at.elapsed() < Duration::from_millis(300) {
            let read = self.counting.read();
            assert!(read <= held_at + SLICES, "{read} orders are read");
            let open = self.counting.open_windows();
            assert!(open <= 2 * (SKEW_MAX + SLICES), "{open} windows are open");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The flow goes on to its end.
    fn check_counted_to_the_end(self) {
        self.counting.running.join().unwrap();
        let expected = plain([fast().collect(), self.others]);
        assert_eq!(self.counting.counts.get(), expected);
        assert_eq!(self.counting.late_events(), 0);
    }

    /// All partitions come to the end.
    fn check_counted(mut self, partitions: u32) {
        for partition in 0..partitions {
            self.produce(partition, [END]);
        }
        let is_over = |number: &u64| *number < END;
        let others: Vec<u64> = self.others.iter().copied().filter(is_over).collect();
        self.counting.wait_for(&plain([fast().collect(), others]));
        assert_eq!(self.counting.late_events(), 0);
    }
}

fn a_partition_far_ahead_is_held<S>(
    setting: &Setting,
    sources: impl FnOnce() -> Vec<S>,
) -> Scene<'_>
where
    S: Source<Item: Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
{
    let mut scene = Scene::new(setting, sources, FlowSettings::default());
    scene.check_held_behind(0);
    let mut slow = 0;
    for next in [10_000, 40_000, 90_000] {
        scene.produce(0, numbers(slow + STEP, next + STEP));
        slow = next;
        scene.check_held_behind(slow);
    }
    // A partition that is added meanwhile is read at once.
    setting.log.grow_stream("s", 4, 1).unwrap();
    scene.produce(3, slow..slow + STEP);
    scene.check_held_behind(slow);
    scene
}

#[test]
fn a_source_in_the_process_holds_back_a_partition_far_ahead() {
    let setting = Setting::new(3);
    let sources = || vec![StreamSource::new(&setting.stream)];
    a_partition_far_ahead_is_held(&setting, sources).check_counted(4);
}

#[test]
fn sources_that_share_the_partitions_hold_back_a_partition_far_ahead() {
    let setting = Setting::new(3);
    let sources = StreamSource::new(&setting.stream).split(3);
    let ending = sources[0].ending();
    let scene = a_partition_far_ahead_is_held(&setting, || sources);
    // Without an end, one that gives nothing any more is waited for until it is idle.
    ending.end_at_durable_head();
    scene.check_counted_to_the_end();
}

#[test]
fn a_source_of_a_shared_application_holds_back_a_partition_far_ahead() {
    let setting = Setting::new(3);
    let source = StreamSource::of_application(&setting.log, "s", "app").unwrap();
    a_partition_far_ahead_is_held(&setting, || vec![source]).check_counted(4);
}

#[test]
fn a_source_of_a_server_holds_back_a_partition_far_ahead() {
    for way in WAYS {
        let setting = way.setting(3);
        let sources = || way.sources(&setting, 1, ServerEnd::Never);
        a_partition_far_ahead_is_held(&setting, sources).check_counted(4);
    }
}

/// Passes on the bytes between clients and a server.
struct Proxy {
    listener: TcpListener,
    /// Bytes from the server.
    received: Arc<AtomicU64>,
}

impl Proxy {
    fn new() -> Proxy {
        Proxy {
            listener: TcpListener::bind("127.0.0.1:0").unwrap(),
            received: Arc::default(),
        }
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    /// Begins to work; its threads end with the connections, and with the test's process.
    fn start(self, server: SocketAddr) -> Arc<AtomicU64> {
        let received = Arc::clone(&self.received);
        thread::spawn(move || {
            while let Ok((client, _)) = self.listener.accept() {
                let server = TcpStream::connect(server).unwrap();
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || pass(from, to, &AtomicU64::new(0)));
                let received = Arc::clone(&self.received);
                thread::spawn(move || pass(server, client, &received));
            }
        });
        received
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, bytes: &AtomicU64) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        bytes.fetch_add(read as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn a_source_of_a_server_stops_fetching_a_partition_that_it_holds_back() {
    for way in [Way::Pulled, Way::Sent] {
        let proxy = Proxy::new();
        let advertised = ("127.0.0.1".to_owned(), proxy.port());
        let setting = Setting::with(3, |config, _| {
            config.listeners[0].advertised = Some(advertised)
        });
        let received = proxy.start(setting.address());
        let sources = || way.sources(&setting, 1, ServerEnd::Never);
        let scene = Scene::new(&setting, sources, FlowSettings::default());
        scene.check_held_behind(0);
        // Empty answers still arrive.
        const LITTLE: u64 = 50 << 10;
        let mut before = 0;
        while received.load(Ordering::Relaxed) > before + LITTLE {
            before = received.load(Ordering::Relaxed);
            thread::sleep(Duration::from_millis(500));
        }
        let given = (SKEW_MAX + 10) * LARGE_BYTES as u64;
        assert!(
            before < given + 4 * PREFETCH_BYTES as u64,
            "{before} bytes came"
        );
        scene.check_counted(3);
    }
}

fn a_partition_that_has_ended_holds_no_other<S>(make: impl Fn(&Setting) -> Vec<S>)
where
    S: Source<Item: Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
{
    let setting = Setting::new(3);
    let scene = Scene::new(&setting, || make(&setting), FlowSettings::default());
    // Else it would be waited for until it is idle, after ten minutes.
    scene.check_counted_to_the_end();
}

#[test]
fn a_source_in_the_process_holds_back_no_partition_for_one_that_has_ended() {
    a_partition_that_has_ended_holds_no_other(|setting| {
        StreamSource::bounded(&setting.stream).split(2)
    });
    a_partition_that_has_ended_holds_no_other(|setting| {
        let source = StreamSource::of_application(&setting.log, "s", "app").unwrap();
        source.ending().end_at_durable_head();
        vec![source]
    });
}

#[test]
fn a_source_of_a_server_holds_back_no_partition_for_one_that_has_ended() {
    for way in WAYS {
        a_partition_that_has_ended_holds_no_other(|setting| {
            way.sources(setting, 1, ServerEnd::Now)
        });
    }
}

fn a_silent_partition_holds_no_other<S>(make: impl Fn(&Setting) -> Vec<S>)
where
    S: Source<Item: Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
{
    let setting = Setting::new(3);
    produce_large(&setting.stream, 1, fast());
    produce(&setting.stream, 0, [0]);
    let idle_after = Duration::from_millis(200);
    let counting = Counting::start_with(make(&setting), FlowSettings::default(), idle_after);
    counting.wait_until_read(1 + END / STEP);
}

#[test]
fn a_source_in_the_process_holds_back_no_partition_for_a_silent_one() {
    a_silent_partition_holds_no_other(|setting| vec![StreamSource::new(&setting.stream)]);
}

#[test]
fn a_source_of_a_server_holds_back_no_partition_for_a_silent_one() {
    for way in WAYS {
        a_silent_partition_holds_no_other(|setting| way.sources(setting, 1, ServerEnd::Never));
    }
}

/// How a flow ends while a partition is held.
fn a_flow_ends_while_a_partition_is_held<S>(make: impl Fn(&Setting) -> Vec<S>)
where
    S: Source<Item: Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
{
    for is_stopped in [true, false] {
        let setting = Setting::new(3);
        let scene = Scene::new(&setting, || make(&setting), FlowSettings::default());
        scene.check_held_behind(0);
        let started_at = Instant::now();
        if is_stopped {
            scene.counting.running.stop();
            scene.counting.running.join().unwrap();
        } else {
            drop(scene);
        }
        let took = started_at.elapsed();
        // A loaded machine takes some time; a flow that waits for a partition takes longer.
        assert!(took < Duration::from_secs(2), "it took {took:?}");
    }
}

#[test]
fn a_flow_over_a_stream_ends_at_once_while_a_partition_is_held_back() {
    a_flow_ends_while_a_partition_is_held(|setting| vec![StreamSource::new(&setting.stream)]);
}

#[test]
fn a_flow_over_a_servers_stream_ends_at_once_while_a_partition_is_held_back() {
    for way in WAYS {
        a_flow_ends_while_a_partition_is_held(|setting| way.sources(setting, 1, ServerEnd::Never));
    }
}

/// A flow whose source, or partition, is held dies and resumes. The orders of the fast one are there.
fn a_flow_that_holds_back_resumes<S>(setting: &Setting, make: impl Fn(ServerEnd) -> Vec<S>)
where
    S: Source<Item: Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
{
    produce(&setting.stream, 0, [0]);
    let folder = tempdir().unwrap();
    let place = Arc::new(CheckpointDir::open(folder.path()).unwrap());
    let flow = resuming(&place, false);
    let mut scene = Scene::of(setting, make(ServerEnd::Never), flow);
    scene.check_held_behind(0);
    scene.produce(0, numbers(STEP, 400 * STEP));
    scene.check_held_behind(399 * STEP);
    // There is a checkpoint whenever something was done. The last of them is taken of a flow that holds back.
    for order in 400..403 {
        let checkpoints = scene.counting.checkpoints();
        scene.produce(0, [order * STEP]);
        scene.counting.wait_for_checkpoints(checkpoints + 1);
    }
    scene.check_held_behind(402 * STEP);
    let before = scene.counting.counts.get();
    let others = scene.others;
    drop(scene.counting);

    let mut scene = Scene::of(setting, make(ServerEnd::Now), resuming(&place, true));
    scene.others = others;
    scene.counting.running.join().unwrap();
    assert_eq!(scene.counting.late_events(), 0);
    let all = fast().count() + scene.others.len();
    let read = scene.counting.read();
    assert!(
        read < all as u64 - 700,
        "it resumes, and does not begin anew: {read} orders"
    );
    let mut counted = scene.counting.counts.get();
    for (window, orders) in before {
        // Results behind the checkpoint come again.
        assert_eq!(*counted.entry(window).or_insert(orders), orders);
    }
    let is_plain = counted == plain([fast().collect(), scene.others]);
    assert!(is_plain, "{} windows", counted.len());
}

#[test]
fn a_flow_resumes_with_a_held_back_partition_of_a_source_in_the_process() {
    for instances in [1, 2] {
        let setting = Setting::new(3);
        produce_large(&setting.stream, 1, fast());
        a_flow_that_holds_back_resumes(&setting, |end| {
            stored(&setting.stream, end).split(instances)
        });
    }
}

#[test]
fn a_flow_resumes_with_a_held_back_partition_of_a_source_of_a_server() {
    for way in WAYS {
        let setting = way.setting(3);
        produce_large(&setting.stream, 1, fast());
        a_flow_that_holds_back_resumes(&setting, |end| way.sources(&setting, 1, end));
    }
}

#[test]
fn a_flow_resumes_with_a_held_back_source_in_the_process() {
    let setting = Setting::new(1);
    let other = setting
        .log
        .create_stream("other", StreamConfig::default())
        .unwrap();
    produce_large(&other, 0, fast());
    a_flow_that_holds_back_resumes(&setting, |end| {
        vec![stored(&setting.stream, end), stored(&other, end)]
    });
}

#[test]
fn a_flow_resumes_with_a_held_back_source_of_a_server() {
    for way in WAYS {
        let setting = way.setting(2);
        produce_large(&setting.stream, 1, fast());
        a_flow_that_holds_back_resumes(&setting, |end| way.sources(&setting, 2, end));
    }
}

fn stored(stream: &Stream, end: ServerEnd) -> StreamSource {
    match end {
        ServerEnd::Never => StreamSource::new(stream),
        ServerEnd::Now => StreamSource::bounded(stream),
    }
}
