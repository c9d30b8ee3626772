//! Accepts the connections of a listener, and gives each a task.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Accepted, Listener};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::broker::Broker;
use crate::connection::Connection;
use crate::listener::LogIn;
use crate::peer::{Peer, Stream};
use crate::security::{Tls, handshake_failure};

/// The wait after a failed accept, for lack of file descriptors for example.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The most time for a TLS handshake.
const TLS_HANDSHAKE_MAX: Duration = Duration::from_secs(10);

/// A served listener, without its socket.
#[derive(Clone)]
pub struct Served {
    /// The listener's address, with its actual port.
    pub address: SocketAddr,
    /// See [`ListenerConfig::advertised`](crate::ListenerConfig::advertised).
    pub advertised: Option<(String, u16)>,
    pub tls: Option<Arc<Tls>>,
    /// Whether clients log in.
    pub log_in: LogIn,
    /// Whether this is the socket for clients on this machine that run as the same user.
    pub is_local: bool,
}

impl Served {
    /// Returns the host and the port that the broker announces to a client. `local` is the address
    /// that the client connected to.
    fn advertised_to(&self, local: SocketAddr) -> (String, u16) {
        let ip = match self.address.ip() {
            ip if ip.is_unspecified() => local.ip().to_canonical(),
            ip => ip,
        };
        match &self.advertised {
            Some((host, 0)) => (host.clone(), self.address.port()),
            Some(advertised) => advertised.clone(),
            None => (ip.to_string(), self.address.port()),
        }
    }
}

/// The state that listeners share.
#[derive(Clone)]
pub struct Shared {
    /// Room for connections.
    room: Arc<Semaphore>,
    /// Room for connections over the quota of their address.
    room_to_hold: Arc<Semaphore>,
    broker: Arc<Broker>,
    /// Becomes `true` when the broker ends.
    stop: watch::Receiver<bool>,
}

impl Shared {
    /// Returns the state for the listeners of a broker, which serve until `stop` is `true`.
    pub fn new(broker: Arc<Broker>, stop: watch::Receiver<bool>) -> Shared {
        Shared {
            room: Arc::new(Semaphore::new(broker.config().connections_max)),
            room_to_hold: Arc::new(Semaphore::new(broker.config().held_connections_max)),
            broker,
            stop,
        }
    }
}

/// Serves until `stop` is `true`; then the received requests are still answered.
pub async fn accept_all(
    mut listener: impl Listener<Stream: Stream>,
    served: Served,
    shared: Shared,
) {
    let Shared {
        room,
        room_to_hold,
        broker,
        mut stop,
    } = shared;
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let Accepted {
            stream,
            peer: from,
            local,
        } = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                broker.warn_of(
                    served.address,
                    format_args!("cannot take a connection, trying again: {error}"),
                );
                tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                continue;
            }
        };
        // The socket on this machine has no IP address.
        let admitted = match served.is_local {
            true => Ok(()),
            false => broker.security().admit_connection(from.ip()),
        };
        if let Err(hold) = admitted {
            broker.counters.refused.add_one();
            broker.warn_of(
                from,
                format_args!(
                    "connection refused: its address opens more than its connection_creation_rate"
                ),
            );
            if let Ok(permit) = Arc::clone(&room_to_hold).try_acquire_owned() {
                let mut stop = stop.clone();
                connections.spawn(async move {
                    let _ = timeout(hold, stop.wait_for(|stop| *stop)).await;
                    drop((stream, permit));
                });
            }
            continue;
        }
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            broker.counters.refused.add_one();
            broker.warn_of(from, format_args!("connection refused: there are too many"));
            continue;
        };
        let peer = Peer {
            address: from,
            is_same_user: served.is_local,
            advertised: served.advertised_to(local),
            log_in: served.log_in,
        };
        let (tls, broker, stop) = (served.tls.clone(), Arc::clone(&broker), stop.clone());
        broker.counters.accepted.add_one();
        connections.spawn(async move {
            let ending = Ending(Arc::clone(&broker));
            serve(stream, tls, peer, broker, stop).await;
            drop(ending);
            drop(permit);
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Serves one connection, to its end.
async fn serve(
    stream: impl Stream,
    tls: Option<Arc<Tls>>,
    peer: Peer,
    broker: Arc<Broker>,
    stop: watch::Receiver<bool>,
) {
    let Some(tls) = tls else {
        return Connection::new(stream, peer, None, broker, stop)
            .run()
            .await;
    };
    let from = peer.address;
    let accepted = TlsAcceptor::from(tls.config()).accept(stream);
    let stream = match timeout(TLS_HANDSHAKE_MAX, accepted).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            broker.counters.failed.add_one();
            return broker.warn_of(from, format_args!("{}", handshake_failure(&error)));
        }
        Err(_) => {
            broker.counters.failed.add_one();
            return broker.warn_of(from, format_args!("connection does not go on with TLS"));
        }
    };
    let certificates = stream.get_ref().1.peer_certificates();
    let certificate = certificates.and_then(|certificates| certificates.first());
    let certified =
        certificate.and_then(|certificate| broker.security().log_in_by(certificate, from));
    Connection::new(stream, peer, certified, broker, stop)
        .run()
        .await;
}

/// Counts the end of a connection, however it ends.
struct Ending(Arc<Broker>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.counters.ended.add_one();
    }
}
