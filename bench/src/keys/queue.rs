//! A queue: the members of a share group that is ordered by key, on one partition.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use fastrand::Rng;
use millstream_wire::messages::share_fetch_request::{
    AcknowledgementBatch, FetchPartition, FetchTopic,
};
use millstream_wire::messages::{GroupId, ShareGroupHeartbeatRequest, TopicName};
use millstream_wire::{Response, ShareFetchRequest, Uuid};

use super::data::chunk_of;
use crate::connection::{Connection, GROUP, check_produced, produce_frame, text};
use crate::measure::{Bench, median};
use crate::proc::{cpu_by_thread, took};
use crate::project::our_program;
use crate::report::{Better, Case};
use crate::server::Server;

pub const QUEUE: &str = "queue";

/// The first one is the measure of the others.
const CONSUMERS: [usize; 3] = [1, 8, 32];

/// The least part of the rate of as many single consumers.
const TARGET: f64 = 0.9;

const TOPIC: &str = "jobs";
const CHUNK_RECORDS: usize = 500;

/// Different keys of all records.
const KEYS: u64 = 4_000;

/// A consumer works this long on a record.
const WORK: Duration = Duration::from_millis(1);

/// Records of a fetch.
const FETCHED_RECORDS: i32 = 16;

const HEARTBEAT_VERSION: i16 = 1;
const FETCH_VERSION: i16 = 2;
const ACCEPT: i8 = 1;

/// `share.acquire.mode=record_limit`.
const RECORD_LIMIT: i8 = 1;

struct Ran {
    records_per_second: f64,
    /// Of the server, for each record.
    cpu_us: f64,
}

pub fn queue(bench: &Bench) -> Result<Vec<Case>> {
    if our_program().is_none() {
        eprintln!("bench: {QUEUE} left out: no program millstream beside this one; build it first");
        return Ok(Vec::new());
    }
    let folder = bench.folder(QUEUE, 2 << 30)?;
    let log = bench.out().join("server.log");
    let mut server = Server::start(folder.path(), &log, Vec::new())?;
    let queue = Queue {
        address: server.address(),
        process: server.id(),
        topic: fill(server.address(), bench)?,
        records_each: bench.size(1_000, 50),
    };
    let mut runs = 0;
    let rounds = bench.turns(CONSUMERS.len(), |place| {
        bench.settle_disk();
        runs += 1;
        queue.run(&format!("group-{runs}"), CONSUMERS[place])
    })?;
    server.stop()?;
    let rates =
        |ran: &[Ran]| -> Vec<f64> { ran.iter().map(|ran| ran.records_per_second).collect() };
    let single = rates(&rounds[0]);
    let cases = CONSUMERS.iter().zip(&rounds).map(|(consumers, ran)| {
        let rates = rates(ran);
        let at_work = median(&rates) * WORK.as_secs_f64() / *consumers as f64;
        let cpu_us: Vec<f64> = ran.iter().map(|ran| ran.cpu_us).collect();
        let name = format!("{QUEUE}/{consumers}-consumers");
        let case = Case::new(name, "records/s", Better::Higher, rates)
            .detail("part_of_time_at_work", at_work)
            .detail("server_cpu_us_per_record", median(&cpu_us));
        match consumers {
            1 => case,
            _ => {
                let linear = single.iter().map(|rate| rate * *consumers as f64);
                case.by_hand(linear.collect()).target(TARGET)
            }
        }
    });
    Ok(cases.collect())
}

/// Appends more records than a run takes.
fn fill(address: SocketAddr, bench: &Bench) -> Result<Uuid> {
    let mut connection = Connection::to(address)?;
    connection.create_topic(TOPIC, 1, &[])?;
    let mut rng = Rng::with_seed(1);
    for number in 0..bench.size(100, 20) {
        let chunk = chunk_of(&mut rng, CHUNK_RECORDS, KEYS, number)?;
        connection.send(&produce_frame(TOPIC, &[0], &chunk)?)?;
        check_produced(connection.receive()?)?;
    }
    connection.topic_id(TOPIC)
}

struct Queue {
    address: SocketAddr,
    process: u32,
    topic: Uuid,
    /// The records of a run, for each consumer.
    records_each: usize,
}

