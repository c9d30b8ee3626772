//! Many records in flight, many groups, many partitions.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millstream_record::Compression;
use millstream_wire::messages::alter_share_group_offsets_request::{
    AlterShareGroupOffsetsRequestPartition, AlterShareGroupOffsetsRequestTopic,
};
use millstream_wire::messages::share_acknowledge_request::{
    AcknowledgePartition, AcknowledgeTopic, AcknowledgementBatch,
};
use millstream_wire::messages::{
    AlterShareGroupOffsetsRequest, DeleteGroupsRequest, share_fetch_request,
};
use millstream_wire::{ApiKey, Request, ShareAcknowledgeRequest, ShareFetchRequest};

use super::member::*;
use crate::support::{
    Connection, Node, ask, group_id, keyed_chunk, produce_request, resident_bytes, text, topic_name,
};

/// The largest value of `share.partition.max.record.locks`.
const LOCKS_MAX: usize = 10_000;

/// The largest size of a state in memory, its share of the tree included.
const STATE_BYTES_MAX: usize = 200;

/// No step takes longer, also on a busy machine. A quadratic one does.
const STEP_MAX: Duration = Duration::from_secs(30);

/// Does a step; returns its duration.
fn step<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let done = work();
    let took = begun.elapsed();
    println!("{what}: {took:.2?}, {} MiB", resident_bytes() >> 20);
    assert!(took < STEP_MAX, "{what} took {took:?}");
    done
}

/// Fetches all available records of a member, with all requests that this takes.
fn all(member: &mut Member) -> Vec<(i64, i16)> {
    let mut all = Vec::new();
    loop {
        let request = ShareFetchRequest {
            max_records: i32::MAX,
            max_bytes: i32::MAX,
            ..member.request(Vec::new())
        };
        let got = acquired(&member.ask(request));
        if got.is_empty() {
            return all;
        }
        all.extend(got);
    }
}

#[test]
fn a_million_records_in_flight_take_bounded_memory_and_no_more_are_delivered() {
    const PARTITIONS: usize = 100;
    let (node, mut client) = topic_on(Node::alone(|_| {}), PARTITIONS as i32);
    let locks = LOCKS_MAX.to_string();
    from_beginning(&mut client, &[("share.partition.max.record.locks", &locks)]);
    for partition in 0..PARTITIONS {
        client.produce("t", partition as i32, &vec!["x"; LOCKS_MAX + 1]);
    }
    let mut member = Member::join(&node, "a");
    let got = step("a million records acquired", || all(&mut member));
    assert_eq!(
        got.len(),
        PARTITIONS * LOCKS_MAX,
        "as many as may be in flight"
    );
    drop(got);
    // Every other record of some partitions is accepted, so that each has a state of its own.
    const MIXED: usize = 20;
    let before = resident_bytes();
    let types: Vec<i8> = [ACCEPT, RELEASE].repeat(LOCKS_MAX / 2);
    let partitions = (0..MIXED).map(|index| {
        AcknowledgePartition::default()
            .with_partition_index(index as i32)
            .with_acknowledgement_batches(vec![
                AcknowledgementBatch::default()
                    .with_first_offset(0)
                    .with_last_offset(LOCKS_MAX as i64 - 1)
                    .with_acknowledge_types(types.clone()),
            ])
    });
    for partition in partitions {
        let topic = AcknowledgeTopic::default()
            .with_topic_id(member.topic)
            .with_partitions(vec![partition]);
        let request = ShareAcknowledgeRequest {
            group_id: Some(group_id("g")),
            member_id: Some(text("a")),
            share_session_epoch: member.epoch,
            topics: vec![topic],
            ..ShareAcknowledgeRequest::default()
        };
        member.epoch += 1;
        let answer = ask!(member.client, ShareAcknowledge, 1, request);
        assert_eq!(answer.responses[0].partitions[0].error_code, 0);
    }
    let grown = resident_bytes().saturating_sub(before);
    println!("200,000 states: {} MiB", grown >> 20);
    assert!(grown < MIXED * LOCKS_MAX * STATE_BYTES_MAX, "{grown}");
    let again = step("every other record delivered again", || all(&mut member));
    // The accepted ones make room for the last record of their partition, too.
    let counts = |count| again.iter().filter(move |(_, of)| *of == count).count();
    assert_eq!(counts(2), MIXED * LOCKS_MAX / 2);
    assert_eq!(counts(1), MIXED);
    let node = step("start with 200,000 states", || node.restart());
    assert_eq!(start_offset(&mut node.connect()), 1);
}

/// Sends many requests, some of them at the same time.
fn ask_all(client: &mut Connection, api: ApiKey, requests: impl Iterator<Item = (i16, Request)>) {
    const AT_ONCE: usize = 200;
    let mut requests = requests.peekable();
    while requests.peek().is_some() {
        let sent = requests.by_ref().take(AT_ONCE).map(|(version, request)| {
            client.send(version, request);
            version
        });
        for version in sent.collect::<Vec<i16>>() {
            client.receive(api, version);
        }
    }
}

