//! What is known of who is on the other side of a connection.

use std::collections::HashMap;
use std::sync::Arc;

use millstream_log::{Log, LogError, Stream};
use millstream_wire::Uuid;

use crate::broker::Broker;
use crate::connection::Peer;
use crate::native::Upload;

/// Streams that a connection has used lately: looked up once.
const STREAMS_MAX: usize = 4096;

/// The state of one connection.
pub struct Client {
    peer: Peer,
    id: String,
    broker: Arc<Broker>,
    /// The object that it puts.
    pub(crate) upload: Option<Upload>,
    streams: HashMap<Arc<str>, Stream>,
    streams_by_uuid: HashMap<Uuid, Stream>,
}

impl Client {
    pub fn new(peer: Peer, broker: &Arc<Broker>) -> Client {
        Client {
            peer,
            id: String::new(),
            broker: Arc::clone(broker),
            upload: None,
            streams: HashMap::new(),
            streams_by_uuid: HashMap::new(),
        }
    }

    /// What it calls itself; may be empty.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Takes over what a request's header says.
    pub fn set_id(&mut self, id: Option<&str>) {
        let id = id.unwrap_or_default();
        if self.id != id {
            id.clone_into(&mut self.id);
        }
    }

    /// Where it comes from, and where it came to.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Where it is sent to for anything that only this broker does.
    pub fn advertised(&self) -> (String, u16) {
        let local = || (self.peer.local.ip().to_string(), self.peer.local.port());
        self.broker
            .config()
            .advertised
            .clone()
            .unwrap_or_else(local)
    }

    /// The stream of this name.
    pub fn stream(&mut self, name: &str) -> Result<Stream, LogError> {
        if let Some(stream) = self.streams.get(name)
            && !stream.is_deleted()
        {
            return Ok(stream.clone());
        }
        let stream = stream_of_users(self.broker.log(), name)?;
        self.keep(stream.clone());
        Ok(stream)
    }

    /// The stream of this id.
    pub fn stream_by_uuid(&mut self, uuid: Uuid) -> Result<Stream, LogError> {
        if let Some(stream) = self.streams_by_uuid.get(&uuid)
            && !stream.is_deleted()
        {
            return Ok(stream.clone());
        }
        let stream = not_internal(self.broker.log().stream_by_uuid(uuid)?)?;
        self.keep(stream.clone());
        Ok(stream)
    }

    fn keep(&mut self, stream: Stream) {
        if self.streams.len() >= STREAMS_MAX {
            self.streams.clear();
            self.streams_by_uuid.clear();
        }
        self.streams_by_uuid.insert(stream.uuid(), stream.clone());
        self.streams.insert(stream.name().into(), stream);
    }
}

/// The stream of this name, unless the broker keeps it for itself.
pub fn stream_of_users(log: &Log, name: &str) -> Result<Stream, LogError> {
    not_internal(log.stream(name)?)
}

/// What the broker keeps for itself is nobody else's.
pub(crate) fn not_internal(stream: Stream) -> Result<Stream, LogError> {
    match stream.name().starts_with("__") {
        true => Err(LogError::UnknownStream {
            name: stream.name().to_owned(),
        }),
        false => Ok(stream),
    }
}