impl Queue {
    /// Lets the consumers of a new group work.
    fn run(&self, group: &str, consumers: usize) -> Result<Ran> {
        let settings = [
            ("share.order", "key"),
            ("share.auto.offset.reset", "earliest"),
        ];
        Connection::to(self.address)?.alter(GROUP, group, &settings)?;
        let consumer = |number: usize| -> Result<Consumer> {
            let mut consumer = Consumer::join(self, group, number)?;
            // All begin at the same time.
            consumer.fetch(&[])?;
            ensure!(!consumer.got.is_empty(), "a consumer gets no records");
            Ok(consumer)
        };
        let consumers: Vec<Consumer> = (0..consumers).map(consumer).collect::<Result<_>>()?;
        let left = AtomicUsize::new(self.records_each * consumers.len());
        let records = left.load(Ordering::Relaxed) as f64;
        let cpu_before = cpu_by_thread(self.process)?;
        let began = Instant::now();
        thread::scope(|scope| {
            let threads: Vec<_> = consumers
                .into_iter()
                .map(|consumer| scope.spawn(|| consumer.work(&left)))
                .collect();
            threads.into_iter().try_for_each(|thread| {
                let panicked = |_| anyhow!("a consumer panicked");
                thread.join().map_err(panicked)?
            })
        })?;
        let seconds = began.elapsed().as_secs_f64();
        let cpu_ns: u64 = took(&cpu_before, &cpu_by_thread(self.process)?).sum();
        Ok(Ran {
            records_per_second: records / seconds,
            cpu_us: cpu_ns as f64 / 1e3 / records,
        })
    }
}

/// A member of a share group with a session.
struct Consumer {
    connection: Connection,
    topic: Uuid,
    group: GroupId,
    member: String,
    epoch: i32,
    /// The records that it has to work on.
    got: Vec<i64>,
}

impl Consumer {
    fn join(queue: &Queue, group: &str, number: usize) -> Result<Consumer> {
        let member = format!("member-{number}");
        let mut connection = Connection::to(queue.address)?;
        let group = GroupId(text(group));
        let request = ShareGroupHeartbeatRequest::default()
            .with_group_id(group.clone())
            .with_member_id(text(&member))
            .with_subscribed_topic_names(Some(vec![TopicName(text(TOPIC))]));
        match connection.ask(HEARTBEAT_VERSION, request.into())? {
            Response::ShareGroupHeartbeat(joined) => {
                let code = joined.error_code;
                ensure!(code == 0, "a consumer cannot join: {code}");
            }
            _ => bail!("another answer than to ShareGroupHeartbeat"),
        }
        Ok(Consumer {
            connection,
            topic: queue.topic,
            group,
            member,
            epoch: 0,
            got: Vec::new(),
        })
    }

    /// Works on records until none is left, and acknowledges them with the next fetch.
    fn work(mut self, left: &AtomicUsize) -> Result<()> {
        loop {
            let (done, began) = (std::mem::take(&mut self.got), Instant::now());
            for number in 1..=done.len() as u32 {
                let until = began + WORK * number;
                thread::sleep(until.saturating_duration_since(Instant::now()));
            }
            self.fetch(&done)?;
            let taken = |left: usize| Some(left.saturating_sub(done.len()));
            let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
            if before.unwrap_or_default() <= done.len() {
                return Ok(());
            }
        }
    }

    /// Accepts records, and gets others.
    fn fetch(&mut self, accepted: &[i64]) -> Result<()> {
        let batches = accepted.iter().map(|offset| {
            AcknowledgementBatch::default()
                .with_first_offset(*offset)
                .with_last_offset(*offset)
                .with_acknowledge_types(vec![ACCEPT])
        });
        let partition = FetchPartition::default()
            .with_partition_index(0)
            .with_acknowledgement_batches(batches.collect());
        let topic = FetchTopic::default()
            .with_topic_id(self.topic)
            .with_partitions(vec![partition]);
        let request = ShareFetchRequest {
            group_id: Some(self.group.clone()),
            member_id: Some(text(&self.member)),
            share_session_epoch: self.epoch,
            max_wait_ms: 100,
            min_bytes: 1,
            max_bytes: 16 << 20,
            max_records: FETCHED_RECORDS,
            batch_size: FETCHED_RECORDS,
            share_acquire_mode: RECORD_LIMIT,
            topics: vec![topic],
            ..ShareFetchRequest::default()
        };
        self.epoch += 1;
        let Response::ShareFetch(answer) = self.connection.ask(FETCH_VERSION, request.into())?
        else {
            bail!("another answer than to ShareFetch");
        };
        ensure!(answer.error_code == 0, "no records: {answer:?}");
        // An answer without a partition has neither records nor errors.
        let topics = answer.topics.iter();
        for partition in topics.flat_map(|topic| &topic.partitions) {
            let codes = [partition.error_code, partition.acknowledge_error_code];
            ensure!(codes == [0, 0], "no records: {partition:?}");
            let runs = partition.acquired.iter();
            self.got
                .extend(runs.flat_map(|run| run.first_offset..=run.last_offset));
        }
        Ok(())
    }
}