#[test]
fn ten_thousand_share_groups_are_begun_started_again_and_deleted() {
    const GROUPS: usize = 10_000;
    let (node, mut client) = topic_on(Node::alone(|_| {}), 1);
    let names = || (0..GROUPS).map(|number| group_id(&format!("g{number}")));
    client.produce("t", 0, &["a"]);
    let heartbeats = |epoch: i32| {
        names().map(move |group| {
            let topics = (epoch == 0).then(|| vec![topic_name("t")]);
            let request = joining("a")
                .with_group_id(group)
                .with_member_epoch(epoch)
                .with_subscribed_topic_names(topics);
            (1, request.into())
        })
    };
    step("10,000 groups joined", || {
        ask_all(&mut client, ApiKey::ShareGroupHeartbeat, heartbeats(0));
    });
    step("10,000 groups left", || {
        ask_all(&mut client, ApiKey::ShareGroupHeartbeat, heartbeats(-1));
    });
    let alters = names().map(|group| {
        let partition = AlterShareGroupOffsetsRequestPartition::default();
        let topic = AlterShareGroupOffsetsRequestTopic::default()
            .with_topic_name(topic_name("t"))
            .with_partitions(vec![partition]);
        let request = AlterShareGroupOffsetsRequest::default()
            .with_group_id(group)
            .with_topics(vec![topic]);
        (0, request.into())
    });
    step("10,000 positions", || {
        ask_all(&mut client, ApiKey::AlterShareGroupOffsets, alters);
    });
    let node = step("start with 10,000 groups", || node.restart());
    let mut client = node.connect();
    from_beginning(&mut client, &[]);
    let mut member = Member::join(&node, "a");
    step("one fetch among 10,000 groups", || {
        assert_eq!(member.fetch(), [(0, 1)]);
    });
    let request = DeleteGroupsRequest::default().with_groups_names(names().collect());
    let deleted = step("10,000 groups deleted", || {
        ask!(client, DeleteGroups, 2, request)
    });
    let errors = deleted.results.iter().map(|result| result.error_code);
    assert_eq!(errors.filter(|error| *error != 0).count(), 0);
    let node = step("start without them", || node.restart());
    assert_eq!(start_offset(&mut node.connect()), 0);
}

#[test]
fn a_share_group_reads_a_thousand_partitions() {
    const PARTITIONS: i32 = 1000;
    let (node, mut client) = topic_on(Node::alone(|_| {}), PARTITIONS);
    for partition in 0..PARTITIONS {
        client.produce("t", partition, &["a"]);
    }
    let mut member = Member::join(&node, "a");
    let got = step("records of 1,000 partitions", || all(&mut member));
    assert_eq!(got.len(), PARTITIONS as usize);
    step("a fetch of 1,000 partitions without records", || {
        assert_eq!(member.fetch(), []);
    });
    let node = step("start with 1,000 partitions", || node.restart());
    let mut member = Member {
        client: node.connect(),
        epoch: 0,
        ..member
    };
    let got = step("the same records again", || all(&mut member));
    assert_eq!(got.len(), PARTITIONS as usize);
}

#[test]
fn thirty_two_members_share_the_work_on_one_partition_in_the_order_of_its_keys() {
    const MEMBERS: usize = 32;
    const RECORDS: usize = 16_000;
    const KEYS: usize = 4_000;
    let (node, mut client) = topic_on(Node::alone(|_| {}), 1);
    from_beginning(&mut client, &[("share.order", "key")]);
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..RECORDS / 500 {
        let keys: Vec<String> = (0..500).map(|_| rng.usize(..KEYS).to_string()).collect();
        let records: Vec<_> = keys.iter().map(|key| (Some(key.as_str()), "x")).collect();
        let chunk = keyed_chunk(&records, Compression::Lz4);
        let produced = ask!(client, Produce, 9, produce_request("t", 0, chunk));
        assert_eq!(produced.responses[0].partition_responses[0].error_code, 0);
    }
    let ids = (0..MEMBERS).map(|number| &*format!("m{number}").leak());
    let mut members: Vec<Member> = ids.map(|id| Member::join(&node, id)).collect();
    // None waits for another: all have records at the same time.
    let firsts = members.iter_mut().map(|member| {
        let request = of_sixteen(member, Vec::new());
        let got = acquired(&member.ask(request));
        assert_eq!(got.len(), 16, "records of other keys are there");
        got
    });
    let firsts: Vec<_> = firsts.collect();
    let left = AtomicUsize::new(RECORDS);
    let begun = Instant::now();
    let worked: Duration = thread::scope(|scope| {
        let threads: Vec<_> = members
            .into_iter()
            .zip(firsts)
            .map(|(member, first)| scope.spawn(|| work(member, first, &left)))
            .collect();
        let worked = threads.into_iter().map(|thread| thread.join().unwrap());
        worked.sum()
    });
    let took = begun.elapsed();
    let of_linear = worked.as_secs_f64() / took.as_secs_f64() / MEMBERS as f64;
    println!("{MEMBERS} members, {RECORDS} records: {took:.2?}, {of_linear:.2} of linear");
    assert_eq!(start_offset(&mut client), RECORDS as i64);
}

/// A fetch of up to 16 records that acknowledges those of `batches`.
fn of_sixteen(
    member: &mut Member,
    batches: Vec<share_fetch_request::AcknowledgementBatch>,
) -> ShareFetchRequest {
    member.version = 2;
    ShareFetchRequest {
        max_records: 16,
        max_wait_ms: 100,
        share_acquire_mode: 1,
        ..member.request(batches)
    }
}

/// Works for a millisecond on each record that the member has got and gets, until none is left. Returns the time of work.
fn work(mut member: Member, first: Vec<(i64, i16)>, left: &AtomicUsize) -> Duration {
    let mut worked = Duration::ZERO;
    let mut got = first;
    loop {
        let begun = Instant::now();
        let mut batches = Vec::new();
        for (offset, _) in &got {
            thread::sleep(Duration::from_millis(1));
            batches.push(batch(*offset, *offset, &[ACCEPT]));
        }
        worked += begun.elapsed();
        left.fetch_sub(got.len(), Ordering::Relaxed);
        let request = of_sixteen(&mut member, batches);
        got = acquired(&member.ask(request));
        if got.is_empty() && left.load(Ordering::Relaxed) == 0 {
            return worked;
        }
    }
}
