//! What is known of who is on the other side of a connection.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use millstream_log::{LogError, Stream};

use crate::broker::Broker;
use crate::connection::Peer;

/// Streams that a connection has used lately: looked up once.
const STREAMS_MAX: usize = 4096;

/// The state of one connection.
pub struct Client {
    peer: Peer,
    broker: Arc<Broker>,
    streams: HashMap<Arc<str>, Stream>,
}

impl Client {
    pub fn new(peer: Peer, broker: &Arc<Broker>) -> Client {
        Client {
            peer,
            broker: Arc::clone(broker),
            streams: HashMap::new(),
        }
    }

    /// Where it comes from, and where it came to.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Where it is sent to for anything that only this broker does.
    pub fn advertised(&self) -> (String, u16) {
        let local = || {
            let address: SocketAddr = self.peer.local.unwrap_or(self.broker.config().listen);
            (address.ip().to_string(), address.port())
        };
        self.broker.config().advertised.clone().unwrap_or_else(local)
    }

    /// The stream of this name.
    pub fn stream(&mut self, name: &str) -> Result<Stream, LogError> {
        if let Some(stream) = self.streams.get(name)
            && !stream.is_deleted()
        {
            return Ok(stream.clone());
        }
        let stream = self.broker.log().stream(name)?;
        if self.streams.len() >= STREAMS_MAX {
            self.streams.clear();
        }
        self.streams.insert(name.into(), stream.clone());
        Ok(stream)
    }
}
