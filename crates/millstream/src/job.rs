//! Jobs: several flows of one process.

use std::net::SocketAddr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use millstream_broker::BrokerConfig;
use millstream_flow::serving::Requests;
use millstream_node::ServedNode;
use millstream_serve::Server;
use parking_lot::Mutex;

use crate::analytics_end::AnalyticsEnd;
use crate::error::Error;
use crate::flow_builder::Flow;
use crate::listen::bind;
use crate::node::Node;
use crate::running::{Begun, RunningFlow, fail_others, serve};

/// The interval at which a job checks whether it must stop.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Flows that run together in one process, such as analytics flows and serving flows over their state.
///
/// The job has one HTTP server for all of them. It ends with the last flow that takes no
/// [requests](Flow::requests): then it stops the serving flows, which have no end of their own. If one flow fails, the job
/// stops the others.
///
/// On several ranks, each builds the same flows in the same order. The serving flows are stopped when the others have ended on all
/// ranks, and the failure of a flow ends all ranks.
///
/// ```
/// use millstream::{Flow, Job, Node, Request, Response};
///
/// # let dir = tempfile::tempdir()?;
/// let node = Node::embedded(dir.path())?;
/// let orders = node.topic("orders").json::<(String, u64)>().create()?;
/// let sums = Flow::new("sums");
/// let orders = sums.read(orders);
/// let spent = sums.engine().values::<String, u64>("spent");
/// let sums = orders.key_by(|(user, _)| user.clone()).fold("spend", &spent, |spent, (_, price)| {
///     *spent = Some(spent.unwrap_or(0) + price);
/// });
/// let serving = Flow::new("spent")
///     .requests()
///     .map(move |call| {
///         let spent = spent.get(&call.segment(0).unwrap_or_default());
///         call.reply(Response::json(&spent.unwrap_or(0)))
///     })
///     .respond();
/// let job = Job::from([sums, serving]).http("127.0.0.1:0".parse().unwrap()).start()?;
/// // Over HTTP: `/q/spent/ann`.
/// let requests = job.requests("spent").expect("this flow takes requests");
/// assert_eq!(requests.call(Request::get("/ann")).wait().unwrap().body_text(), Some("0"));
/// job.stop();
/// job.join()?;
/// # Ok::<(), millstream::Error>(())
/// ```
#[derive(Default)]
pub struct Job {
    flows: Vec<Flow>,
    http: Option<SocketAddr>,
    /// The node that the job serves to Kafka's clients, and its listeners.
    listen: Option<(Node, BrokerConfig)>,
}

impl From<Flow> for Job {
    fn from(flow: Flow) -> Job {
        Job::from(vec![flow])
    }
}

impl<const N: usize> From<[Flow; N]> for Job {
    fn from(flows: [Flow; N]) -> Job {
        Job::from(Vec::from(flows))
    }
}

impl From<Vec<Flow>> for Job {
    fn from(flows: Vec<Flow>) -> Job {
        Job {
            flows,
            ..Job::default()
        }
    }
}

impl Job {
    /// Serves the page, the state, the metrics and the requests of all flows over HTTP at this address while they run. The
    /// address that a flow has is used if the job has none. Otherwise as [`Flow::http`].
    #[must_use]
    pub fn http(self, address: SocketAddr) -> Job {
        Job {
            http: Some(address),
            ..self
        }
    }

    /// Serves the topics of a node to Kafka's clients from this process, as `millstream start` does: until the
    /// [`RunningJob`] is dropped, and so also behind the end of the flows. The node is a data directory
    /// ([`Node::embedded`]). Flows and clients use the same topics; records pass from one to the other in memory.
    ///
    /// The [HTTP server](Self::http) then also has the node's page and its keys (`/kv`). Its visitors have the users, the rights
    /// and the certificate of the listeners. The job does not start if other machines reach a listener or the HTTP server
    /// without a login.
    ///
    /// ```
    /// use millstream::broker::BrokerConfig;
    /// use millstream::{Flow, Job, Node};
    ///
    /// # let dir = tempfile::tempdir()?;
    /// let node = Node::embedded(dir.path())?;
    /// let lines = node.topic("lines").text().create()?;
    /// let upper = Flow::new("upper")
    ///     .read(lines.clone())
    ///     .map(|line| line.to_uppercase())
    ///     .write(node.topic("upper").text());
    /// // 127.0.0.1:9092 is the port that clients try first.
    /// let listeners = BrokerConfig::new("127.0.0.1:0".parse().unwrap());
    /// let job = Job::from(upper).listen(&node, listeners).start()?;
    ///
    /// // Another process: a program of this library, or any client of Kafka.
    /// let server = Node::connect(&job.listen_addresses()[0].to_string())?;
    /// server.topic("lines").text().send(["hello"])?;
    /// let upper = server.topic("upper").text();
    /// while upper.read_all()?.is_empty() {
    ///     std::thread::sleep(std::time::Duration::from_millis(10));
    /// }
    /// assert_eq!(upper.read_all()?, ["HELLO"]);
    /// job.stop();
    /// job.join()?;
    /// # Ok::<(), millstream::Error>(())
    /// ```
    #[must_use]
    pub fn listen(self, node: &Node, config: BrokerConfig) -> Job {
        Job {
            listen: Some((node.clone(), config)),
            ..self
        }
    }

