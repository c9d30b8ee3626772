//! Serves the live page with invented numbers, for work on the page without a flow:
//! `cargo run -p millstream-serve --example made_up_numbers`.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millstream_base::TcpNetwork;
use millstream_flow::sources::Generator;
use millstream_flow::{Flow, FlowSettings, PartialState, Running};
use millstream_serve::{Content, Metric, Options, Server};
use serde_json::{Value, json};

const WINDOW: Duration = Duration::from_secs(10);
const RECORDS_PER_SECOND: u64 = 20_000;
const CAMPAIGNS: u64 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let settings = FlowSettings::default();
    let clock = Arc::clone(&settings.clock);
    let flow = Flow::with_settings("ads", settings);
    let counts = flow.partial::<MadeUpCounts>("campaign_counts");
    let numbers = Generator::new(|number| number).rate(RECORDS_PER_SECOND as f64, clock);
    flow.source("events", numbers)
        .filter(|number| number % 3 > 0)
        .boundary("count")
        .fold_local(&counts, |_, _| ());
    let content = Arc::new(MadeUp {
        start: now(),
        flow: Arc::new(flow.run()?),
    });
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::start(TcpNetwork, address, content, Options::default())?;
    eprintln!("watch it at http://{}/", server.local_address());
    loop {
        std::thread::park();
    }
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

struct MadeUp {
    start: Duration,
    flow: Arc<Running>,
}

impl Content for MadeUp {
    fn flows(&self) -> Vec<Arc<Running>> {
        vec![Arc::clone(&self.flow)]
    }

    fn overview(&self) -> Value {
        let uptime = now().saturating_sub(self.start);
        let records = uptime.as_millis() as u64 * RECORDS_PER_SECOND / 1_000;
        let wobble = records % 977;
        json!({
            "name": "millstream",
            "flow": "ads",
            "uptime_s": uptime.as_secs_f64(),
            "ingested_records": records,
            "ingested_bytes": records * 136,
            "durable_records": records,
            "records_per_second": RECORDS_PER_SECOND + wobble,
            "last_records_per_second": vec![RECORDS_PER_SECOND; 60],
            "lag_records": wobble,
            "events": records - wobble.min(records),
            "counted": (records - wobble.min(records)) * 2 / 3,
            "windows": CAMPAIGNS * (1 + uptime.as_secs() / WINDOW.as_secs()),
        })
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}

/// Counts that depend only on the time.
#[derive(Default)]
struct MadeUpCounts;

impl PartialState for MadeUpCounts {
    fn merge(&mut self, _: &Self) {}

    fn get(_: &[&Self], key: &str) -> Option<Value> {
        let campaign: u64 = key.strip_prefix("campaign-")?.parse().ok()?;
        let in_window_ms = now().as_millis() as u64 % WINDOW.as_millis() as u64;
        let window_start = now().as_millis() as u64 - in_window_ms;
        let views = in_window_ms * (60 + campaign * 37 % 41) / 1_000;
        let clicks = views * (20 + campaign * 13 % 17) / 50;
        Some(json!({
            "window_start": window_start,
            "value": { "views": views, "clicks": clicks },
            "events": views + clicks,
        }))
    }

    fn keys(_: &[&Self], limit: usize) -> Vec<String> {
        let keys = (0..CAMPAIGNS).map(|campaign| format!("campaign-{campaign}"));
        keys.take(limit).collect()
    }
}
