//! Sends events to the stream `ads`, counts views and clicks by campaign, and serves the counts.

use std::io::Write;
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use millstream_ads::{AdsError, AdsFlow, AdsTotals, EVENT_BYTES, EVENTS_STREAM, Generator};
use millstream_base::{ByteSize, Clock, Random, SystemRandom};
use millstream_client::{ClientError, Producer, ProducerConfig, ProducerRecord};
use millstream_connect::{DEAD_LETTERS_SUFFIX, FlowGroup, StoredLetter, StreamSource};
use millstream_flow::{Output, Parts, Running, Source, SourceStatus};
use millstream_log::{Log, LogError, StreamConfig};
use millstream_serve::{Content, Metric, MetricKind};
use serde::Serialize;
use serde_json::{Value, json};

use super::live::{Ingested, Live};
use super::run::{Run, explained};
use crate::console::{Align, Progress, Table, count_of, grouped, print, print_json};
use crate::door::Door;
use crate::http::serve;
use crate::remote::Remote;
use crate::settings::HTTP_DEFAULT;
use crate::stop::Stop;
use crate::values::Rate;

/// How often the producer generates and sends the events that are due.
const PACE: Duration = Duration::from_millis(5);

/// Events between two checks for a stop signal, at full speed.
const BURST_EVENTS: u64 = 1_000;

/// The bytes of events that a new stream keeps: five minutes at the default rate. Retention must not remove events behind
/// the last checkpoint, which is at most some seconds old.
const EVENTS_KEPT: ByteSize = ByteSize(4 << 30);

/// The document that `--json` prints. The totals include all runs since the first one.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    ingested: Ingested,
    #[serde(flatten)]
    totals: AdsTotals,
    /// Records of the stream that are not events, and late views and clicks.
    dead_letters: u64,
    /// The late ones among them.
    late_dead_letters: u64,
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
    keep_newest(run.log, run.progress)?;
    let ads = AdsFlow::start(run.log, run.flow_settings.clone());
    let ads = Arc::new(ads.map_err(|error| match error {
        AdsError::Flow(error) => explained(error),
        error => error.into(),
    })?);
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
        let generated = generate(rate, door.remote(), &*clock, &live, stop);
        (generated, ads.finish())
    })?;
    drop(server);
    group.finish();
    drop(door);
    let totals = totals?;
    generated?;
    let flow = ads.running().name();
    let letters = dead_letters(run.log, &format!("{flow}{DEAD_LETTERS_SUFFIX}"))?;
    let report = Report {
        ingested: live.summary(),
        totals,
        dead_letters: letters.all,
        late_dead_letters: letters.late,
    };
    match run.is_json {
        true => print_json(&report),
        false => report.print(flow),
    }
}

/// Makes the stream of events with a bound, unless the stream exists, and prints the bound.
fn keep_newest(log: &Log, progress: &Progress) -> anyhow::Result<()> {
    let bounded = StreamConfig {
        retention: Some(EVENTS_KEPT),
        ..StreamConfig::default()
    };
    let events = log.stream_or_create(EVENTS_STREAM, bounded)?;
    let kept = match events.config().retention {
        Some(size) => format!("the newest {size} of events"),
        None => "all events".to_owned(),
    };
    progress.note(&format!(
        "the stream {EVENTS_STREAM} keeps {kept}; `millstream stream alter {EVENTS_STREAM} --retain-bytes SIZE` changes \
         that"
    ));
    Ok(())
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

/// Generates and sends events until a stop signal; returns when they are durable.
fn generate(
    rate: Rate,
    remote: &Remote,
    clock: &dyn Clock,
    live: &Live,
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
        let due = match rate {
            Rate::Max => sent + BURST_EVENTS,
            // After a delay, the producer catches up.
            Rate::PerSecond(rate) => {
                let elapsed = clock.monotonic() - started_at;
                (elapsed.as_secs_f64() * rate.get() as f64) as u64
            }
        };
        remote.wait(send(&producer, &mut generator, clock, due - sent))?;
        live.ingested(due - sent, (due - sent) * EVENT_BYTES as u64);
        sent = due;
        if let Rate::PerSecond(_) = rate {
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
            let no_events = self.dead_letters.saturating_sub(self.late_dead_letters);
            if no_events > 0 {
                let records = count_of(no_events, "record");
                writeln!(out, "{records} of the stream were no events: {see}")?;
            }
            if self.late_dead_letters > 0 {
                let records = count_of(self.late_dead_letters, "record");
                writeln!(out, "{records} came too late for a window: {see}")?;
            }
            Ok(())
        })
    }
}
