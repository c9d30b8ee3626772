//! Subscriptions: what is handed out, to whom, and when they wake.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Wake, Waker};

use millstream_base::{
    ByteSize, GroupId, Offset, ProducerEpoch, ProducerId, Sequence, StreamletIndex, Timestamp,
};
use millstream_log::{
    Background, Durability, Lane, Log, LogConfig, LogError, Next, StreamConfig, Subscription,
};
use millstream_record::{
    ChunkBuilder, Chunks, Compression, EndMarker, Filter, Producer, Scratch, TransactionEnd,
};
use proptest::prelude::*;

fn open(dir: &Path) -> Log {
    Log::open(LogConfig {
        background: Background::Manual,
        ..LogConfig::with_pool(dir, ByteSize(16 << 20))
    })
    .unwrap()
}

/// Groups of 64 KiB.
fn small_groups(lanes: u32) -> StreamConfig {
    StreamConfig {
        segment: ByteSize(64 << 10),
        group_segments: 1,
        lanes,
        ..StreamConfig::default()
    }
}

fn chunk(producer: Option<(i64, i32)>, is_transactional: bool, value: &[u8]) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(Compression::None);
    builder.set_transactional(is_transactional);
    builder.push(Timestamp(5), None, Some(value), &[]).unwrap();
    let producer = producer.map(|(id, sequence)| Producer {
        id: ProducerId(id),
        epoch: ProducerEpoch(0),
        sequence: Sequence(sequence),
    });
    builder.finish(producer).unwrap().to_vec()
}

fn append(log: &Log, lane: &Lane, value: &[u8]) {
    lane.append(&chunk(None, false, value)).unwrap();
    while log.step() {}
}

/// The values that are there now, by place. Checks that offsets are handed out without gaps.
fn values(subscription: &mut Subscription) -> Vec<(u32, Vec<u8>)> {
    let mut values = Vec::new();
    let mut scratch = Scratch::default();
    loop {
        match subscription.next(3_000).unwrap() {
            Next::Handed(handed) => {
                assert!(handed.from < handed.next && handed.next <= handed.end);
                for chunk in Chunks::new(&handed.chunks.bytes) {
                    let chunk = chunk.unwrap();
                    if chunk.header().attributes.is_control() {
                        continue;
                    }
                    for record in chunk.records(&mut scratch).unwrap() {
                        let record = record.unwrap();
                        if record.offset >= handed.from {
                            assert!(record.offset < handed.next);
                            values.push((handed.place, record.value.unwrap().to_vec()));
                        }
                    }
                }
            }
            Next::Nothing | Next::End => return values,
            Next::Busy => panic!("nobody else reads from the disk"),
        }
    }
}

#[test]
fn lanes_are_read_from_their_offsets_on_and_slices_hold_their_segments() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups(2)).unwrap();
    let lanes = [0, 1].map(|partition| stream.partition(partition).unwrap());
    for n in 0..4u8 {
        append(&log, &lanes[0], &[n]);
        append(&log, &lanes[1], &[10 + n]);
    }
    let places = [(lanes[1].clone(), Offset(3)), (lanes[0].clone(), Offset(1))];
    let mut subscription = Subscription::of_lanes(places);
    let mut all = values(&mut subscription);
    all.sort_unstable();
    assert_eq!(
        all,
        [(0, vec![13]), (1, vec![1]), (1, vec![2]), (1, vec![3])]
    );

    append(&log, &lanes[0], &[4]);
    let Ok(Next::Handed(handed)) = subscription.next(1 << 20) else {
        panic!("it is durable");
    };
    assert_eq!(
        (handed.place, handed.from, handed.next),
        (1, Offset(4), Offset(5))
    );
    log.delete_stream("s").unwrap();
    drop((lanes, stream));
    while log.step() {}
    assert!(matches!(
        subscription.next(1).unwrap_err().error,
        LogError::UnknownStream { .. }
    ));
    drop(subscription);
    log.evict();
    assert_eq!(Chunks::new(&handed.chunks.bytes).count(), 1);
}

