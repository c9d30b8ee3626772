//! Events into the stream `ads`, views and clicks counted by campaign, the counts served.

use std::fmt::Write;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use millstream_ads::{AdsFlow, AdsTotals, EVENT_BYTES, Generator};
use millstream_base::{Clock, ProducerId, Random, SystemRandom, TcpNetwork};
use millstream_connect::StreamProducer;
use millstream_flow::StateReader;
use millstream_log::Log;
use millstream_serve::{Content, Server};
use serde::Serialize;
use serde_json::{Value, json};

use super::Run;
use super::live::{Ingested, Live};
use crate::console::{Align, Table, grouped, print_json};
use crate::stop::Stop;
use crate::values::Rate;

const HTTP_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// The name of the flow in paths.
const FLOW: &str = "ads";

/// Events that are due are made and sent this often.
const PACE: Duration = Duration::from_millis(5);

/// At full speed so many events are made between two looks at whether it is time to stop.
const BURST_EVENTS: u64 = 1_000;

/// What `--json` prints. The totals are of everything stored.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    ingested: Ingested,
    #[serde(flatten)]
    totals: AdsTotals,
}

pub fn run(run: &mut Run<'_>, rate: Rate) -> anyhow::Result<()> {
    let ads = Arc::new(AdsFlow::start(run.log, run.flow_settings.clone())?);
    let reading = Arc::clone(&ads);
    let live = Arc::new(Live::new(ads.events(), move || reading.read_events()));
    let server = serve(run, &ads, &live)?;
    let mut producer = StreamProducer::new(ads.events(), ProducerId::NONE)?;
    let (stop, clock) = (run.stop, Arc::clone(run.log.clock()));
    let has_failed = || ads.running().is_finished();
    let (generated, totals) = run.watch(&live, has_failed, || {
        let generated = generate(rate, &mut producer, &*clock, &live, stop);
        (generated, ads.finish())
    })?;
    server.stop();
    let totals = totals?;
    generated?;
    let report = Report {
        ingested: live.summary(),
        totals,
    };
    match run.is_json {
        true => print_json(&report),
        false => report.print(),
    }
}

/// Makes events and appends them until it is time to stop; returns when they are durable.
fn generate(
    rate: Rate,
    producer: &mut StreamProducer,
    clock: &dyn Clock,
    live: &Live,
    stop: &Stop,
) -> anyhow::Result<()> {
    let mut seed = [0; 8];
    SystemRandom
        .fill(&mut seed)
        .context("no seed for the events")?;
    let mut generator = Generator::new(u64::from_le_bytes(seed));
    let started_at = clock.monotonic();
    let mut sent = 0;
    while !stop.is_set() {
        let due = match rate {
            Rate::Max => sent + BURST_EVENTS,
            // A hold-up is made up for.
            Rate::PerSecond(rate) => {
                let elapsed = clock.monotonic() - started_at;
                (elapsed.as_secs_f64() * rate.get() as f64) as u64
            }
        };
        let time = clock.now();
        for _ in sent..due {
            producer.push(time, None, Some(&generator.event(time).encode()), &[])?;
        }
        live.ingested(due - sent, (due - sent) * EVENT_BYTES as u64);
        sent = due;
        if let Rate::PerSecond(_) = rate {
            producer.send()?;
            stop.sleep(PACE)?;
        }
    }
    producer.flush()?;
    Ok(())
}

/// Starts the HTTP server: where it was told to, or else where it can.
fn serve(run: &Run<'_>, ads: &Arc<AdsFlow>, live: &Arc<Live>) -> anyhow::Result<Server> {
    let content = Arc::new(AdsContent {
        ads: Arc::clone(ads),
        live: Arc::clone(live),
        log: run.log.clone(),
    });
    let address = run.settings.http.unwrap_or(HTTP_DEFAULT);
    let mut started = Server::start(TcpNetwork, address, Arc::clone(&content) as _);
    if run.settings.http.is_none()
        && let Err(error) = &started
        && error.kind() == ErrorKind::AddrInUse
    {
        run.progress
            .note(&format!("{address} is in use; taking a free port"));
        let free = SocketAddr::new(address.ip(), 0);
        started = Server::start(TcpNetwork, free, content);
    }
    let server = started
        .with_context(|| format!("cannot listen on {address}; choose another with --http"))?;
    run.progress
        .note(&format!("watch it at http://{}/", server.local_address()));
    Ok(server)
}