    /// Starts all flows, in their order. Dropped, they end where they stand.
    ///
    /// # Errors
    /// If one of them cannot start: then those before it end. On several ranks, all flows on these ranks end with the error.
    ///
    /// # Panics
    /// If the settings of [`listen`](Self::listen) name no listener.
    pub fn start(self) -> Result<RunningJob, Error> {
        let ranks = self.flows.iter().map(|flow| flow.ranks().clone());
        let ranks: Vec<_> = ranks.collect();
        let started = self.start_here();
        started.inspect_err(|error| ranks.iter().for_each(|ranks| fail_others(ranks, error)))
    }

    fn start_here(mut self) -> Result<RunningJob, Error> {
        let addresses: Vec<_> = self.flows.iter().filter_map(Flow::take_http).collect();
        let http = self.http.or(addresses.first().copied());
        let begun = Begun::default();
        // An address may be in use: then nothing begins.
        let (server, node) = match self.listen.take() {
            None => (http.map(|http| serve(&begun, http)).transpose()?, None),
            Some((node, config)) => {
                node.log().ok_or(Error::ListensForServer)?;
                let bound = bind(config, http)?;
                let server = http
                    .map(|http| bound.serve_http(&begun, http))
                    .transpose()?;
                (server, Some(bound.serve(&node)?))
            }
        };
        let flows = self.start_in(&begun)?;
        Ok(RunningJob {
            server,
            flows,
            node,
        })
    }

    /// Starts the job, and waits for its end.
    ///
    /// # Errors
    /// As [`start`](Self::start), or when a flow fails.
    pub fn run(self) -> Result<(), Error> {
        self.start()?.join()
    }

    /// Starts all flows, which a server elsewhere serves.
    pub(crate) fn start_in(self, begun: &Begun) -> Result<RunningFlows, Error> {
        if self.listen.is_some() {
            return Err(Error::ListensInMain);
        }
        let ranks = self.flows.first().map(Flow::ranks);
        let analytics_end = ranks.map(AnalyticsEnd::new);
        let requests = self.flows.iter().filter_map(Flow::request_queue);
        begun.lock().requests.extend(requests);
        let mut flows = Vec::with_capacity(self.flows.len());
        for flow in self.flows {
            let running = flow.start()?;
            begun.lock().ranks.push(running.running());
            flows.push(running);
        }
        Ok(RunningFlows {
            flows,
            analytics_end: Mutex::new(analytics_end),
        })
    }
}

/// A job at work. Dropped, its flows end where they stand.
pub struct RunningJob {
    /// Stops before the flows.
    server: Option<Server>,
    flows: RunningFlows,
    /// Ends behind the flows.
    node: Option<ServedNode>,
}

impl RunningJob {
    /// Returns its flows.
    pub fn flows(&self) -> &[RunningFlow] {
        &self.flows.flows
    }

    /// Returns the queue of the requests to the flow of this name, if there is this flow and it takes some.
    pub fn requests(&self, flow: &str) -> Option<&Requests> {
        let flow = self.flows().iter().find(|running| running.name() == flow)?;
        flow.requests()
    }

    /// Returns the address of its HTTP server, if it has one.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.server.as_ref().map(Server::local_address)
    }

    /// Returns the addresses at which it serves [Kafka's clients](Job::listen), in the order of its settings.
    pub fn listen_addresses(&self) -> &[SocketAddr] {
        let node = self.node.as_ref();
        node.map_or(&[], |node| node.server().local_addresses())
    }

    /// Stops all flows, behind the items that they have read.
    pub fn stop(&self) {
        self.flows.stop();
    }

    /// Waits for the end of the job.
    ///
    /// # Errors
    /// The first error of a flow.
    pub fn join(&self) -> Result<(), Error> {
        self.flows.join(|| false)
    }
}

/// The flows of a job at work, on this rank.
pub(crate) struct RunningFlows {
    flows: Vec<RunningFlow>,
    /// `None` if there are no flows.
    analytics_end: Mutex<Option<AnalyticsEnd>>,
}

impl RunningFlows {
    fn stop(&self) {
        self.flows.iter().for_each(|flow| flow.stop());
    }

    /// Waits for the end of all flows, and stops them when one has failed, or the process must stop.
    pub fn join(&self, must_stop: impl Fn() -> bool) -> Result<(), Error> {
        let (ended, end) = channel();
        thread::scope(|scope| {
            for flow in &self.flows {
                let (running, ended) = (flow.running(), ended.clone());
                scope.spawn(move || {
                    let joined = running.join();
                    drop(running);
                    // The receiver is gone if its thread is unwinding.
                    let _ = ended.send(joined);
                });
            }
            drop(ended);
            let mut result = Ok(());
            let mut left = self.flows.len();
            while left > 0 {
                let stops = match end.recv_timeout(LOOK_INTERVAL) {
                    Ok(joined) => {
                        left -= 1;
                        let has_failed = joined.is_err();
                        result = result.and(joined.map(drop).map_err(Error::from));
                        has_failed
                    }
                    Err(RecvTimeoutError::Timeout) => must_stop(),
                    // A thread has panicked, which the end of the scope passes on.
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                if stops || self.have_analytics_ended() {
                    self.stop();
                }
            }
            result
        })
    }

    /// Whether the flows that take no requests have ended on all ranks. Serving flows have no end of their own.
    fn have_analytics_ended(&self) -> bool {
        let mut analytics = self.flows.iter().filter(|flow| flow.requests().is_none());
        let has_analytics = analytics.clone().next().is_some();
        has_analytics
            && analytics.all(|flow| flow.is_finished())
            && (self.analytics_end.lock().as_mut()).is_some_and(AnalyticsEnd::is_everywhere)
    }
}
