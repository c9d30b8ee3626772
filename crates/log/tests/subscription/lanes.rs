//! The chunks that subscriptions to lanes give, and the moments at which subscribers wake.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};

use millstream_base::{ByteSize, Offset};
use millstream_log::{Durability, Log, LogConfig, LogError, Next, StreamConfig, Subscription};
use millstream_record::Chunks;
use tempfile::tempdir;

use crate::{Count, append, chunk, hold_catch_up_memory, values, with_stream};

#[test]
fn a_subscription_reads_lanes_from_their_offsets_and_its_slices_pin_segments() {
    let (_dir, log, stream) = with_stream(2);
    let lanes = [0, 1].map(|partition| stream.partition(partition).unwrap());
    for n in 0..4u8 {
        append(&log, &lanes[0], &[n]);
        append(&log, &lanes[1], &[10 + n]);
    }
    let places = [(lanes[1].clone(), Offset(3)), (lanes[0].clone(), Offset(1))];
    let mut subscription = Subscription::of_partitions(places);
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
fn an_offset_out_of_range_is_refused_with_the_earliest_offset() {
    let (_dir, log, stream) = with_stream(1);
    let lane = stream.partition(0).unwrap();
    let mut subscription = Subscription::of_partitions([(lane.clone(), Offset(1))]);
    let error = subscription.next(1 << 20).unwrap_err();
    assert_eq!(error.place, Some(0));

    // If retention overtakes one of several lanes of a subscription, only this one fails.
    log.create_stream("other", StreamConfig::default()).unwrap();
    let other = log.stream("other").unwrap().partition(0).unwrap();
    let places = [(lane.clone(), Offset(0)), (other.clone(), Offset(0))];
    let mut subscription = Subscription::of_partitions(places);
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

#[test]
fn durable_chunks_and_added_lanes_wake_a_subscriber_once() {
    let (_dir, log, stream) = with_stream(1);
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

#[test]
fn a_lane_that_is_not_wanted_is_read_once_it_is_wanted() {
    for has_shared_group in [false, true] {
        let (_dir, log, stream) = with_stream(3);
        for partition in 0..2u8 {
            let lane = stream.partition(partition.into()).unwrap();
            append(&log, &lane, &[partition]);
        }
        let mut subscription = match has_shared_group {
            true => Subscription::of_shared_group(&log, &stream, "app", "one".to_owned()).unwrap(),
            false => Subscription::of_stream(&stream),
        };
        let mut next =
            |unwanted: u32| match subscription.next_of(1 << 20, |place| place != unwanted) {
                Ok(Next::Handed(handed)) => Some(handed.place),
                Ok(Next::Nothing) => None,
                other => panic!("{other:?}"),
            };
        assert_eq!([next(0), next(0), next(0)], [Some(1), None, None]);
        append(&log, &stream.partition(2).unwrap(), b"2");
        assert_eq!([next(0), next(0)], [Some(2), None]);
        assert_eq!([next(1), next(1)], [Some(0), None]);
        // It is not at its end while a lane is left.
        append(&log, &stream.partition(1).unwrap(), b"1");
        subscription.end_at_head();
        let nothing = subscription.next_of(1, |place| place != 1);
        assert!(matches!(nothing, Ok(Next::Nothing)), "{nothing:?}");
        assert!(matches!(subscription.next(1), Ok(Next::Handed(_))));
        assert!(matches!(subscription.next(1), Ok(Next::End)));
    }
}

/// The lane did not know yet where it begins while its first chunk was appended.
#[test]
fn a_subscription_reads_a_lane_added_meanwhile_from_its_first_record() {
    let dir = tempdir().unwrap();
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
                    stream.partition_count() < lanes || seen.len() < lanes as usize,
                    "lane {lanes}: {seen:?}"
                );
            }
        });
    }
}

#[test]
fn a_subscription_reports_and_awaits_busy_catch_up_memory() {
    let (_dir, log, stream) = with_stream(1);
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

/// One lane that was read from the disk blocked all other lanes of its subscription.
#[test]
fn a_lane_that_waits_for_catch_up_memory_does_not_block_other_lanes() {
    for by_group in [false, true] {
        let (_dir, log, stream) = with_stream(2);
        let [old, live] = [0, 1].map(|partition| stream.partition(partition).unwrap());
        let mut subscription = match by_group {
            true => Subscription::of_shared_group(&log, &stream, "app", "one".to_owned()).unwrap(),
            false => Subscription::of_stream(&stream),
        };
        let gives = |subscription: &mut Subscription, place: u32| matches!(subscription.next(1 << 20).unwrap(), Next::Handed(handed) if handed.place == place);
        append(&log, &live, b"first");
        assert!(gives(&mut subscription, 1));
        let held = hold_catch_up_memory(&log, &old);
        for value in [b"second", b"third."] {
            assert!(matches!(subscription.next(1 << 20).unwrap(), Next::Busy));
            append(&log, &live, value);
            assert!(gives(&mut subscription, 1));
        }
        drop(held);
        assert!(gives(&mut subscription, 0));
    }
}