struct AdsContent {
    ads: Arc<AdsFlow>,
    live: Arc<Live>,
    log: Log,
}

impl Content for AdsContent {
    fn flows(&self) -> Vec<String> {
        vec![FLOW.to_owned()]
    }

    fn state(&self, flow: &str, element: &str) -> Option<Arc<dyn StateReader>> {
        match flow {
            FLOW => self.ads.running().state(element),
            _ => None,
        }
    }

    fn overview(&self) -> Value {
        let totals = self.ads.totals();
        json!({
            "name": "quickstart",
            "flow": FLOW,
            "uptime_s": self.live.started_at.elapsed().as_secs_f64(),
            "ingested_records": self.live.ingested_records(),
            "ingested_bytes": self.live.ingested_bytes(),
            "durable_records": self.live.durable_records(),
            "records_per_second": self.live.records_per_second(),
            "lag_records": self.live.lag_records(),
            "events": totals.events,
            "counted": totals.counted,
            "windows": totals.windows,
        })
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, value: u64| {
            // Writing into a string does not fail.
            let _ = writeln!(
                text,
                "# HELP millstream_{name} {help}\n# TYPE millstream_{name} {kind}\nmillstream_{name} {value}"
            );
        };
        let (live, totals, log) = (&self.live, self.ads.totals(), self.log.stats());
        metric(
            "ingested_records_total",
            "counter",
            "Records taken in by this run.",
            live.ingested_records(),
        );
        metric(
            "ingested_bytes_total",
            "counter",
            "Bytes of their values.",
            live.ingested_bytes(),
        );
        metric(
            "durable_records",
            "gauge",
            "Durable records of the stream.",
            live.durable_records(),
        );
        metric(
            "lag_records",
            "gauge",
            "Durable records that the flow has not read.",
            live.lag_records(),
        );
        metric(
            "ads_counted_events_total",
            "counter",
            "Views and clicks in windows.",
            totals.counted,
        );
        metric(
            "ads_windows_total",
            "counter",
            "Windows opened.",
            totals.windows,
        );
        metric(
            "pool_bytes",
            "gauge",
            "Memory for segments.",
            log.pool_bytes,
        );
        metric(
            "pool_used_bytes",
            "gauge",
            "Memory of segments in use.",
            log.pool_used_bytes,
        );
        metric(
            "journal_bytes_total",
            "counter",
            "Bytes of chunks written to the journal.",
            log.journal_bytes,
        );
        metric(
            "direct_bytes_total",
            "counter",
            "Bytes of chunks committed to group files.",
            log.direct_bytes,
        );
        for stage in self.ads.running().metrics() {
            let _ = writeln!(
                text,
                "millstream_stage_items_total{{flow=\"{FLOW}\",stage=\"{}\"}} {}",
                stage.stage, stage.items_in
            );
        }
        text
    }
}

impl Report {
    fn print(&self) -> anyhow::Result<()> {
        let mut table = Table::new(&[("ads", Align::Left), ("", Align::Right)]);
        let AdsTotals {
            events,
            views,
            clicks,
            windows,
            counted,
        } = self.totals;
        for (name, number) in [
            ("events generated", self.ingested.ingested_records),
            ("events stored", self.ingested.durable_records),
            ("events read by the flow", events),
            ("views", views),
            ("clicks", clicks),
            ("views and clicks counted", counted),
            ("windows", windows),
        ] {
            table.row([name.to_owned(), grouped(number)]);
        }
        table.row([
            "seconds".to_owned(),
            format!("{:.2}", self.ingested.seconds),
        ]);
        table.print()
    }
}