#[test]
fn a_place_that_is_not_there_is_refused_with_the_earliest() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups(1)).unwrap();
    let lane = stream.partition(0).unwrap();
    let mut subscription = Subscription::of_lanes([(lane.clone(), Offset(1))]);
    let error = subscription.next(1 << 20).unwrap_err();
    assert_eq!(error.place, Some(0));

    // One that retention overtakes: of those in one subscription it alone.
    log.create_stream("other", StreamConfig::default()).unwrap();
    let other = log.stream("other").unwrap().partition(0).unwrap();
    let places = [(lane.clone(), Offset(0)), (other.clone(), Offset(0))];
    let mut subscription = Subscription::of_lanes(places);
    for _ in 0..100 {
        append(&log, &lane, &[0; 10_000]);
    }
    log.persist();
    log.set_retention("s", None, Some(ByteSize(100_000)))
        .unwrap();
    log.apply_retention().unwrap();
    append(&log, &other, b"other");
    let error = subscription.next(1 << 20).unwrap_err();
    let LogError::OffsetOutOfRange { earliest, .. } = error.error else {
        panic!("{error}");
    };
    assert_eq!((error.place, earliest), (Some(0), lane.earliest_offset()));
    assert!(error.to_string().contains(&earliest.to_string()), "{error}");
    assert_eq!(values(&mut subscription), [(1, b"other".to_vec())]);
}

/// It was told again with every look, for ever.
#[test]
fn a_lane_of_an_application_that_retention_overtakes_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups(2)).unwrap();
    let [lane, other] = [0, 1].map(|partition| stream.partition(partition).unwrap());
    for _ in 0..100 {
        append(&log, &lane, &[0; 10_000]);
    }
    let mut subscription =
        Subscription::of_application(&log, &stream, "app", "one".to_owned()).unwrap();
    assert!(matches!(subscription.next(1), Ok(Next::Handed(_))));
    log.persist();
    log.set_retention("s", None, Some(ByteSize(100_000)))
        .unwrap();
    log.apply_retention().unwrap();
    let error = subscription.next(1 << 20).unwrap_err();
    assert_eq!(error.place, Some(0));
    assert!(
        matches!(error.error, LogError::CursorRemoved { .. }),
        "{error}"
    );
    append(&log, &lane, b"more");
    append(&log, &other, b"other");
    assert_eq!(values(&mut subscription), [(1, b"other".to_vec())]);
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_subscriber_is_woken_once_by_what_is_durable_and_by_lanes_that_are_added() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups(1)).unwrap();
    let mut subscription = Subscription::of_stream(&stream);
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut listening = None;
    let mut sleeps = |subscription: &mut Subscription| {
        while subscription.poll_more(&mut listening, &waker) == Poll::Ready(()) {
            assert!(values(subscription).is_empty());
        }
        count.0.swap(0, Ordering::Relaxed)
    };
    assert_eq!(sleeps(&mut subscription), 0);
    stream
        .partition(0)
        .unwrap()
        .append(&chunk(None, false, b"0"))
        .unwrap();
    assert_eq!(count.0.load(Ordering::Relaxed), 0, "it is not durable yet");
    while log.step() {}
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
    assert_eq!(values(&mut subscription), [(0, b"0".to_vec())]);
    sleeps(&mut subscription);

    log.grow_stream("s", 2, 1).unwrap();
    assert_eq!(sleeps(&mut subscription), 1);
    append(&log, &stream.partition(1).unwrap(), b"1");
    assert_eq!(values(&mut subscription), [(1, b"1".to_vec())]);
    sleeps(&mut subscription);
    subscription.end_at_head();
    assert!(matches!(subscription.next(1), Ok(Next::End)));
}

/// The lane did not know yet where it begins while its first chunk was appended.
#[test]
fn the_first_record_of_a_lane_is_read_that_is_added_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(64 << 20))).unwrap();
    let config = StreamConfig {
        durability: Durability::Memory,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("s", config).unwrap();
    for lanes in 2..300 {
        let mut subscription = Subscription::of_stream(&stream);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                log.grow_stream("s", 1, lanes).unwrap();
                let lane = stream.partition(lanes - 1).unwrap();
                lane.append(&chunk(None, false, b"first")).unwrap();
            });
            let mut seen = Vec::new();
            while !seen.contains(&(lanes - 1, b"first".to_vec())) {
                seen.extend(values(&mut subscription));
                assert!(
                    stream.lane_count() < lanes || seen.len() < lanes as usize,
                    "lane {lanes}: {seen:?}"
                );
            }
        });
    }
}

