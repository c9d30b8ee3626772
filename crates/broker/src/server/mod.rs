//! The server: it binds its listeners, serves them on threads of its own, and ends.

mod accept;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use millstream_base::{Clock, Listener, Network, Random};
use millstream_log::{Log, LogError};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use self::accept::{Served, Shared, accept_all};
use crate::broker::Broker;
use crate::config::BrokerConfig;
use crate::listener::{ListenerConfig, LogIn, Protocol};
use crate::local::LocalListener;
use crate::objectives::Objectives;
use crate::peer::Stream;
use crate::security::service::SecurityError;
use crate::security::{PEER_LINES_EVERY, Tls, TlsError, TokenCheck};

/// The most time that connections have to answer their pending requests when the broker ends.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// The longest that a start waits for the end of the broker's own transactions.
const RECOVERY_WAIT_MAX: Duration = Duration::from_secs(15);

/// Worker threads for each core: one of them may wait for the disk.
const THREADS_PER_CORE: usize = 2;

/// The time between two checks of the files of TLS.
const RENEW_EVERY: Duration = Duration::from_secs(60);

/// Why a broker does not start.
#[derive(thiserror::Error)]
pub enum StartError {
    /// The broker cannot listen on the address.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The address is in use, as by an earlier listener on the same port.
    #[error(
        "cannot listen on {second}: the address is in use, and listener {first} has the same port"
    )]
    SamePort {
        /// The address of the earlier listener.
        first: SocketAddr,
        /// The address that is in use.
        second: SocketAddr,
    },
    /// A listener needs a certificate.
    #[error("listener {address} has protocol {protocol}, and the broker has no certificate")]
    NoCertificate {
        /// The address of the listener.
        address: SocketAddr,
        /// Its protocol.
        protocol: Protocol,
    },
    /// There are no threads for it.
    #[error("no threads for the broker: {0}")]
    Threads(io::Error),
    /// The broker's own streams in the log cannot be read or written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The streams of users, access rules and quotas cannot be read or written.
    #[error(transparent)]
    Security(#[from] SecurityError),
    /// There is no certificate, or no key.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

millstream_base::debug_as_display!(StartError);

/// Bound listeners that are not served yet: clients that connect wait.
pub struct Listening<L> {
    runtime: Runtime,
    /// In the order of the config.
    listeners: Vec<(L, Served)>,
    tls: Option<Arc<Tls>>,
    config: BrokerConfig,
}

impl<L: Listener<Stream: Stream>> Listening<L> {
    /// Reads the files of TLS, and binds the addresses.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn bind(
        network: &impl Network<Listener = L>,
        config: BrokerConfig,
    ) -> Result<Listening<L>, StartError> {
        assert!(!config.listeners.is_empty(), "a broker has a listener");
        let tls = config.tls.clone().map(Tls::load).transpose()?.map(Arc::new);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = Builder::new_multi_thread()
            .worker_threads(cores * THREADS_PER_CORE)
            .thread_name("millstream-broker")
            .enable_all()
            .build()
            .map_err(StartError::Threads)?;
        let mut listeners = Vec::with_capacity(config.listeners.len());
        for of_config in &config.listeners {
            let (address, protocol) = (of_config.address, config.protocol(of_config));
            if protocol.tls && tls.is_none() {
                return Err(StartError::NoCertificate { address, protocol });
            }
            let listen =
                |error| cannot_listen(error, address, &config.listeners[..listeners.len()]);
            let listener = runtime.block_on(network.listen(address)).map_err(listen)?;
            let served = Served {
                address: listener.local_address().map_err(listen)?,
                advertised: of_config.advertised.clone(),
                tls: tls.clone().filter(|_| protocol.tls),
                log_in: match protocol.authentication {
                    true => LogIn::Must,
                    false => LogIn::No,
                },
                is_local: false,
            };
            listeners.push((listener, served));
        }
        Ok(Listening {
            runtime,
            listeners,
            tls,
            config,
        })
    }

    /// Returns the addresses of the listeners, in the order of the config.
    fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners
            .iter()
            .map(|(_, served)| served.address)
            .collect()
    }

    /// Returns the server's side of TLS, which follows its files once the broker serves.
    pub fn tls(&self) -> Option<&Arc<Tls>> {
        self.tls.as_ref()
    }

    /// Starts a broker of this log. Clients on this machine find it by a socket in the folder
    /// `local_socket`, if there is one.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn serve(
        self,
        local_socket: Option<PathBuf>,
        log: Log,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Server, StartError> {
        let addresses = self.addresses();
        let Listening {
            runtime,
            listeners,
            tls,
            mut config,
        } = self;
        config.local_socket = local_socket;
        let local_served = listeners.first().map(|(_, first)| Served {
            tls: None,
            log_in: log_in_locally(&config),
            is_local: true,
            ..first.clone()
        });
        let entered = runtime.enter();
        let local_listener = listen_locally(&mut config);
        drop(entered);
        let objectives = Objectives::new(&config).map_err(StartError::Threads)?;
        let broker = Broker::new(config, objectives, log, clock, random)?;
        let (stop, stopping) = watch::channel(false);
        runtime.spawn(Arc::clone(broker.groups()).keep_time());
        runtime.spawn(Arc::clone(broker.transactions()).keep_time());
        recover_key_transactions(&runtime, &broker);
        runtime.spawn(Arc::clone(broker.shares()).write_dead_letters());
        runtime.spawn(Arc::clone(broker.shares()).keep_storing_deliveries());
        runtime.spawn(report_left_out(Arc::clone(&broker)));
        if let Some(tokens) = broker.security().tokens() {
            runtime.spawn(renew_keys(Arc::clone(tokens)));
        }
        if let Some(tls) = &tls {
            runtime.spawn(renew(Arc::clone(tls)));
        }
        let shared = Shared::new(Arc::clone(&broker), stopping);
        for (listener, served) in listeners {
            runtime.spawn(accept_all(listener, served, shared.clone()));
        }
        if let Some((listener, served)) = local_listener.zip(local_served) {
            runtime.spawn(accept_all(listener, served, shared.clone()));
        }
        drop(shared);
        Ok(Server {
            runtime: Some(runtime),
            stop,
            addresses,
            broker,
        })
    }
}

