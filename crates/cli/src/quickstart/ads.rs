//! Sends events to the stream `ads`, counts views and clicks by campaign, and serves the counts.

use std::io::Write;
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use millstream_ads::{
    AdsError, AdsFlow, AdsTotals, COUNTS_STREAM, EVENT_BYTES, EVENTS_STREAM, Generator,
};
use millstream_base::{ByteSize, Clock, Random, SystemRandom};
use millstream_client::{ClientError, Producer, ProducerConfig, ProducerRecord};
use millstream_connect::{DEAD_LETTERS_SUFFIX, FlowGroup, StoredLetter, StreamSource};
use millstream_flow::{Output, Parts, Position, Running, Source, SourceStatus};
use millstream_log::{Log, LogError, StreamConfig};
use millstream_serve::{Content, Metric, MetricKind};
use serde::Serialize;
use serde_json::{Value, json};

use super::live::{Ingested, Live};
use super::run::{Kept, Run, explained};
use crate::console::{Align, Table, count_of, grouped, print, print_json};
use crate::door::Door;
use crate::http::serve;
use crate::remote::Remote;
use crate::settings::HTTP_DEFAULT;
use crate::stop::Stop;
use crate::values::Rate;

/// How often the producer generates and sends the events that are due.
const PACE: Duration = Duration::from_millis(5);

/// The most events between two checks for a stop signal and for a full backlog.
const BURST_EVENTS: u64 = 1_000;

/// The bytes of events that a new stream keeps: five minutes at the default rate.
const EVENTS_KEPT: ByteSize = ByteSize(4 << 30);

/// The part of the kept bytes, as a divisor, that may lie behind the flow's last checkpoint. Beyond it the generator
/// pauses. Retention removes whole groups of events, the oldest first, so it does not reach this part unless a group is
/// larger than the other parts together.
const UNSAVED_PART: u64 = 4;

/// The document that `--json` prints. The totals include all runs since the first one.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    ingested: Ingested,
    #[serde(flatten)]
    totals: AdsTotals,
    /// Records of the stream that are no events or of the far future, and late views and clicks.
    dead_letters: u64,
    /// The late ones among them.
    late_dead_letters: u64,
    retain_bytes: Kept,
}

/// The start of the error of a late item's dead letter.
const LATE: &str = "late:";

/// The dead letters of this run and earlier ones.
#[derive(Default)]
struct LetterCounts {
    all: u64,
    late: u64,
}

pub fn run(run: &mut Run<'_>, rate: Rate) -> anyhow::Result<()> {
    if run.is_anew {
        AdsFlow::forget(run.log)?;
    }
    run.log.stream_or_create(EVENTS_STREAM, bounded())?;
    let ads = AdsFlow::start(run.log, run.flow_settings.clone());
    let ads = Arc::new(ads.map_err(|error| match error {
        AdsError::Flow(error) => explained(error),
        error => error.into(),
    })?);
    let backlog = Backlog::of(&ads);
    let flow = ads.running().name();
    let letters = format!("{flow}{DEAD_LETTERS_SUFFIX}");
    let kept = Kept::of(run.log, &[EVENTS_STREAM, COUNTS_STREAM, &letters])?;
    kept.note(run.progress);
    let live = Arc::new(Live::new(ads.events(), ads.running()));
    let content = Arc::new(AdsContent {
        ads: Arc::clone(&ads),
        live: Arc::clone(&live),
        log: run.log.clone(),
    });
    let server = serve(run.settings, Some(HTTP_DEFAULT), content, run.progress)?;
    let door = Door::open(run.log, run.settings, run.progress)?;
    let group = FlowGroup::start(ads.running(), door.remote().client().config());
    let group = group.map_err(|error| anyhow!("cannot show how far the flow is: {error}"))?;
    let (stop, clock) = (run.stop, Arc::clone(run.log.clock()));
    let has_failed = || ads.running().is_finished();
    let (generated, totals) = run.watch(&live, has_failed, || {
        let generated = generate(rate, door.remote(), &*clock, &live, &backlog, stop);
        (generated, ads.finish())
    })?;
    drop(server);
    group.finish();
    drop(door);
    let totals = totals?;
    generated?;
    let letters = dead_letters(run.log, &letters)?;
    let report = Report {
        ingested: live.summary(),
        totals,
        dead_letters: letters.all,
        late_dead_letters: letters.late,
        retain_bytes: kept,
    };
    match run.is_json {
        true => print_json(&report),
        false => report.print(flow),
    }
}

/// The settings of a new stream of events.
fn bounded() -> StreamConfig {
    StreamConfig {
        retention: Some(EVENTS_KEPT),
        ..StreamConfig::default()
    }
}