#[test]
fn a_busy_catch_up_memory_is_told_and_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups(1)).unwrap();
    let lane = stream.partition(0).unwrap();
    for _ in 0..400 {
        append(&log, &lane, &[0; 60_000]);
    }
    log.persist();
    log.evict();
    let mut held = Vec::new();
    let mut reader = Subscription::of_stream(&stream);
    while let Next::Handed(handed) = reader.next(1 << 20).unwrap() {
        held.push(handed);
    }
    let mut subscription = Subscription::of_stream(&stream);
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut listening = None;
    assert!(matches!(subscription.next(1 << 20).unwrap(), Next::Busy));
    while subscription.poll_more(&mut listening, &waker) == Poll::Ready(()) {
        assert!(matches!(subscription.next(1 << 20).unwrap(), Next::Busy));
    }
    drop(held);
    assert!(count.0.load(Ordering::Relaxed) > 0);
    assert!(matches!(
        subscription.next(1 << 20).unwrap(),
        Next::Handed(_)
    ));
}

/// One lane that was read from the disk held up all others of its subscription.
#[test]
fn a_lane_that_waits_for_catch_up_memory_does_not_hold_up_others() {
    for by_group in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        let stream = log.create_stream("s", small_groups(2)).unwrap();
        let [old, live] = [0, 1].map(|partition| stream.partition(partition).unwrap());
        let mut subscription = match by_group {
            true => Subscription::of_application(&log, &stream, "app", "one".to_owned()).unwrap(),
            false => Subscription::of_stream(&stream),
        };
        let gives = |subscription: &mut Subscription, place: u32| matches!(subscription.next(1 << 20).unwrap(), Next::Handed(handed) if handed.place == place);
        append(&log, &live, b"first");
        assert!(gives(&mut subscription, 1));
        for _ in 0..400 {
            append(&log, &old, &[0; 60_000]);
        }
        log.persist();
        log.evict();
        let mut held = Vec::new();
        let mut reader = Subscription::of_lanes([(old.clone(), Offset(0))]);
        while let Next::Handed(handed) = reader.next(1 << 20).unwrap() {
            held.push(handed);
        }
        for value in [b"second", b"third."] {
            assert!(matches!(subscription.next(1 << 20).unwrap(), Next::Busy));
            append(&log, &live, value);
            assert!(gives(&mut subscription, 1));
        }
        drop(held);
        assert!(gives(&mut subscription, 0));
    }
}

/// What is done to a lane.
#[derive(Debug, Clone)]
enum Step {
    Plain(u8),
    Transactional { producer: u8, value: u8 },
    End { producer: u8, commits: bool },
    Read,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u8>().prop_map(Step::Plain),
        4 => (0..3u8, any::<u8>()).prop_map(|(producer, value)| Step::Transactional { producer, value }),
        2 => (0..3u8, any::<bool>()).prop_map(|(producer, commits)| Step::End { producer, commits }),
        2 => Just(Step::Read),
    ]
}

/// A lane, as a list.
#[derive(Default)]
struct Model {
    /// Value, producer of the open transaction, whether it counts.
    records: Vec<(u8, Option<u8>, bool)>,
}

impl Model {
    fn end(&mut self, producer: u8, commits: bool) {
        for record in &mut self.records {
            if record.1 == Some(producer) {
                (record.1, record.2) = (None, commits);
            }
        }
    }

    fn committed(&self) -> Vec<u8> {
        let stable = self.records.iter().take_while(|record| record.1.is_none());
        stable
            .filter(|record| record.2)
            .map(|record| record.0)
            .collect()
    }
}

