//! Settings of the broker.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use millstream_pool::Objective;

use crate::groups;
use crate::listener::{ListenerConfig, Protocol};
use crate::security::{SecurityConfig, TlsFiles};

/// The default id of the broker: that of Kafka's own examples.
const NODE_ID_DEFAULT: i32 = 1;

/// Settings of the server.
#[derive(Debug, Clone)]
pub struct BrokerConfig {
    /// The broker's id, as clients see it; from 0 on.
    pub node_id: i32,
    /// The addresses that it serves, at least one. Clients on this machine learn the first one.
    pub listeners: Vec<ListenerConfig>,
    /// The folder of the socket for clients that run on this machine as the same user; without it
    /// there is no socket. Other users should have no access to the folder.
    pub local_socket: Option<PathBuf>,
    /// The largest request, in bytes.
    pub request_bytes_max: usize,
    /// Memory of all requests in progress, in bytes. Connections wait for their turn.
    pub requests_bytes_max: usize,
    /// Memory of all answers, from before each is built until its client has read it, in bytes.
    /// Requests wait for their turn. An answer that is larger waits until it is alone.
    pub answers_bytes_max: usize,
    /// Connections at the same time; further ones are closed at once.
    pub connections_max: usize,
    /// Connections over the `connection_creation_rate` of their address that are held at the same
    /// time, before they are closed; further ones are closed at once.
    pub held_connections_max: usize,
    /// The broker closes a connection that is silent for this long.
    pub idle_max: Duration,
    /// The broker closes a connection that takes nothing of an answer for this long, so that it
    /// does not hold memory.
    pub write_stall_max: Duration,
    /// The broker closes a connection that stops in the middle of a request for this long, for the
    /// same reason.
    pub read_stall_max: Duration,
    /// A consumer loses its subscription when it holds shared memory and makes no progress for this
    /// long, or for one second if others need the memory.
    pub push_stall_max: Duration,
    /// The most bytes of records in one answer to a fetch.
    pub fetch_bytes_max: usize,
    /// Whether the broker creates a missing topic when a client asks for it.
    pub auto_create_topics: bool,
    /// Partitions of topics that are created without a number.
    pub partitions_default: u32,
    /// The most partitions of one topic.
    pub partitions_max: u32,
    /// Authentication and authorization of clients.
    pub security: SecurityConfig,
    /// The certificate of listeners with TLS.
    pub tls: Option<TlsFiles>,
    /// Settings of consumer groups.
    pub groups: groups::Config,
    /// The latency that produce requests are to have, from their arrival to their answer; none by default. While it is missed,
    /// best-effort flows of the process have hardly any processor time, and the broker holds clients whose requests would be
    /// answered too late, as if they were over a quota.
    pub produce_objective: Option<Objective>,
    /// As `produce_objective`, for fetch requests: from the moment at which there are the records that they ask for.
    pub fetch_objective: Option<Objective>,
}

impl BrokerConfig {
    /// Returns the defaults, listening on `listen`.
    pub fn new(listen: SocketAddr) -> BrokerConfig {
        BrokerConfig {
            node_id: NODE_ID_DEFAULT,
            listeners: vec![ListenerConfig::new(listen)],
            local_socket: None,
            request_bytes_max: 100 << 20,
            requests_bytes_max: 512 << 20,
            answers_bytes_max: 256 << 20,
            connections_max: 20_000,
            held_connections_max: 1_000,
            idle_max: Duration::from_secs(600),
            write_stall_max: Duration::from_secs(30),
            read_stall_max: Duration::from_secs(30),
            push_stall_max: Duration::from_secs(300),
            fetch_bytes_max: 55 << 20,
            auto_create_topics: true,
            partitions_default: 1,
            partitions_max: 10_000,
            security: SecurityConfig::default(),
            tls: None,
            groups: groups::Config::default(),
            produce_objective: None,
            fetch_objective: None,
        }
    }

    /// Returns the protocol of a listener: its own, or the broker's.
    pub fn protocol(&self, listener: &ListenerConfig) -> Protocol {
        listener.protocol.unwrap_or(Protocol {
            tls: self.tls.is_some(),
            authentication: self.security.authentication,
        })
    }

    /// Returns whether clients of any listener have to log in. Then clients of other listeners are
    /// anonymous users, with the rights that access rules give these.
    pub fn has_logins(&self) -> bool {
        let mut protocols = self
            .listeners
            .iter()
            .map(|listener| self.protocol(listener));
        self.security.authentication || protocols.any(|protocol| protocol.authentication)
    }
}
