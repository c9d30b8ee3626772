//! Serves the live page with numbers that are made up, to work on the page without a pipeline:
//! `cargo run -p millstream-serve --example made_up_numbers`.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millstream_base::TcpNetwork;
use millstream_flow::StateReader;
use millstream_serve::{Content, Server};
use serde_json::{Value, json};

const WINDOW: Duration = Duration::from_secs(10);
const RECORDS_PER_SECOND: u64 = 20_000;
const CAMPAIGNS: u64 = 100;

fn main() -> io::Result<()> {
    let content = Arc::new(MadeUp { start: now() });
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::start(TcpNetwork, address, content)?;
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

#[derive(Clone)]
struct MadeUp {
    start: Duration,
}

impl Content for MadeUp {
    fn flows(&self) -> Vec<String> {
        vec!["ads".to_owned()]
    }

    fn state(&self, flow: &str, element: &str) -> Option<Arc<dyn StateReader>> {
        ((flow, element) == ("ads", "campaign_counts"))
            .then(|| Arc::new(self.clone()) as Arc<dyn StateReader>)
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
            "lag_records": wobble,
            "events": records - wobble.min(records),
            "counted": (records - wobble.min(records)) * 2 / 3,
            "windows": CAMPAIGNS * (1 + uptime.as_secs() / WINDOW.as_secs()),
        })
    }

    fn metrics(&self) -> String {
        String::new()
    }
}

impl StateReader for MadeUp {
    fn get(&self, key: &str) -> Option<Value> {
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

    fn keys(&self, limit: usize) -> Vec<String> {
        let keys = (0..CAMPAIGNS).map(|campaign| format!("campaign-{campaign}"));
        keys.take(limit).collect()
    }
}
