//! `millstream start`: the node serves its streams over the network, and shows itself over HTTP.

mod content;
mod gate;
mod metrics;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{SystemRandom, TcpNetwork};
use millstream_broker::security::{Tls, check_exposure};
use millstream_broker::{BrokerConfig, Listening, SecurityConfig};
use millstream_serve::{Options, Server};
use serde::Serialize;

use self::content::NodeContent;
use self::gate::NodeGate;
use crate::args::StartArgs;
use crate::console::{Progress, print_json};
use crate::http::{cannot_listen, url};
use crate::node;
use crate::settings::{Settings, SettingsError};
use crate::stop::Stop;

/// Where clients of Kafka look first.
pub const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9092);

/// Nothing but a signal ends the wait.
const LONG: Duration = Duration::from_secs(3600);

/// What `--json` prints when the node listens.
#[derive(Serialize)]
struct Started {
    listen: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<SocketAddr>,
    data: String,
}

/// The settings of the network door.
fn config(args: &StartArgs, settings: &Settings) -> Result<BrokerConfig, SettingsError> {
    let listen = settings.listen.unwrap_or(LISTEN_DEFAULT);
    let security = SecurityConfig {
        authentication: settings.authentication.unwrap_or_default(),
        super_users: settings.super_users.clone().unwrap_or_default(),
        tokens: settings.tokens()?,
    };
    let tls = settings.tls()?;
    for address in [Some(listen), settings.http].into_iter().flatten() {
        let (authentication, has_tls) = (security.authentication, tls.is_some());
        let exposure = check_exposure(address, authentication, has_tls, args.insecure)?;
        if let Some(exposure) = exposure {
            tracing::warn!("{exposure}");
        }
    }
    let defaults = BrokerConfig::new(listen);
    Ok(BrokerConfig {
        security,
        tls,
        partitions_default: settings.partitions.unwrap_or(defaults.partitions_default),
        ..defaults
    })
}

/// `stop` catches signals. Before the node listens, a signal ends the process at once: a start can be cut
/// off at any moment, and may take long.
pub fn run(
    args: StartArgs,
    settings: &Settings,
    is_json: bool,
    stop: fn() -> io::Result<Stop>,
) -> anyhow::Result<()> {
    // Before anything is made on the disk, and before what may take long: probes are told that it starts.
    let listening = Listening::bind(&TcpNetwork, config(&args, settings)?)?;
    let content = Arc::new(NodeContent::new());
    let http = serve_http(settings, listening.tls(), &content)?;
    let has_tls = listening.tls().is_some();
    let log = node::open(settings)?;
    let clock = Arc::clone(log.clock());
    let local_socket = Some(std::path::absolute(log.dir())?);
    let server = listening.serve(local_socket, log.clone(), clock, Arc::new(SystemRandom))?;
    content.serves(&log, server.broker());
    let stop = stop()?;
    let started = Started {
        listen: server.local_address(),
        http: http.as_ref().map(Server::local_address),
        data: settings.data_or_default().display().to_string(),
    };
    if is_json {
        print_json(&started)?;
    } else {
        let progress = Progress::new(is_json);
        progress.insist(&format!(
            "listening on {}, data in {}",
            started.listen, started.data
        ));
        if let Some(http) = started.http {
            progress.insist(&format!("watch it at {}", url(http, has_tls)));
        }
    }
    while stop.sleep(LONG)? {}
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
    let gate = Arc::new(NodeGate {
        tls: tls.cloned(),
        content: Arc::clone(content),
    });
    let options = Options {
        gate,
        hosts: settings.http_hosts(),
    };
    let content = Arc::clone(content);
    let server = Server::start(TcpNetwork, address, content, options);
    server
        .map(Some)
        .map_err(|error| cannot_listen(address, error))
}
