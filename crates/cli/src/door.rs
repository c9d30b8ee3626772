//! A server inside the program itself, and a client for it.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::bail;
use millstream_base::{SystemRandom, TcpNetwork};
use millstream_broker::security::check_exposure;
use millstream_broker::{BrokerConfig, ListenerConfig, Server, StartError};
use millstream_client::ClientConfig;
use millstream_log::Log;

use crate::console::Progress;
use crate::node;
use crate::remote::Remote;
use crate::settings::{Settings, SettingsError};

/// A server of the log, and a client that connects to it over the network.
pub struct Door {
    remote: Remote,
    /// The server, which stops when this is dropped.
    _server: Server,
}

impl Door {
    /// Listens at the address of the settings; without one at the default address, or on a free port if that is
    /// taken.
    pub fn open(log: &Log, settings: &Settings, progress: &Progress) -> anyhow::Result<Door> {
        let listeners = settings.listeners()?;
        let [listener] = &listeners[..] else {
            bail!("quickstart has one listener; `millstream start` has several");
        };
        let asks = listener
            .protocol
            .is_some_and(|it| it.tls || it.authentication);
        if asks || settings.authentication == Some(true) || settings.tls()?.is_some() {
            bail!(
                "quickstart serves without logins and certificates; `millstream start` serves with them"
            );
        }
        check_exposure(listener.address, false, false, false).map_err(SettingsError::from)?;
        let free = ListenerConfig::new(SocketAddr::new(listener.address.ip(), 0));
        let server = match start(log, listener.clone(), settings) {
            Err(StartError::Listen { error, .. })
                if settings.listen.is_none() && error.kind() == ErrorKind::AddrInUse =>
            {
                start(log, free, settings)?
            }
            started => started?,
        };
        let address = server.local_address();
        progress.note(&format!("clients find it at {address}"));
        Ok(Door {
            remote: Remote::with(ClientConfig::new(address.to_string()))?,
            _server: server,
        })
    }

    /// Listens on a free port of this machine, for this program alone.
    fn private(log: &Log, settings: &Settings) -> anyhow::Result<Door> {
        if settings.authentication == Some(true) {
            bail!(
                "the data directory requires logins: serve it with `millstream start`, and name that server with --server"
            );
        }
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = start(log, ListenerConfig::new(local), settings)?;
        let address = server.local_address();
        Ok(Door {
            remote: Remote::with(ClientConfig::new(address.to_string()))?,
            _server: server,
        })
    }

    pub fn remote(&self) -> &Remote {
        &self.remote
    }
}

/// Runs a command on the server that the settings name; for a data directory, on one inside this program.
pub fn with_server(
    settings: &Settings,
    run: impl FnOnce(&Remote) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if !settings.is_local() {
        return run(&Remote::new(settings)?);
    }
    let log = node::open_existing(settings)?;
    let door = Door::private(&log, settings)?;
    run(&door.remote)?;
    drop(door);
    Ok(log.close()?)
}

fn start(log: &Log, listener: ListenerConfig, settings: &Settings) -> Result<Server, StartError> {
    let clock = Arc::clone(log.clock());
    let random = Arc::new(SystemRandom);
    let defaults = BrokerConfig::new(listener.address);
    let config = BrokerConfig {
        listeners: vec![listener],
        local_socket: std::path::absolute(log.dir()).ok(),
        partitions_default: settings.partitions.unwrap_or(defaults.partitions_default),
        ..defaults
    };
    Server::start(&TcpNetwork, config, log.clone(), clock, random)
}