proptest! {
    /// Both kinds of subscriptions give what is committed, in order, once, whenever they read.
    #[test]
    fn what_is_committed_is_handed_out_once(steps in prop::collection::vec(step(), 1..120)) {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        let stream = log.create_stream("s", small_groups(1)).unwrap();
        let lane = stream.partition(0).unwrap();
        let mut by_offset = Subscription::of_lanes([(lane.clone(), Offset(0))]);
        let mut by_group =
            Subscription::of_application(&log, &stream, "app", "one".to_owned()).unwrap();
        let (mut seen, mut seen_by_group) = (Vec::new(), Vec::new());
        let mut model = Model::default();
        let mut sequences = [0; 3];
        let wide = |value: u8| vec![value; 2_000];
        for step in steps.into_iter().chain([Step::Read]) {
            match step {
                Step::Plain(value) => {
                    append(&log, &lane, &wide(value));
                    model.records.push((value, None, true));
                }
                Step::Transactional { producer, value } => {
                    let sequence = &mut sequences[producer as usize];
                    let producing = Some((i64::from(producer), *sequence));
                    lane.append(&chunk(producing, true, &wide(value))).unwrap();
                    *sequence += 1;
                    while log.step() {}
                    model.records.push((value, Some(producer), true));
                }
                Step::End { producer, commits } => {
                    let marker = EndMarker {
                        producer_id: ProducerId(producer.into()),
                        producer_epoch: ProducerEpoch(0),
                        end: if commits { TransactionEnd::Commit } else { TransactionEnd::Abort },
                        coordinator_epoch: 0,
                    };
                    lane.append_marker(&marker).unwrap();
                    while log.step() {}
                    model.end(producer, commits);
                }
                Step::Read => {
                    seen.extend(values(&mut by_offset).iter().map(|(_, value)| value[0]));
                    seen_by_group.extend(values(&mut by_group).iter().map(|(_, value)| value[0]));
                    prop_assert_eq!(&seen, &model.committed());
                    prop_assert_eq!(&seen_by_group, &seen);
                }
            }
        }
    }
}

#[test]
fn four_subscribers_of_one_application_read_one_streamlet_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups(1)).unwrap();
    let lane = stream
        .lane_for(StreamletIndex(0), ProducerId::NONE)
        .unwrap();
    let mut subscribers = [0, 1, 2, 3].map(|n| {
        Subscription::of_application(&log, &stream, "app", format!("consumer {n}")).unwrap()
    });
    let count = 200u8;
    for n in 0..count {
        append(&log, &lane, &[n; 3_000]);
    }
    let mut seen = Vec::new();
    // In turns of one slice, until nobody has anything.
    let mut is_idle = false;
    while !is_idle {
        is_idle = true;
        for (n, subscriber) in subscribers.iter_mut().enumerate() {
            if let Next::Handed(handed) = subscriber.next(10_000).unwrap() {
                is_idle = false;
                for chunk in handed.chunks.chunks() {
                    seen.push((n, chunk.unwrap().header().base_offset.0));
                }
                subscriber.commit().unwrap();
            }
        }
    }
    let mut offsets: Vec<u64> = seen.iter().map(|(_, offset)| *offset).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..u64::from(count)).collect::<Vec<_>>());
    for n in 0..4 {
        assert!(
            seen.iter().any(|(reader, _)| *reader == n),
            "{n} had nothing to do"
        );
    }

    // What one leaves unfinished goes to the others.
    append(&log, &lane, b"last");
    let mut next = |n: usize| matches!(subscribers[n].next(10_000).unwrap(), Next::Handed(_));
    let holder = (0..4).find(|n| next(*n)).expect("one has the open group");
    assert!(!(0..4).any(next));
    subscribers[holder].release();
    let other = &mut subscribers[(holder + 1) % 4];
    assert_eq!(values(other), [(0, b"last".to_vec())]);
}

/// Who subscribed again by the same name lost its groups when the first subscription ended, and others were handed
/// the same records.
#[test]
fn a_subscriber_keeps_its_groups_when_an_older_one_of_the_same_name_ends() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups(2)).unwrap();
    let lanes = [0, 1].map(|partition| stream.partition(partition).unwrap());
    let subscriber =
        |name: &str| Subscription::of_application(&log, &stream, "app", name.to_owned()).unwrap();
    let (mut old, mut new, mut other) = (subscriber("one"), subscriber("one"), subscriber("two"));
    append(&log, &lanes[0], b"0");
    assert_eq!(values(&mut old), [(0, b"0".to_vec())]);
    append(&log, &lanes[1], b"1");
    let Ok(Next::Handed(handed)) = new.next(1 << 20) else {
        panic!("nobody has that group");
    };
    drop(old);
    assert_eq!(values(&mut other), [(0, b"0".to_vec())]);

    // It can commit by its name what it has.
    let application = log.application("s", "app").unwrap();
    application.commit("one", &handed.chunks.next).unwrap();
    drop(new);
    append(&log, &lanes[1], b"2");
    assert_eq!(values(&mut other), [(1, b"2".to_vec())]);
}

