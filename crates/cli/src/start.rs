//! `millstream start`: serves the node's streams over the network, and its state over HTTP.

mod notify;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use millstream_base::TcpNetwork;
use millstream_broker::{BrokerConfig, SecurityConfig};
use millstream_node::{BoundNode, check_exposed};
use millstream_serve::{Metric, MetricKind, MetricValue, Options, Sample, Server};
use serde::Serialize;

use self::notify::{READY, STOPPING, notify};
use crate::args::StartArgs;
use crate::console::{Progress, print_json};
use crate::events::{Levels, log_lines};
use crate::http::{cannot_listen, url};
use crate::node;
use crate::settings::{LISTEN_DEFAULT, Settings, SettingsError};
use crate::stop::Stop;

/// The longest wait: only a signal ends it.
const LONG: Duration = Duration::from_secs(3600);

/// The document that `--json` prints as soon as the node listens.
#[derive(Serialize)]
struct Started {
    /// The first listener.
    listen: SocketAddr,
    listeners: Vec<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<SocketAddr>,
    data: String,
}

/// The settings of the Kafka listeners.
fn config(args: &StartArgs, settings: &Settings) -> Result<BrokerConfig, SettingsError> {
    let defaults = BrokerConfig::new(LISTEN_DEFAULT);
    let mut config = BrokerConfig {
        listeners: settings.listeners()?,
        tls: settings.tls()?,
        security: SecurityConfig {
            tokens: settings.tokens()?,
            ..defaults.security
        },
        produce_objective: settings.produce_objective,
        fetch_objective: settings.fetch_objective,
        ..defaults
    };
    settings.put_in_broker(&mut config);
    check_exposed(&config, settings.http, args.insecure)?;
    Ok(config)
}

/// Returns the metrics of the program itself.
fn own_metrics() -> Vec<Metric> {
    let lines = log_lines();
    let sample = |level: &str, count| Sample {
        labels: vec![("level", level.to_owned())],
        value: MetricValue::Count(count),
    };
    vec![Metric {
        name: "log_lines_total",
        help: "Warnings and errors, whether or not they are written to stderr.",
        kind: MetricKind::Counter,
        samples: vec![
            sample("warn", lines.warnings),
            sample("error", lines.errors),
        ],
    }]
}

/// Warns of advertised names that this machine cannot resolve. Runs in a thread of its own, since resolving may take
/// long, and only warns, since the clients' machines may resolve more names.
fn check_advertised(config: &BrokerConfig) {
    let advertised = config.listeners.iter();
    let names: Vec<_> = advertised.filter_map(|it| it.advertised.clone()).collect();
    if names.is_empty() {
        return;
    }
    std::thread::spawn(move || {
        for (host, port) in names {
            if let Err(error) = (&*host, port).to_socket_addrs() {
                tracing::warn!(
                    "the server tells clients to connect to {host}, but this machine cannot resolve that name: {error}"
                );
            }
        }
    });
}

/// Serves until a signal; `stop` installs the handlers. Before the node listens, a signal ends the process at once: a
/// start may take long, and the log survives an end at any moment.
pub fn run(
    args: StartArgs,
    settings: &Settings,
    is_json: bool,
    stop: fn() -> io::Result<Stop>,
) -> anyhow::Result<()> {
    // Binds the ports before anything is created on disk, and serves HTTP before the log opens, which may take long,
    // so that probes see a starting node.
    let config = config(&args, settings)?;
    check_advertised(&config);
    let bound = BoundNode::bind(config, own_metrics)?;
    let http = serve_http(settings, &bound)?;
    let has_tls = bound.has_tls();
    let log = node::open(settings)?;
    let served = bound.serve(&log)?;
    let server = served.server();
    server.broker().set_log_levels(Arc::new(Levels));
    let stop = stop()?;
    let started = Started {
        listen: server.local_address(),
        listeners: server.local_addresses().to_vec(),
        http: http.as_ref().map(Server::local_address),
        data: settings.data_or_default().display().to_string(),
    };
    if is_json {
        print_json(&started)?;
    } else {
        let progress = Progress::new(is_json);
        let listeners = started.listeners.iter().map(SocketAddr::to_string);
        let listeners: Vec<String> = listeners.collect();
        progress.insist(&format!(
            "listening on {}, data in {}",
            listeners.join(" and "),
            started.data
        ));
        if let Some(http) = started.http {
            progress.insist(&format!("watch it at {}", url(http, has_tls)));
        }
    }
    notify(READY);
    while stop.sleep(LONG)? {}
    notify(STOPPING);
    drop(served);
    drop(http);
    log.close()?;
    Ok(())
}

fn serve_http(settings: &Settings, bound: &BoundNode) -> anyhow::Result<Option<Server>> {
    let Some(address) = settings.http else {
        return Ok(None);
    };
    let options = Options {
        gate: Some(bound.gate()),
        hosts: settings.http_hosts(),
        watches: settings.http_watches(),
    };
    let server = Server::start(TcpNetwork, address, bound.content(), options);
    server
        .map(Some)
        .map_err(|error| cannot_listen(address, error))
}