/// The events behind the flow's last checkpoint.
struct Backlog<'a> {
    ads: &'a AdsFlow,
    /// The flow's positions at its start, which the checkpoint of an earlier run has.
    resumed_at: Vec<Position>,
    /// The durable events at the start, by offset.
    durable: u64,
}

impl<'a> Backlog<'a> {
    /// Returns the backlog of a flow that has just started.
    fn of(ads: &'a AdsFlow) -> Backlog<'a> {
        let partitions = ads.events().info().partitions;
        Backlog {
            ads,
            resumed_at: ads.running().positions(),
            durable: partitions.iter().map(|lane| lane.durable.0).sum(),
        }
    }

    /// Returns whether the generator, which has sent this many events, has to pause: more than a part of the kept bytes
    /// lies behind the last checkpoint.
    fn is_full(&self, sent: u64) -> bool {
        let events = self.ads.events().info();
        let Some(ByteSize(kept)) = events.config.retention else {
            return false;
        };
        let checkpoint = self.ads.running().complete_checkpoint();
        let saved = checkpoint.as_ref().map(|checkpoint| &checkpoint.positions);
        let saved = saved.unwrap_or(&self.resumed_at);
        let (mut durable, mut unsaved, mut stored, mut bytes) = (0, 0, 0, 0);
        for lane in &events.partitions {
            let position = saved.iter().find(|it| it.partition == lane.partition);
            let saved = position.map_or(0, |it| it.next).max(lane.earliest.0);
            durable += lane.durable.0;
            unsaved += lane.durable.0.saturating_sub(saved);
            stored += lane.durable.0 - lane.earliest.0;
            bytes += lane.bytes;
        }
        // The producer may hold events that are not durable yet.
        unsaved += (self.durable + sent).saturating_sub(durable);
        let event_bytes = bytes.checked_div(stored).unwrap_or_default();
        unsaved * event_bytes.max(EVENT_BYTES as u64) > kept / UNSAVED_PART
    }
}

/// Counts the dead letters of a stream.
fn dead_letters(log: &Log, stream: &str) -> anyhow::Result<LetterCounts> {
    let mut counts = LetterCounts::default();
    let stream = match log.stream(stream) {
        Ok(stream) => stream,
        Err(LogError::UnknownStream { .. }) => return Ok(counts),
        Err(error) => return Err(error.into()),
    };
    // Not all offsets are those of records: letters come in transactions, whose ends have some, too.
    let mut source = StreamSource::bounded(&stream);
    let mut given = Output::default();
    loop {
        let status = source.poll(&mut given, 1, Waker::noop());
        for letters in given.items() {
            letters.for_each_part(|letter| {
                counts.all += 1;
                counts.late += u64::from(StoredLetter::read(letter).error.starts_with(LATE));
            });
        }
        match status.map_err(|error| anyhow!("stream {}: {error}", stream.name()))? {
            SourceStatus::Ready => given = Output::default(),
            SourceStatus::Idle | SourceStatus::IdleUntil(_) => thread::sleep(PACE),
            SourceStatus::End => return Ok(counts),
        }
    }
}

/// Generates and sends events until a stop signal, with pauses while the backlog is full; returns when they are durable.
fn generate(
    rate: Rate,
    remote: &Remote,
    clock: &dyn Clock,
    live: &Live,
    backlog: &Backlog<'_>,
    stop: &Stop,
) -> anyhow::Result<()> {
    let mut seed = [0; 8];
    SystemRandom
        .fill(&mut seed)
        .context("no seed for the events")?;
    let mut generator = Generator::new(u64::from_le_bytes(seed));
    let producer = {
        let _runtime = remote.runtime().enter();
        Producer::new(remote.client(), ProducerConfig::default())
    };
    let started_at = clock.monotonic();
    let mut sent = 0;
    while !stop.is_set() {
        if backlog.is_full(sent) {
            stop.sleep(PACE)?;
            continue;
        }
        let due = match rate {
            Rate::Max => sent + BURST_EVENTS,
            // After a delay or a pause, the producer catches up.
            Rate::PerSecond(rate) => {
                let elapsed = clock.monotonic() - started_at;
                (elapsed.as_secs_f64() * rate.get() as f64) as u64
            }
        };
        let burst = (due - sent).min(BURST_EVENTS);
        remote.wait(send(&producer, &mut generator, clock, burst))?;
        live.ingested(burst, burst * EVENT_BYTES as u64);
        sent += burst;
        if burst < BURST_EVENTS {
            stop.sleep(PACE)?;
        }
    }
    remote.wait(producer.flush())
}

async fn send(
    producer: &Producer,
    generator: &mut Generator,
    clock: &dyn Clock,
    events: u64,
) -> Result<(), ClientError> {
    let time = clock.now();
    for _ in 0..events {
        let event = generator.event(time).encode();
        let record = ProducerRecord {
            topic: EVENTS_STREAM,
            timestamp: Some(time),
            value: Some(&event),
            ..ProducerRecord::default()
        };
        // The flush at the end reports a failed record.
        producer.send(record).await?;
    }
    Ok(())
}

struct AdsContent {
    ads: Arc<AdsFlow>,
    live: Arc<Live>,
    log: Log,
}

impl Content for AdsContent {
    fn flows(&self) -> Vec<Arc<Running>> {
        vec![Arc::clone(self.ads.running())]
    }