/// All groups that were ever read were kept in mind, and committed once more.
#[test]
fn a_subscriber_forgets_the_groups_that_others_commit_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups(1)).unwrap();
    let lane = stream.partition(0).unwrap();
    for _ in 0..20 {
        append(&log, &lane, &[0; 10_000]);
    }
    let mut subscription =
        Subscription::of_application(&log, &stream, "app", "one".to_owned()).unwrap();
    let mut cursors = Vec::new();
    while let Next::Handed(handed) = subscription.next(1 << 20).unwrap() {
        cursors.push(handed.chunks.next);
    }
    assert!(cursors.len() > 2);
    let application = log.application("s", "app").unwrap();
    for cursor in cursors {
        application.commit("one", &cursor).unwrap();
    }
    assert!(matches!(subscription.next(1 << 20), Ok(Next::Nothing)));
    subscription.commit().unwrap();
}

/// Whoever looked in vain took all groups that there were.
#[test]
fn what_an_open_transaction_holds_back_is_left_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups(2)).unwrap();
    let [blocked, other] = [0, 1].map(|partition| stream.partition(partition).unwrap());
    blocked.append(&chunk(Some((1, 0)), true, b"open")).unwrap();
    for n in 0..20 {
        append(&log, &blocked, &[n; 10_000]);
        append(&log, &other, &[n; 10_000]);
    }
    let mut subscription =
        Subscription::of_application(&log, &stream, "app", "one".to_owned()).unwrap();
    // Of the other lane it gets all.
    let read = values(&mut subscription);
    assert_eq!(read.len(), 20);
    assert!(read.iter().all(|(place, _)| *place == 1));
    for _ in 0..100 {
        assert!(matches!(subscription.next(1 << 20), Ok(Next::Nothing)));
    }
    let application = log.application("s", "app").unwrap();
    let left = application.next_groups(StreamletIndex(0), "two", 1_000);
    let all = (0..100).filter(|id| {
        let lane = stream.lane_of_group(StreamletIndex(0), GroupId(*id));
        lane.is_ok_and(|lane| lane.partition() == 0)
    });
    assert_eq!(left.unwrap().len(), all.count() - 1);

    application.release("two");
    let marker = EndMarker {
        producer_id: ProducerId(1),
        producer_epoch: ProducerEpoch(0),
        end: TransactionEnd::Commit,
        coordinator_epoch: 0,
    };
    blocked.append_marker(&marker).unwrap();
    while log.step() {}
    assert_eq!(values(&mut subscription).len(), 21);
}

/// A lane of which no group was handed out yet waited for the memory that another one needed.
#[test]
fn a_lane_that_waits_for_catch_up_memory_does_not_hold_up_one_that_is_new() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups(2)).unwrap();
    let [old, live] = [0, 1].map(|partition| stream.partition(partition).unwrap());
    for _ in 0..400 {
        append(&log, &old, &[0; 60_000]);
    }
    log.persist();
    log.evict();
    let mut held = Vec::new();
    let mut reader = Subscription::of_lanes([(old.clone(), Offset(0))]);
    while let Next::Handed(handed) = reader.next(1 << 20).unwrap() {
        held.push(handed);
    }
    let mut subscription =
        Subscription::of_application(&log, &stream, "app", "one".to_owned()).unwrap();
    assert!(matches!(subscription.next(1 << 20), Ok(Next::Busy)));
    append(&log, &live, b"first");
    let next = subscription.next(1 << 20);
    assert!(matches!(next, Ok(Next::Handed(handed)) if handed.place == 1));
}

/// A chunk of so many records, the values of which are `keep` or `drop`, each of so many bytes.
fn mixed(kinds: &[bool], bytes: usize, compression: Compression) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(compression);
    for keep in kinds {
        let mut value = if *keep {
            b"keep".to_vec()
        } else {
            b"drop".to_vec()
        };
        value.resize(bytes.max(4), b'.');
        builder.push(Timestamp(5), None, Some(&value), &[]).unwrap();
    }
    builder.finish(None).unwrap().to_vec()
}

