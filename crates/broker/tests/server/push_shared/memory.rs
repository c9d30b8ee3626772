//! The memory that a subscription may hold, and the end of subscriptions that hold it too long.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use millstream_base::ByteSize;
use millstream_log::Arena;
use millstream_share::{Descriptor, Hold, Taken};
use millstream_wire::ResponseError;

use super::{Consumer, megabyte, start, value};
use crate::push::lanes;
use crate::support::{Connection, Node, TIME_MAX, wait_until};

#[test]
fn a_closed_subscription_releases_its_segments() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    let mut consumer = Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
    producer.produce("t", 0, &["a"]);
    let held = consumer.take(0);
    node.log().delete_stream("t").unwrap();
    let used = || node.log().pool().used_bytes(Arena::Segments);
    let before = used();
    drop(consumer.connection);
    wait_until("the segment comes back", || used() < before);
    assert!(!held.1.is_live());
}

#[test]
fn a_subscriber_with_false_progress_loses_only_its_own_subscription() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    let mut honest = Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
    for claimed in [100, u64::MAX] {
        let mut liar = Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
        producer.produce("t", 0, &["a"]);
        drop(liar.take(0));
        // It moves its progress beyond the last handed-out chunk.
        let file = OpenOptions::new()
            .write(true)
            .open(&liar.rings_path)
            .unwrap();
        file.write_at(&claimed.to_le_bytes(), 384 + 128).unwrap();
        let (refused, why) = liar.end();
        assert_eq!(refused, Some(ResponseError::InvalidRequest));
        assert!(why.contains("broke the rules"), "{why}");
        assert!(matches!(
            liar.rings[0].take(TIME_MAX).unwrap(),
            Taken::Ended(_)
        ));
    }
    // It overwrites everything that the broker has written.
    let mut vandal = Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
    let file = OpenOptions::new()
        .write(true)
        .open(&vandal.rings_path)
        .unwrap();
    let bytes = file.metadata().unwrap().len() as usize;
    file.write_at(&vec![0xa5; bytes], 0).unwrap();
    producer.produce("t", 0, &["b"]);
    let (refused, _) = vandal.end();
    assert_eq!(refused, Some(ResponseError::InvalidRequest));

    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.extend(honest.values(0));
    }
    assert_eq!(seen, [value(0, "a"), value(0, "a"), value(0, "b")]);
}

#[test]
fn a_stalled_subscriber_loses_only_its_own_subscription() {
    // The other one has as long to take its chunks.
    let node = start(|config| config.push_stall_max = Duration::from_secs(2));
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    let mut stalls = Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
    let mut idles = Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
    producer.produce("t", 0, &["a"]);
    let (_, hold) = stalls.take(0);
    assert_eq!(idles.values(0), [value(0, "a")]);
    let (refused, why) = stalls.end();
    assert_eq!(refused, Some(ResponseError::RequestTimedOut));
    assert!(why.contains("in hand"), "{why}");
    assert!(!hold.is_live());
    // A consumer without chunks in hand may wait forever.
    producer.produce("t", 0, &["b"]);
    assert_eq!(idles.values(0), [value(0, "b")]);
}

/// A source with progress hid the stall of the other.
#[test]
fn a_source_that_stalls_beside_one_that_goes_on_is_noticed() {
    let node = start(|config| config.push_stall_max = Duration::from_millis(500));
    let mut producer = node.connect();
    producer.create_topic("t", 2);
    let sources = vec![lanes(&[(0, 0)]), lanes(&[(1, 0)])];
    let mut consumer = Consumer::begin(node.connect_locally(), sources);
    producer.produce("t", 1, &["held"]);
    let (_, held) = consumer.take(1);
    wait_until("it ends", || {
        producer.produce("t", 0, &["a"]);
        drop(consumer.rings[0].take(Duration::from_millis(50)).unwrap());
        !held.is_live()
    });
    assert_eq!(consumer.end().0, Some(ResponseError::RequestTimedOut));
}

