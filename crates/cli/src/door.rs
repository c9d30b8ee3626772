//! A server inside the program itself, and a client for it.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::bail;
use millstream_base::{Network, SystemRandom, TcpNetwork};
use millstream_broker::security::check_exposure;
use millstream_broker::{BrokerConfig, ListenerConfig, LocalNetwork, Server, StartError};
use millstream_client::ClientConfig;
use millstream_log::{Log, SOCKET};

use crate::console::Progress;
use crate::node;
use crate::remote::Remote;
use crate::settings::{LISTEN_DEFAULT, Settings, SettingsError};

/// A server of the log, and a client that connects to it.
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
        let start = |listener| {
            let config = BrokerConfig {
                local_socket: std::path::absolute(log.dir()).ok(),
                ..config(listener, settings)
            };
            start(&TcpNetwork, config, log)
        };
        let server = match start(listener.clone()) {
            Err(StartError::Listen { error, .. })
                if settings.listen.is_none() && error.kind() == ErrorKind::AddrInUse =>
            {
                start(free)?
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

    /// Serves this program alone, over the socket in the data directory: it asks for no login, and other users reach
    /// every port of the machine.
    fn private(log: &Log, settings: &Settings) -> anyhow::Result<Door> {
        const REMEDY: &str = "serve it with `millstream start`, and name that server with --server";
        if settings.has_logins() {
            bail!("the data directory requires logins: {REMEDY}");
        }
        let config = config(ListenerConfig::new(LISTEN_DEFAULT), settings);
        let server = match start(&LocalNetwork::new(log.dir()), config, log) {
            Err(StartError::Listen { error, .. }) => {
                let dir = log.dir().display();
                bail!("cannot create a socket in the data directory {dir}: {error}; {REMEDY}")
            }
            started => started?,
        };
        Ok(Door {
            remote: Remote::with(ClientConfig::of_socket(log.dir().join(SOCKET)))?,
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

fn config(listener: ListenerConfig, settings: &Settings) -> BrokerConfig {
    let defaults = BrokerConfig::new(listener.address);
    BrokerConfig {
        listeners: vec![listener],
        partitions_default: settings.partitions.unwrap_or(defaults.partitions_default),
        ..defaults
    }
}

fn start(network: &impl Network, config: BrokerConfig, log: &Log) -> Result<Server, StartError> {
    let clock = Arc::clone(log.clock());
    Server::start(network, config, log.clone(), clock, Arc::new(SystemRandom))
}
