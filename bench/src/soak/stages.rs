//! A run from beginning to end: streams, clients, the kill, the drain, the audit, the farewell.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use millstream_base::ByteSize;
use millstream_client::native::{Durability, StreamSettings};
use millstream_client::{Producer, ProducerConfig, ProducerRecord};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::plan::Plan;
use super::probe::{self, Times};
use super::report::{Outcome, progress};
use super::run::{BALLAST, BALLAST_PARTITIONS, Phase, Run, STREAM};
use super::watch::Watch;
use super::{cutters, members, misfits, readers, writers};
use crate::report::Case;
use crate::server::{Sample, Server};

/// A lane retains more than readers may ever be behind, and its groups are small, so that some are removed.
const RETENTION_BYTES: u64 = 48 << 20;
const SEGMENT_BYTES: u64 = 1 << 20;
const GROUP_SEGMENTS: u32 = 4;

const BALLAST_RECORDS: usize = 256;
const BALLAST_RECORD_BYTES: usize = 64 << 10;

/// How long the server is away.
const OUTAGE: Duration = Duration::from_millis(500);

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Shorter runs are looked at more often.
const LOOKS_MIN: u32 = 50;
/// Between two lines of progress.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// All has been read by then; a member that was killed is missed for 45 seconds.
const DRAIN_MAX: Duration = Duration::from_secs(120);
/// By then the server has noticed that all clients left.
const FAREWELL_MAX: Duration = Duration::from_secs(60);

/// Returns the most that a run stores on disk: streams, journal and ledgers.
pub fn bytes_max(plan: &Plan) -> u64 {
    let lanes = plan.partitions as u64;
    let group = SEGMENT_BYTES * u64::from(GROUP_SEGMENTS);
    lanes * (RETENTION_BYTES + 2 * group) + (1 << 30)
}

pub struct Soak {
    run: Arc<Run>,
    server: Server,
    kills: bool,
    /// The highest p99 of the probe that is no fault.
    probe_ms_max: f64,
    watch: Watch,
    times: Arc<Times>,
    restart_s: Option<f64>,
    told_at: Instant,
}

impl Soak {
    pub fn new(run: Arc<Run>, server: Server, kills: bool, probe_ms_max: f64) -> Soak {
        Soak {
            run,
            server,
            kills,
            probe_ms_max,
            watch: Watch::default(),
            times: Arc::default(),
            restart_s: None,
            told_at: Instant::now(),
        }
    }

    /// # Errors
    /// When an invariant is violated.
    pub async fn go(mut self) -> Result<Vec<Case>> {
        let mut before = self.server.sample()?;
        self.create_streams().await?;
        // Threads that the streams need are there now.
        before.threads = self.server.sample()?.threads.max(before.threads);
        let mut tasks = JoinSet::new();
        self.start_writers(&mut tasks);
        let mut others = JoinSet::new();
        self.start_others(&mut others);
        let lasts = self.run.lasts;
        if self.kills {
            self.work_until(lasts / 2).await?;
            self.kill().await?;
        }
        self.work_until(lasts).await?;
        self.run.enter(Phase::Drain);
        self.drain(&mut tasks).await?;
        self.run.enter(Phase::Leave);
        let left = timeout(FAREWELL_MAX, async {
            while let Some(ended) = others.join_next().await {
                ended?;
            }
            self.check_faults()
        });
        left.await
            .context("not all clients end when they should")??;
        self.check_probe()?;
        let audited = self.audit().await?;
        self.farewell(&before).await?;
        self.server.stop()?;
        let (errors, log_lines) = self.server.log_lines()?;
        ensure!(
            errors.is_empty(),
            "the server's log has errors: {errors:#?}"
        );
        Ok(Outcome {
            run: &self.run,
            watch: &self.watch,
            times: &self.times,
            probe_ms_max: self.probe_ms_max,
            restart_s: self.restart_s,
            audited,
            log_lines,
        }
        .cases())
    }

    async fn create_streams(&self) -> Result<()> {
        let client = self.run.client();
        let settings = |streamlets: usize, retention_bytes| StreamSettings {
            streamlets: streamlets as u32,
            lanes: 1,
            virtual_logs: 1,
            durability: Durability::Sync,
            group_segments: GROUP_SEGMENTS,
            segment_bytes: ByteSize(SEGMENT_BYTES),
            retention_bytes,
            ..StreamSettings::default()
        };
        let retention = Some(ByteSize(RETENTION_BYTES));
        client
            .create_stream(STREAM, settings(self.run.plan.partitions, retention))
            .await?;
        client
            .create_stream(probe::STREAM, settings(1, retention))
            .await?;
        client
            .create_stream(BALLAST, settings(BALLAST_PARTITIONS, None))
            .await?;
        let producer = Producer::new(&client, ProducerConfig::default());
        let value = vec![1; BALLAST_RECORD_BYTES];
        for number in 0..BALLAST_RECORDS {
            let record = ProducerRecord {
                topic: BALLAST,
                partition: Some((number % BALLAST_PARTITIONS) as i32),
                value: Some(&value),
                ..ProducerRecord::default()
            };
            producer.send(record).await?;
        }
        Ok(producer.flush().await?)
    }

