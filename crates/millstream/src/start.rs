//! `millstream start`: the node serves its streams over the network.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{SystemRandom, TcpNetwork};
use millstream_broker::{BrokerConfig, Server};
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

pub fn run(args: StartArgs, settings: &Settings, is_json: bool, stop: &Stop) -> anyhow::Result<()> {
    let listen = settings.listen.unwrap_or(LISTEN_DEFAULT);
    if !listen.ip().is_loopback() && !args.insecure {
        return Err(SettingsError::Exposed { listen }.into());
    }
    let log = node::open(settings)?;
    let config = BrokerConfig::new(listen);
    let clock = Arc::clone(log.clock());
    let random = Arc::new(SystemRandom);
    let server = Server::start(&TcpNetwork, config, log.clone(), clock, random)?;
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
