//! `millstream start`: the node serves its streams over the network.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{SystemRandom, TcpNetwork};
use millstream_broker::security::check_exposure;
use millstream_broker::{BrokerConfig, SecurityConfig, Server};
use serde::Serialize;

use crate::args::StartArgs;
use crate::console::{Progress, print_json};
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
    data: String,
}

/// The settings of the network door.
fn config(args: &StartArgs, settings: &Settings) -> Result<BrokerConfig, SettingsError> {
    let listen = settings.listen.unwrap_or(LISTEN_DEFAULT);
    let security = SecurityConfig {
        authentication: settings.authentication.unwrap_or_default(),
        super_users: settings.super_users.clone().unwrap_or_default(),
    };
    let tls = settings.tls()?;
    let exposure = check_exposure(
        listen,
        security.authentication,
        tls.is_some(),
        args.insecure,
    )?;
    if let Some(exposure) = exposure {
        tracing::warn!("{exposure}");
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
    let mut config = config(&args, settings)?;
    let log = node::open(settings)?;
    config.local_socket = Some(std::path::absolute(log.dir())?);
    let clock = Arc::clone(log.clock());
    let random = Arc::new(SystemRandom);
    let server = Server::start(&TcpNetwork, config, log.clone(), clock, random)?;
    let stop = stop()?;
    let started = Started {
        listen: server.local_address(),
        data: settings.data_or_default().display().to_string(),
    };
    match is_json {
        true => print_json(&started)?,
        false => Progress::new(is_json).insist(&format!(
            "listening on {}, data in {}",
            started.listen, started.data
        )),
    }
    while stop.sleep(LONG)? {}
    drop(server);
    log.close()?;
    Ok(())
}