    fn start_writers(&self, tasks: &mut JoinSet<()>) {
        let (run, plan) = (&self.run, &self.run.plan);
        for writer in 0..plan.writers {
            let work = writers::write(Arc::clone(run), writer);
            run.spawn(tasks, format!("writer {writer}"), work);
        }
        for writer in plan.writers..plan.writers + plan.cutters {
            let work = cutters::write(Arc::clone(run), writer);
            run.spawn(tasks, format!("writer {writer}, which is cut off"), work);
        }
    }

    fn start_others(&self, tasks: &mut JoinSet<()>) {
        let (run, plan) = (&self.run, &self.run.plan);
        for partition in 0..plan.partitions {
            for reader in 0..plan.readers_per_partition {
                let work = readers::read(Arc::clone(run), partition, reader);
                run.spawn(
                    tasks,
                    format!("reader {reader} of partition {partition}"),
                    work,
                );
            }
        }
        for group in 0..plan.groups {
            for member in 0..plan.members_per_group {
                let work = members::take_part(Arc::clone(run), group, member);
                run.spawn(tasks, format!("member {member} of group {group}"), work);
            }
        }
        for _ in 0..plan.silent {
            let work = misfits::be_silent(Arc::clone(run));
            run.spawn(tasks, "a silent client".to_owned(), work);
        }
        for number in 0..plan.greedy {
            let work = misfits::be_greedy(Arc::clone(run), number);
            run.spawn(tasks, "a greedy client".to_owned(), work);
        }
        for number in 0..plan.garbled {
            let work = misfits::be_garbled(Arc::clone(run), number);
            run.spawn(tasks, "a client that sends anything".to_owned(), work);
        }
        let produce = probe::produce(Arc::clone(run), Arc::clone(&self.times));
        run.spawn(tasks, "the probe's producer".to_owned(), produce);
        let consume = probe::consume(Arc::clone(run), Arc::clone(&self.times));
        run.spawn(tasks, "the probe's consumer".to_owned(), consume);
    }

    async fn work_until(&mut self, end: Duration) -> Result<()> {
        while self.run.started_at.elapsed() < end {
            let left = end.saturating_sub(self.run.started_at.elapsed());
            sleep(left.min(LOOK_EVERY).min(self.run.lasts / LOOKS_MIN)).await;
            self.look()?;
        }
        Ok(())
    }

    fn look(&mut self) -> Result<()> {
        self.check_faults()?;
        let sample = self.watch.look(&self.run, &mut self.server)?;
        if self.told_at.elapsed() >= TELL_EVERY {
            self.told_at = Instant::now();
            eprintln!("{}", progress(&self.run, &sample, &self.times));
        }
        Ok(())
    }

    fn check_faults(&self) -> Result<()> {
        let faults = self.run.faults();
        ensure!(
            faults.is_empty(),
            "this does not hold:\n  {}",
            faults.join("\n  ")
        );
        Ok(())
    }

    async fn kill(&mut self) -> Result<()> {
        self.run.note_outage();
        self.server.kill()?;
        sleep(OUTAGE).await;
        let started_at = Instant::now();
        self.server.start_again()?;
        self.restart_s = Some(started_at.elapsed().as_secs_f64());
        self.run.note_outage();
        self.watch.expect_return(&self.run);
        Ok(())
    }

    /// Waits until the writers have ended, and all readers and groups have seen all records.
    async fn drain(&mut self, writers: &mut JoinSet<()>) -> Result<()> {
        let started_at = Instant::now();
        loop {
            while let Some(ended) = writers.try_join_next() {
                ended?;
            }
            let lacking = self.run.books.lacking();
            if writers.is_empty() && lacking.is_empty() {
                return self.check_faults();
            }
            if started_at.elapsed() > DRAIN_MAX {
                bail!(
                    "{DRAIN_MAX:?} after the end {} writers wait for answers, and:\n  {}",
                    writers.len(),
                    lacking.join("\n  ")
                );
            }
            sleep(LOOK_EVERY / 10).await;
            self.look()?;
        }
    }

    fn check_probe(&self) -> Result<()> {
        for (what, times) in [
            ("stored", &self.times.stored_ms),
            ("seen", &self.times.seen_ms),
        ] {
            let (p99, most) = (Times::quantile(times, 0.99), self.probe_ms_max);
            let fault = format!("of the probe's records 1 % are {what} after {p99:.0} ms or more");
            ensure!(p99 <= most, "{fault}: at most {most} are allowed");
        }
        Ok(())
    }

    async fn audit(&self) -> Result<u64> {
        let mut records = 0;
        for partition in 0..self.run.plan.partitions {
            let audited = readers::audit(&self.run, partition).await;
            records += audited.map_err(|error| {
                error.context(format!("partition {partition}, read again at the end"))
            })?;
        }
        Ok(records)
    }

    /// Waits until the server holds no more than before the first client.
    async fn farewell(&self, before: &Sample) -> Result<()> {
        let started_at = Instant::now();
        loop {
            let now = self.server.sample()?;
            let is_less = now.sockets <= before.sockets
                && now.threads <= before.threads
                && now.removed_files == 0;
            if is_less {
                return Ok(());
            }
            ensure!(
                started_at.elapsed() < FAREWELL_MAX,
                "{FAREWELL_MAX:?} after all have gone the server has more than before: {now:?}, and \
                 it had {before:?}"
            );
            sleep(LOOK_EVERY).await;
        }
    }
}
