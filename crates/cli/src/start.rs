//! `millstream start`: serves the node's streams over the network, and its state over HTTP.

mod content;
mod found;
mod gate;
mod keyed;
mod keyed_errors;
mod metrics;
mod notify;
mod watch;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{SystemRandom, TcpNetwork};
use millstream_broker::security::{Tls, check_exposure};
use millstream_broker::{BrokerConfig, Listening, SecurityConfig};
use millstream_serve::{Gate, Options, Server};
use serde::Serialize;

use self::content::NodeContent;
use self::gate::NodeGate;
use self::notify::{READY, STOPPING, notify};
use crate::args::StartArgs;
use crate::console::{Progress, print_json};
use crate::events::Levels;
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
        ..defaults
    };
    settings.put_in_broker(&mut config);
    let has_tls = config.tls.is_some();
    let listeners = config.listeners.iter().map(|listener| {
        let protocol = config.protocol(listener);
        (listener.address, protocol.authentication, protocol.tls)
    });
    let http = settings
        .http
        .map(|http| (http, config.has_logins(), has_tls));
    for (address, authentication, is_encrypted) in listeners.chain(http) {
        let exposure = check_exposure(address, authentication, is_encrypted, args.insecure)?;
        if let Some(exposure) = exposure {
            tracing::warn!("{exposure}");
        }
    }
    Ok(config)
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
    let listening = Listening::bind(&TcpNetwork, config)?;
    let content = Arc::new(NodeContent::new());
    let http = serve_http(settings, listening.tls(), &content)?;
    let has_tls = listening.tls().is_some();
    let log = node::open(settings)?;
    let clock = Arc::clone(log.clock());
    let local_socket = Some(std::path::absolute(log.dir())?);
    let server = listening.serve(local_socket, log.clone(), clock, Arc::new(SystemRandom))?;
    content.serves(&log, server.broker());
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
    content.stops();
    drop(server);
    drop(http);
    log.close()?;
    Ok(())
}

fn serve_http(
    settings: &Settings,
    tls: Option<&Arc<Tls>>,
    content: &Arc<NodeContent>,
) -> anyhow::Result<Option<Server>> {
    let Some(address) = settings.http else {
        return Ok(None);
    };
    let gate: Arc<dyn Gate> = Arc::new(NodeGate {
        tls: tls.cloned(),
        content: Arc::clone(content),
    });
    let options = Options {
        gate: Some(gate),
        hosts: settings.http_hosts(),
    };
    let content = Arc::clone(content);
    let server = Server::start(TcpNetwork, address, content, options);
    server
        .map(Some)
        .map_err(|error| cannot_listen(address, error))
}