/// All of them together may hold half of the pool: a consumer that makes progress gets the memory
/// of those that do not.
#[test]
fn short_memory_is_reclaimed_from_the_most_stalled_subscription() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    let ahead = ByteSize(64 << 20);
    let mut stalls = Consumer::ahead(node.connect_locally(), vec![lanes(&[(0, 0)])], ahead);
    let mut produce = || producer.produce("t", 0, &[&megabyte()]);
    let mut held: Vec<Hold> = Vec::new();
    for _ in 0..20 {
        produce();
        held.push(stalls.take(0).1);
    }
    // At the head, since the memory for older records is another one.
    let mut goes_on = Consumer::ahead(node.connect_locally(), vec![lanes(&[(0, 20)])], ahead);
    let mut in_hand = VecDeque::new();
    let mut next = 20;
    while next < 80 {
        produce();
        let (descriptor, hold) = goes_on.take(0);
        next = descriptor.next;
        in_hand.push_back(hold);
        if in_hand.len() > 12 {
            in_hand.pop_front();
        }
    }
    let (refused, _) = stalls.end();
    assert_eq!(refused, Some(ResponseError::RequestTimedOut));
    assert!(held.iter().all(|hold| !hold.is_live()));
}

/// Stores 40 records of a megabyte, which are on disk alone.
fn forty_on_disk() -> (Node, Connection) {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    for _ in 0..40 {
        producer.produce("t", 0, &[&megabyte()]);
    }
    node.log().persist();
    node.log().evict();
    (node, producer)
}

/// One consumer that stood still had all of it, and no other could read from the disk any more.
#[test]
fn half_of_the_memory_for_catch_up_reads_is_left_to_others() {
    let (node, mut producer) = forty_on_disk();
    let pool = node.log().pool();
    let ahead = ByteSize(64 << 20);
    let mut stalls = Consumer::ahead(node.connect_locally(), vec![lanes(&[(0, 0)])], ahead);
    let mut held = vec![stalls.take(0)];
    while let Taken::Descriptor(descriptor, hold) =
        stalls.rings[0].take(Duration::from_millis(200)).unwrap()
    {
        held.push((descriptor, hold));
    }
    let is_catch_up = |(descriptor, _): &(Descriptor, Hold)| {
        descriptor.position as usize >= pool.size_bytes(Arena::Segments)
    };
    assert!(held.iter().all(is_catch_up) && held.len() < 30);
    assert!(!producer.fetch("t", 0, 30).records.is_empty());
    assert!(held.iter().all(|(_, hold)| hold.is_live()));
    let mut goes_on = Consumer::ahead(node.connect_locally(), vec![lanes(&[(0, 0)])], ahead);
    let mut next = 0;
    while next < 40 {
        next = goes_on.take(0).0.next;
    }
}

/// Each source had a slice for free, so 16 sources that stood still had all of it together.
#[test]
fn sources_of_one_subscription_leave_half_of_the_memory_for_catch_up_reads() {
    let (node, mut producer) = forty_on_disk();
    let sources = (0..16).map(|n| lanes(&[(0, 2 * n)])).collect();
    let ahead = ByteSize(64 << 20);
    let mut stalls = Consumer::ahead(node.connect_locally(), sources, ahead);
    let mut held = vec![stalls.take(0).1];
    for ring in &mut stalls.rings {
        while let Taken::Descriptor(_, hold) = ring.take(Duration::from_millis(200)).unwrap() {
            held.push(hold);
        }
    }
    assert!(!producer.fetch("t", 0, 39).records.is_empty());
    assert!(held.iter().all(Hold::is_live));

    // The sources go on when memory is back, each in its turn.
    held.clear();
    let mut is_waiting = [true; 16];
    wait_until("each source gets chunks", || {
        for (ring, is_waiting) in stalls.rings.iter_mut().zip(&mut is_waiting) {
            *is_waiting &= !matches!(ring.try_take().unwrap(), Taken::Descriptor(..));
        }
        !is_waiting.contains(&true)
    });
}

#[test]
fn held_memory_of_a_source_is_bounded_and_releasing_it_resumes_delivery() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    let ahead = ByteSize(3 << 20);
    let mut consumer = Consumer::ahead(node.connect_locally(), vec![lanes(&[(0, 0)])], ahead);
    for _ in 0..8 {
        producer.produce("t", 0, &[&megabyte()]);
    }
    let mut held: Vec<Hold> = (0..3).map(|_| consumer.take(0).1).collect();
    let none = consumer.rings[0].take(Duration::from_millis(100)).unwrap();
    assert!(matches!(none, Taken::TimedOut), "{none:?}");
    held.drain(..2);
    for _ in 0..5 {
        held.push(consumer.take(0).1);
        held.remove(0);
    }
}