proptest! {
    /// Whatever the chunks are like, a filter keeps what it should, at its offsets, and no more bytes than
    /// that takes.
    #[test]
    fn a_filter_keeps_what_it_should(
        chunks in prop::collection::vec(
            (prop::collection::vec(prop::bool::weighted(0.3), 1..40), 0..3_000usize, any::<bool>()),
            1..40,
        ),
        bytes_max in 1..100_000usize,
        by_group in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        let config = StreamConfig {
            segment: ByteSize(256 << 10),
            group_segments: 1,
            ..StreamConfig::default()
        };
        let stream = log.create_stream("s", config).unwrap();
        let lane = stream.partition(0).unwrap();
        let mut subscription = match by_group {
            true => Subscription::of_application(&log, &stream, "app", "one".to_owned()).unwrap(),
            false => Subscription::of_stream(&stream),
        };
        subscription.set_filter(Filter::parse(r#"value starts with "keep""#).unwrap());
        let (mut expected, mut kept_bytes) = (Vec::new(), 0);
        for (kinds, bytes, is_compressed) in &chunks {
            let compression = if *is_compressed { Compression::Lz4 } else { Compression::None };
            let from = lane.next_offset().0;
            lane.append(&mixed(kinds, *bytes, compression)).unwrap();
            while log.step() {}
            let kept = (from..).zip(kinds).filter(|(_, keep)| **keep);
            expected.extend(kept.map(|(offset, _)| offset));
            kept_bytes += kinds.iter().filter(|keep| **keep).count() * (bytes + 100);
        }
        let (mut seen, mut seen_bytes, mut next) = (Vec::new(), 0, Offset(0));
        let mut scratch = Scratch::default();
        while let Next::Handed(handed) = subscription.next(bytes_max).unwrap() {
            prop_assert_eq!(handed.from, next);
            next = handed.next;
            seen_bytes += handed.chunks.bytes.len();
            for chunk in Chunks::new(&handed.chunks.bytes) {
                for record in chunk.unwrap().records(&mut scratch).unwrap() {
                    let record = record.unwrap();
                    prop_assert!(record.value.unwrap().starts_with(b"keep"));
                    seen.push(record.offset.0);
                }
            }
        }
        prop_assert_eq!(next, lane.next_offset());
        prop_assert_eq!(seen, expected);
        prop_assert!(seen_bytes <= kept_bytes + 200 * chunks.len(), "{} of {}", seen_bytes, kept_bytes);
    }
}

#[test]
fn a_chunk_that_cannot_be_filtered_is_told_and_what_comes_before_it_is_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups(1)).unwrap();
    let lane = stream.partition(0).unwrap();
    lane.append(&mixed(&[true, false], 10, Compression::None))
        .unwrap();
    // 33 MB of records.
    lane.append(&mixed(&[true; 33], 1 << 20, Compression::Zstd))
        .unwrap();
    while log.step() {}
    let mut subscription = Subscription::of_stream(&stream);
    subscription.set_filter(Filter::parse(r#"value contains "keep""#).unwrap());
    let Next::Handed(handed) = subscription.next(1 << 20).unwrap() else {
        panic!("there are two chunks");
    };
    assert_eq!(handed.next, Offset(2));
    let error = subscription.next(1 << 20).unwrap_err();
    assert!(
        matches!(error.error, LogError::NotFiltered { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("without a filter"), "{error}");
}

/// A megabyte of compressed chunks was looked through at once, however many gigabytes of records that is.
#[test]
fn a_filter_looks_through_a_bounded_part_of_compressed_chunks_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups(1)).unwrap();
    let lane = stream.partition(0).unwrap();
    let (large, small) = (&[false; 20][..], &[false][..]);
    for kinds in [large, large, small, small] {
        lane.append(&mixed(kinds, 1 << 20, Compression::Zstd))
            .unwrap();
    }
    for _ in 0..100 {
        lane.append(&mixed(small, 1_000, Compression::Zstd))
            .unwrap();
    }
    while log.step() {}
    for by_group in [false, true] {
        let mut subscription = match by_group {
            true => Subscription::of_application(&log, &stream, "app", "one".to_owned()).unwrap(),
            false => Subscription::of_stream(&stream),
        };
        subscription.set_filter(Filter::parse(r#"value contains "keep""#).unwrap());
        for next in [20, 40, 41, 42, 142] {
            let Next::Handed(handed) = subscription.next(1 << 20).unwrap() else {
                panic!("it ends before {next}");
            };
            assert_eq!((handed.chunks.bytes.len(), handed.next), (0, Offset(next)));
        }
        assert!(matches!(subscription.next(1 << 20), Ok(Next::Nothing)));
    }
}