    fn overview(&self) -> Value {
        let mut overview = self.live.overview();
        let totals = self.ads.totals();
        overview["events"] = json!(totals.events);
        overview["counted"] = json!(totals.counted);
        overview["windows"] = json!(totals.windows);
        overview
    }

    fn metrics(&self) -> Vec<Metric> {
        let totals = self.ads.totals();
        let counter = |name, help, value| Metric::new(name, MetricKind::Counter, value, help);
        let mut metrics = self.live.metrics(&self.log);
        metrics.extend([
            counter(
                "ads_counted_events_total",
                "Views and clicks in windows.",
                totals.counted,
            ),
            counter("ads_windows_total", "Windows opened.", totals.windows),
        ]);
        metrics
    }
}

impl Report {
    fn print(&self, flow: &str) -> anyhow::Result<()> {
        let mut table = Table::new(&[("ads", Align::Left), ("", Align::Right)]);
        let AdsTotals {
            events,
            views,
            clicks,
            windows,
            counted,
            late,
        } = self.totals;
        for (name, number) in [
            ("events generated", self.ingested.ingested_records),
            ("events stored", self.ingested.durable_records),
            ("events read by the flow", events),
            ("views", views),
            ("clicks", clicks),
            ("views and clicks counted", counted),
            ("late, and in no window", late),
            ("windows", windows),
        ] {
            table.row([name.to_owned(), grouped(number)]);
        }
        table.row([
            "seconds".to_owned(),
            format!("{:.2}", self.ingested.seconds),
        ]);
        print(|out| {
            table.write(out)?;
            let see = format!("see millstream flow dead-letters list {flow}");
            let refused = self.dead_letters.saturating_sub(self.late_dead_letters);
            if refused > 0 {
                let records = count_of(refused, "record");
                writeln!(out, "{records} of the stream were refused: {see}")?;
            }
            if self.late_dead_letters > 0 {
                let records = count_of(self.late_dead_letters, "record");
                writeln!(out, "{records} came too late for a window: {see}")?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use millstream_base::{ProducerId, Timestamp};
    use millstream_connect::StreamProducer;
    use millstream_flow::FlowSettings;
    use millstream_log::LogConfig;
    use tempfile::tempdir;

    use super::*;

    #[test]
    fn the_backlog_is_full_until_a_checkpoint_covers_the_events() {
        const EVENTS: u64 = 10_000;
        let dir = tempdir().unwrap();
        let log = Log::open(LogConfig::new(dir.path())).unwrap();
        log.stream_or_create(EVENTS_STREAM, bounded()).unwrap();
        let ads = AdsFlow::start(&log, FlowSettings::default()).unwrap();
        let backlog = Backlog::of(&ads);
        assert!(!backlog.is_full(EVENTS));
        let part = EVENTS_KEPT.0 / UNSAVED_PART / EVENT_BYTES as u64;
        assert!(backlog.is_full(part + 1));

        let retain = |bytes| log.set_retention(EVENTS_STREAM, None, bytes).unwrap();
        retain(Some(ByteSize(EVENTS)));
        assert!(!backlog.is_full(0));
        // Events that the producer still holds count, too.
        assert!(backlog.is_full(EVENTS));
        let mut producer = StreamProducer::new(ads.events(), ProducerId::NONE).unwrap();
        let mut generator = Generator::new(7);
        for millisecond in 0..EVENTS {
            let time = Timestamp(millisecond as i64);
            let event = generator.event(time).encode();
            producer.push(time, None, Some(&event), &[]).unwrap();
        }
        producer.flush().unwrap();
        let started_at = Instant::now();
        while backlog.is_full(EVENTS) {
            assert!(started_at.elapsed() < Duration::from_secs(60));
            thread::sleep(PACE);
        }
        assert!(backlog.is_full(2 * EVENTS));
        retain(None);
        assert!(!backlog.is_full(2 * EVENTS));
        ads.finish().unwrap();
        drop(ads);

        // The next run resumes from the checkpoint: the stored events do not count.
        retain(Some(ByteSize(EVENTS)));
        let ads = AdsFlow::start(&log, FlowSettings::default()).unwrap();
        assert!(!Backlog::of(&ads).is_full(0));
        ads.finish().unwrap();
    }
}
