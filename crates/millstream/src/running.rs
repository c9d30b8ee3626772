//! Flows at work.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use millstream_base::TcpNetwork;
use millstream_exchange::Ranks;
use millstream_flow::Running;
use millstream_flow::serving::Requests;
use millstream_node::NodeContent;
use millstream_serve::{Content, KeyedStreams, Metric, Options, Server};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::error::Error;

/// A flow at work. Dropped, it ends where it stands; its last checkpoint stays.
pub struct RunningFlow {
    running: Arc<Running>,
    requests: Option<Requests>,
    server: Option<Server>,
}

impl RunningFlow {
    pub(crate) fn start(
        engine: millstream_flow::Flow,
        http: Option<SocketAddr>,
        requests: Option<Requests>,
    ) -> Result<RunningFlow, Error> {
        // The address may be in use: then nothing begins.
        let begun = Begun::default();
        begun.lock().requests.extend(requests.clone());
        let server = http.map(|address| serve(&begun, address)).transpose()?;
        let running = Arc::new(engine.run()?);
        begun.lock().ranks.push(Arc::clone(&running));
        if let Some(requests) = &requests {
            requests.begin(&running)?;
        }
        Ok(RunningFlow {
            running,
            requests,
            server,
        })
    }

    /// Returns the engine's handle of the flow.
    pub fn running(&self) -> Arc<Running> {
        Arc::clone(&self.running)
    }

    /// Returns the queue of the flow's [requests](crate::Flow::requests), if it takes some, to call the flow in this process.
    pub fn requests(&self) -> Option<&Requests> {
        self.requests.as_ref()
    }

    /// Returns the address of the flow's HTTP server, if it has one.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(Server::local_address)
    }
}

/// Has the other ranks end with the error that kept a flow from starting on this one: they would wait for it.
pub(crate) fn fail_others(ranks: &Ranks, error: &Error) {
    if ranks.count() > 1 {
        ranks.fail(&error.to_string());
    }
}

impl Deref for RunningFlow {
    type Target = Running;

    fn deref(&self) -> &Running {
        &self.running
    }
}

/// The flows of a server, as they begin.
pub(crate) type Begun = Arc<Mutex<BegunFlows>>;

#[derive(Default)]
pub(crate) struct BegunFlows {
    /// The flows that run, and their ranks in this process.
    pub ranks: Vec<Arc<Running>>,
    /// The queues of those that take requests, before they run, too.
    pub requests: Vec<Requests>,
}

/// Serves the flows that this process runs. Visitors do not log in.
pub(crate) fn serve(begun: &Begun, address: SocketAddr) -> Result<Server, Error> {
    start_http(address, FlowContent::new(begun, None), Options::default())
}

/// Serves pages over HTTP.
pub(crate) fn start_http(
    address: SocketAddr,
    content: FlowContent,
    options: Options,
) -> Result<Server, Error> {
    let server = Server::start(TcpNetwork, address, Arc::new(content), options);
    server.map_err(|error| Error::Http {
        address: address.to_string(),
        error,
    })
}

/// The pages of flows, and of the node that this process serves.
pub(crate) struct FlowContent {
    begun: Begun,
    node: Option<Arc<NodeContent>>,
    started_at: Instant,
}

impl FlowContent {
    pub fn new(begun: &Begun, node: Option<Arc<NodeContent>>) -> FlowContent {
        FlowContent {
            begun: Arc::clone(begun),
            node,
            started_at: Instant::now(),
        }
    }
}

impl Content for FlowContent {
    fn flows(&self) -> Vec<Arc<Running>> {
        self.begun.lock().ranks.clone()
    }

    fn overview(&self) -> Value {
        let begun = self.begun.lock();
        let name = begun.ranks.first().map(|rank| rank.name().to_owned());
        drop(begun);
        let node = self.node.as_ref().map(|node| node.overview());
        let mut overview = node.unwrap_or_else(|| json!({}));
        overview["name"] = json!(name);
        overview["flow"] = json!(name);
        overview["uptime_s"] = json!(self.started_at.elapsed().as_secs_f64());
        overview
    }

    fn metrics(&self) -> Vec<Metric> {
        let node = self.node.as_ref().map(|node| node.metrics());
        node.unwrap_or_default()
    }

    fn streams(&self) -> Option<Value> {
        self.node.as_ref()?.streams()
    }

    fn groups(&self) -> Option<Value> {
        self.node.as_ref()?.groups()
    }

    fn keyed(&self) -> Option<Arc<dyn KeyedStreams>> {
        self.node.as_ref()?.keyed()
    }

    fn readiness(&self) -> Result<(), String> {
        self.node.as_ref().map_or(Ok(()), |node| node.readiness())
    }

    fn tick(&self) {
        if let Some(node) = &self.node {
            node.tick();
        }
    }

    fn requests(&self) -> Vec<Requests> {
        self.begun.lock().requests.clone()
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
