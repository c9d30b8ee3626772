//! Flows at work.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use millstream_base::TcpNetwork;
use millstream_flow::Running;
use millstream_serve::{Content, Metric, Options, Server};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::error::Error;

/// A flow at work. Dropped, it ends where it stands; its last checkpoint stays.
pub struct RunningFlow {
    running: Arc<Running>,
    server: Option<Server>,
}

impl RunningFlow {
    pub(crate) fn start(
        engine: millstream_flow::Flow,
        http: Option<SocketAddr>,
    ) -> Result<RunningFlow, Error> {
        // The address may be in use: then nothing begins.
        let ranks = Arc::default();
        let server = http.map(|address| serve(&ranks, address)).transpose()?;
        let running = Arc::new(engine.run()?);
        ranks.lock().push(Arc::clone(&running));
        Ok(RunningFlow { running, server })
    }

    /// Returns the engine's handle of the flow.
    pub fn running(&self) -> Arc<Running> {
        Arc::clone(&self.running)
    }

    /// Returns the address of the flow's HTTP server, if it has one.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(Server::local_address)
    }
}

impl Deref for RunningFlow {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

/// The ranks of a flow in this process, as they begin.
pub(crate) type Begun = Arc<Mutex<Vec<Arc<Running>>>>;

/// Serves the flow that these ranks of the process run.
pub(crate) fn serve(ranks: &Begun, address: SocketAddr) -> Result<Server, Error> {
    let content = FlowContent {
        ranks: Arc::clone(ranks),
        started_at: Instant::now(),
    };
    let server = Server::start(TcpNetwork, address, Arc::new(content), Options::default());
    server.map_err(|error| Error::Http {
        address: address.to_string(),
        error,
    })
}

/// The flow's page.
struct FlowContent {
    ranks: Begun,
    started_at: Instant,
}

impl Content for FlowContent {
    fn flows(&self) -> Vec<Arc<Running>> {
        self.ranks.lock().clone()
    }

    fn overview(&self) -> Value {
        let name = self.ranks.lock().first().map(|rank| rank.name().to_owned());
        json!({
            "name": name,
            "flow": name,
            "uptime_s": self.started_at.elapsed().as_secs_f64(),
        })
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_without_logins_is_refused_on_an_address_that_other_machines_reach() {
        let serve = |address: &str| serve(&Begun::default(), address.parse().unwrap());
        for address in ["0.0.0.0:0", "[::]:0"] {
            let error = serve(address).err().expect("visitors do not log in");
            for part in [address, "without logins", "127.0.0.1"] {
                assert!(error.to_string().contains(part), "{error}");
            }
        }
        serve("127.0.0.1:0").expect("only this machine reaches it");
    }
}
