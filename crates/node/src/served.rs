//! The listeners of a node, from before its log is open to the end of its broker.

use std::net::SocketAddr;
use std::sync::Arc;

use millstream_base::{Network, SystemRandom, TcpNetwork};
use millstream_broker::security::{Exposed, check_exposure};
use millstream_broker::{BrokerConfig, Listening, Server, StartError};
use millstream_log::Log;
use millstream_serve::{Gate, Metric};

use crate::content::NodeContent;
use crate::gate::NodeGate;

/// Checks that clients of other machines log in: at each listener, and at the node's HTTP server, which has the users of
/// the listeners. `insecure` permits addresses without logins. Warns of exposures that are permitted.
///
/// # Errors
/// The first address that other machines reach without a login.
pub fn check_exposed(
    config: &BrokerConfig,
    http: Option<SocketAddr>,
    insecure: bool,
) -> Result<(), Exposed> {
    let listeners = config.listeners.iter().map(|listener| {
        let protocol = config.protocol(listener);
        (listener.address, protocol.authentication, protocol.tls)
    });
    let http = http.map(|http| (http, config.has_logins(), config.tls.is_some()));
    for (address, authentication, is_encrypted) in listeners.chain(http) {
        if let Some(exposure) = check_exposure(address, authentication, is_encrypted, insecure)? {
            tracing::warn!("{exposure}");
        }
    }
    Ok(())
}

/// The bound listeners of a node whose log may not be open yet: clients that connect wait.
pub struct BoundNode {
    listening: Listening<<TcpNetwork as Network>::Listener>,
    content: Arc<NodeContent>,
}

impl BoundNode {
    /// Reads the files of TLS and binds the listeners, and changes nothing on disk. `metrics` returns the metrics of the
    /// program itself, for the node's pages.
    ///
    /// # Errors
    /// If an address is in use, for example.
    pub fn bind(
        config: BrokerConfig,
        metrics: fn() -> Vec<Metric>,
    ) -> Result<BoundNode, StartError> {
        Ok(BoundNode {
            listening: Listening::bind(&TcpNetwork, config)?,
            content: Arc::new(NodeContent::new(metrics)),
        })
    }

    /// Returns the node's pages, which say that it starts until it serves.
    pub fn content(&self) -> Arc<NodeContent> {
        Arc::clone(&self.content)
    }

    /// Returns a gate with the users, the access rules and the TLS of the listeners.
    pub fn gate(&self) -> Arc<dyn Gate> {
        Arc::new(NodeGate {
            tls: self.listening.tls().cloned(),
            content: self.content(),
        })
    }

    /// Whether the node has a certificate, so that HTTP is encrypted, too.
    pub fn has_tls(&self) -> bool {
        self.listening.tls().is_some()
    }

    /// Serves the log. Clients on this machine also find a socket in its directory.
    ///
    /// # Errors
    /// If the broker's own streams cannot be read or written, for example.
    pub fn serve(self, log: &Log) -> Result<ServedNode, StartError> {
        let local_socket = std::path::absolute(log.dir()).ok();
        let (clock, random) = (Arc::clone(log.clock()), Arc::new(SystemRandom));
        let server = self
            .listening
            .serve(local_socket, log.clone(), clock, random)?;
        self.content.serves(log, server.broker());
        Ok(ServedNode {
            content: self.content,
            server,
        })
    }
}

/// A node whose broker serves clients. Dropped, it answers the pending requests and ends; its pages say that it stops.
pub struct ServedNode {
    content: Arc<NodeContent>,
    server: Server,
}

impl ServedNode {
    /// Returns the broker's server.
    pub fn server(&self) -> &Server {
        &self.server
    }
}

impl Drop for ServedNode {
    fn drop(&mut self) {
        // The pages hold the broker and the log, which end behind this.
        self.content.stops();
    }
}