/// Waits until the broker's own transactions of the run before have ended: they hold back look-ups.
fn recover_key_transactions(runtime: &Runtime, broker: &Broker) {
    let transactions = Arc::clone(broker.key_transactions());
    let (done, recovered) = mpsc::channel();
    runtime.spawn(async move {
        transactions.recover().await;
        let _ = done.send(());
    });
    // One that cannot be ended now is tried again by the coordinator.
    let _ = recovered.recv_timeout(RECOVERY_WAIT_MAX);
}

/// A running broker, on threads of its own, until it is stopped or dropped.
pub struct Server {
    runtime: Option<Runtime>,
    stop: watch::Sender<bool>,
    addresses: Vec<SocketAddr>,
    broker: Arc<Broker>,
}

impl Server {
    /// Starts a broker of this log: binds the address, and serves.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(
        network: &impl Network,
        config: BrokerConfig,
        log: Log,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Server, StartError> {
        let local_socket = config.local_socket.clone();
        Listening::bind(network, config)?.serve(local_socket, log, clock, random)
    }

    /// Returns the address of the first listener.
    pub fn local_address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Returns the addresses of all listeners, in the order of the config.
    pub fn local_addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the broker.
    pub fn broker(&self) -> &Arc<Broker> {
        &self.broker
    }
}

/// Accepts no new requests, answers the pending ones, and ends.
impl Drop for Server {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        // A join may wait for seconds, and a rebalance for minutes.
        self.broker.groups().end_waits();
        if let Some(runtime) = self.runtime.take() {
            runtime.block_on(async {
                let _ = tokio::time::timeout(DRAIN_MAX, self.stop.closed()).await;
            });
            runtime.shutdown_timeout(DRAIN_MAX);
            self.broker.shares().store_deliveries();
            self.broker.pins().wait_until_empty(DRAIN_MAX);
            let now = self.broker.log().clock().monotonic() + PEER_LINES_EVERY;
            self.broker.security().peer_lines().report_left_out(now);
        }
    }
}

/// Reports log lines about connections that were left out.
async fn report_left_out(broker: Arc<Broker>) {
    loop {
        tokio::time::sleep(PEER_LINES_EVERY).await;
        let lines = broker.security().peer_lines();
        lines.report_left_out(broker.log().clock().monotonic());
    }
}

/// Follows the files of certificates and keys.
async fn renew(tls: Arc<Tls>) {
    loop {
        tokio::time::sleep(RENEW_EVERY).await;
        let tls = Arc::clone(&tls);
        match tokio::task::spawn_blocking(move || tls.refresh()).await {
            Ok(Ok(true)) => tracing::info!("TLS: there is a new certificate"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => tracing::warn!("TLS: the old certificate stays in use: {error}"),
            Err(_) => return,
        }
    }
}

/// Follows the keys that tokens are checked with.
async fn renew_keys(tokens: Arc<TokenCheck>) {
    loop {
        tokio::time::sleep(tokens.renew_every()).await;
        let tokens = Arc::clone(&tokens);
        if tokio::task::spawn_blocking(move || tokens.renew())
            .await
            .is_err()
        {
            return;
        }
    }
}

/// Returns whether clients of the local socket log in. A client comes there from any listener, with
/// the login that this listener requires, so the socket requires no more than the weakest listener.
fn log_in_locally(config: &BrokerConfig) -> LogIn {
    let listeners = &mut config.listeners.iter();
    match config.has_logins() {
        false => LogIn::No,
        true if listeners.all(|it| config.protocol(it).authentication) => LogIn::Must,
        true => LogIn::May,
    }
}

/// Listens on the socket for clients on this machine. The broker works without it, so a failure is
/// only logged.
fn listen_locally(config: &mut BrokerConfig) -> Option<LocalListener> {
    let dir = config.local_socket.as_ref()?;
    match LocalListener::bind(dir) {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::warn!(
                "cannot create the socket for local clients in {}: {error}; they connect over the network",
                dir.display()
            );
            config.local_socket = None;
            None
        }
    }
}

/// Returns the error of a listener that cannot bind its address; `earlier` are the listeners that
/// did.
fn cannot_listen(error: io::Error, address: SocketAddr, earlier: &[ListenerConfig]) -> StartError {
    let has_same_port = |listener: &&ListenerConfig| listener.address.port() == address.port();
    match earlier.iter().find(has_same_port) {
        Some(first) if error.kind() == io::ErrorKind::AddrInUse => StartError::SamePort {
            first: first.address,
            second: address,
        },
        _ => StartError::Listen { address, error },
    }
}
