//! Subscribers that share the groups of a stream.

use std::task::Waker;

use millstream_base::{ByteSize, GroupId, ProducerEpoch, ProducerId, StreamletIndex};
use millstream_log::{LogError, Next, Subscription};
use millstream_record::{EndMarker, TransactionEnd};

use crate::{append, chunk, hold_catch_up_memory, values, with_stream};

/// Each look reported it again, for ever.
#[test]
fn a_subscriber_reports_once_that_retention_overtook_a_lane() {
    let (_dir, log, stream) = with_stream(2);
    let [lane, other] = [0, 1].map(|partition| stream.partition(partition).unwrap());
    for _ in 0..100 {
        append(&log, &lane, &[0; 10_000]);
    }
    let mut subscription =
        Subscription::of_shared_group(&log, &stream, "app", "one".to_owned()).unwrap();
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

/// A subscriber without a group waited for ever.
#[test]
fn every_subscriber_learns_once_for_each_lane_that_the_stream_was_deleted() {
    let (_dir, log, stream) = with_stream(2);
    append(&log, &stream.partition(0).unwrap(), b"value");
    let mut subscribers = ["one", "two"]
        .map(|name| Subscription::of_shared_group(&log, &stream, "app", name.to_owned()).unwrap());
    let [holder, other] = &mut subscribers;
    assert!(matches!(holder.next(1 << 20), Ok(Next::Handed(_))));
    assert!(matches!(other.next(1 << 20), Ok(Next::Nothing)));
    let woken = woken_by(other, || log.delete_stream("s").unwrap());
    assert!(woken, "a waiting subscriber has to look again");
    for subscriber in &mut subscribers {
        for place in [0, 1] {
            let error = subscriber.next(1 << 20).unwrap_err();
            assert_eq!(error.place, Some(place));
            let error = error.error;
            assert!(matches!(error, LogError::UnknownStream { .. }), "{error}");
        }
        assert!(matches!(subscriber.next(1 << 20), Ok(Next::Nothing)));
    }
}

/// Returns whether a subscriber that found nothing is woken.
fn woken_by(subscription: &mut Subscription, change: impl FnOnce()) -> bool {
    let mut listening = None;
    let waker = Waker::noop();
    assert!(subscription.poll_more(&mut listening, waker).is_ready());
    assert!(matches!(subscription.next(1 << 20), Ok(Next::Nothing)));
    assert!(subscription.poll_more(&mut listening, waker).is_pending());
    change();
    subscription.poll_more(&mut listening, waker).is_ready()
}

#[test]
fn four_subscribers_of_one_shared_group_read_one_streamlet_side_by_side() {
    let (_dir, log, stream) = with_stream(1);
    let lane = stream
        .partition_for(StreamletIndex(0), ProducerId::NONE)
        .unwrap();
    let mut subscribers = [0, 1, 2, 3].map(|n| {
        Subscription::of_shared_group(&log, &stream, "app", format!("consumer {n}")).unwrap()
    });
    let count = 200u8;
    for n in 0..count {
        append(&log, &lane, &[n; 3_000]);
    }
    let mut seen = Vec::new();
    // In turns of one slice, until no subscriber has any.
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

    // Groups that one subscriber leaves unfinished go to the others.
    append(&log, &lane, b"last");
    let mut next = |n: usize| matches!(subscribers[n].next(10_000).unwrap(), Next::Handed(_));
    let holder = (0..4).find(|n| next(*n)).expect("one has the open group");
    assert!(!(0..4).any(next));
    subscribers[holder].release();
    let other = &mut subscribers[(holder + 1) % 4];
    assert_eq!(values(other), [(0, b"last".to_vec())]);
}

/// A second subscription of the same name lost its groups when the first one ended, and others were handed
/// the same records.
#[test]
fn a_subscriber_keeps_its_groups_when_an_older_subscriber_of_its_name_ends() {
    let (_dir, log, stream) = with_stream(2);
    let lanes = [0, 1].map(|partition| stream.partition(partition).unwrap());
    let subscriber =
        |name: &str| Subscription::of_shared_group(&log, &stream, "app", name.to_owned()).unwrap();
    let (mut old, mut new, mut other) = (subscriber("one"), subscriber("one"), subscriber("two"));
    append(&log, &lanes[0], b"0");
    assert_eq!(values(&mut old), [(0, b"0".to_vec())]);
    append(&log, &lanes[1], b"1");
    let Ok(Next::Handed(handed)) = new.next(1 << 20) else {
        panic!("no subscriber has that group");
    };
    drop(old);
    assert_eq!(values(&mut other), [(0, b"0".to_vec())]);

    // It can commit the group that it has.
    let shared_group = log.shared_group("s", "app").unwrap();
    shared_group.commit("one", &handed.chunks.next).unwrap();
    drop(new);
    append(&log, &lanes[1], b"2");
    assert_eq!(values(&mut other), [(1, b"2".to_vec())]);
}

/// The subscriber remembered all groups that it had ever read, and committed them once more.
#[test]
fn a_subscriber_drops_groups_that_another_commits_under_its_name() {
    let (_dir, log, stream) = with_stream(1);
    let lane = stream.partition(0).unwrap();
    for _ in 0..20 {
        append(&log, &lane, &[0; 10_000]);
    }
    let mut subscription =
        Subscription::of_shared_group(&log, &stream, "app", "one".to_owned()).unwrap();
    let mut cursors = Vec::new();
    while let Next::Handed(handed) = subscription.next(1 << 20).unwrap() {
        cursors.push(handed.chunks.next);
    }
    assert!(cursors.len() > 2);
    let shared_group = log.shared_group("s", "app").unwrap();
    for cursor in cursors {
        shared_group.commit("one", &cursor).unwrap();
    }
    assert!(matches!(subscription.next(1 << 20), Ok(Next::Nothing)));
    subscription.commit().unwrap();
}

/// A subscriber that found no chunks claimed all groups.
#[test]
fn groups_behind_an_open_transaction_are_left_to_other_subscribers() {
    let (_dir, log, stream) = with_stream(2);
    let [blocked, other] = [0, 1].map(|partition| stream.partition(partition).unwrap());
    blocked.append(&chunk(Some((1, 0)), true, b"open")).unwrap();
    for n in 0..20 {
        append(&log, &blocked, &[n; 10_000]);
        append(&log, &other, &[n; 10_000]);
    }
    let mut subscription =
        Subscription::of_shared_group(&log, &stream, "app", "one".to_owned()).unwrap();
    // Of the other lane it gets all.
    let read = values(&mut subscription);
    assert_eq!(read.len(), 20);
    assert!(read.iter().all(|(place, _)| *place == 1));
    for _ in 0..100 {
        assert!(matches!(subscription.next(1 << 20), Ok(Next::Nothing)));
    }
    let shared_group = log.shared_group("s", "app").unwrap();
    let left = shared_group.next_groups(StreamletIndex(0), "two", 1_000);
    let all = (0..100).filter(|id| {
        let lane = stream.partition_of_group(StreamletIndex(0), GroupId(*id));
        lane.is_ok_and(|lane| lane.index() == 0)
    });
    assert_eq!(left.unwrap().len(), all.count() - 1);

    shared_group.release("two");
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
fn a_lane_that_waits_for_catch_up_memory_does_not_block_a_new_lane() {
    let (_dir, log, stream) = with_stream(2);
    let [old, live] = [0, 1].map(|partition| stream.partition(partition).unwrap());
    let _held = hold_catch_up_memory(&log, &old);
    let mut subscription =
        Subscription::of_shared_group(&log, &stream, "app", "one".to_owned()).unwrap();
    assert!(matches!(subscription.next(1 << 20), Ok(Next::Busy)));
    append(&log, &live, b"first");
    let next = subscription.next(1 << 20);
    assert!(matches!(next, Ok(Next::Handed(handed)) if handed.place == 1));
}
