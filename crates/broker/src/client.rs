//! The broker's knowledge of the client on one connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::StreamId;
use millstream_log::{LogError, Stream};
use millstream_wire::{ApiKey, ResponseError, Uuid};

use tokio::sync::watch;

use crate::access::Access;
use crate::answer_memory::AnswerMemory;
use crate::broker::Broker;
use crate::groups::{GroupName, MemberId};
use crate::listener::LogIn;
use crate::native::Upload;
use crate::pace::Pace;
use crate::peer::Peer;
use crate::push::Subscriptions;
use crate::security::service::Login;
use crate::security::{ByteRate, Principal, Traffic, answer_bytes_max};
use crate::shares::service::Held;
use crate::telemetry::Reports;
use crate::user_streams::not_internal;

/// The most streams that a connection remembers, so that it looks each up once.
const STREAMS_MAX: usize = 4096;

/// The longest name, and the longest version, of a client's software.
const SOFTWARE_CHARS_MAX: usize = 256;

/// The state of one connection.
pub struct Client {
    peer: Peer,
    id: String,
    /// The name and the version of the client's software; empty if the client has not sent them.
    software: (String, String),
    broker: Arc<Broker>,
    access: Access,
    /// Present only where clients may log in.
    login: Option<Login>,
    /// The user that the client's certificate names.
    certified: Option<Principal>,
    pace: Pace,
    ending: watch::Receiver<bool>,
    /// The object that the client uploads.
    pub(crate) upload: Option<Upload>,
    pub(crate) subscriptions: Subscriptions,
    /// The client's reports of its own metrics.
    pub(crate) reports: Reports,
    /// The share sessions that the connection has begun, if there are any.
    shares: Option<Held>,
    streams: HashMap<Arc<str>, Stream>,
    streams_by_uuid: HashMap<Uuid, Stream>,
}

impl Client {
    /// Returns the state of a new connection. `ending` turns `true` when the broker ends.
    pub fn new(
        peer: Peer,
        certified: Option<Principal>,
        broker: &Arc<Broker>,
        ending: watch::Receiver<bool>,
    ) -> Client {
        let security = broker.security();
        let principal = certified.clone().unwrap_or_else(Principal::anonymous);
        Client {
            access: Access::new(Arc::clone(security), principal, peer.address),
            login: security.login().filter(|_| peer.log_in != LogIn::No),
            certified,
            pace: Pace::default(),
            ending,
            peer,
            id: String::new(),
            software: Default::default(),
            broker: Arc::clone(broker),
            upload: None,
            subscriptions: Subscriptions::default(),
            reports: Reports::default(),
            shares: None,
            streams: HashMap::new(),
            streams_by_uuid: HashMap::new(),
        }
    }

    /// Returns the client id that the client reports; it may be empty.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Takes over the client id from a request's header.
    pub fn set_id(&mut self, id: Option<&str>) {
        let id = id.unwrap_or_default();
        if self.id != id {
            id.clone_into(&mut self.id);
        }
    }

    /// Returns the name and the version of the client's software, as it reports them; they may be empty.
    pub fn software(&self) -> (&str, &str) {
        (&self.software.0, &self.software.1)
    }

    /// Takes over the beginnings of the name and the version of the client's software.
    pub fn set_software(&mut self, name: &str, version: &str) {
        let begin = |text: &str| text.chars().take(SOFTWARE_CHARS_MAX).collect();
        self.software = (begin(name), begin(version));
    }

    /// Returns the client's rights.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Returns the signal that the broker ends: requests must not wait for records after it.
    pub fn ending(&self) -> watch::Receiver<bool> {
        self.ending.clone()
    }

    /// Returns for how long the connection may stay silent in both directions.
    pub fn idle_max(&self) -> Duration {
        self.broker.config().idle_max
    }

    /// Returns the client's measured reading speed.
    pub fn pace_mut(&mut self) -> &mut Pace {
        &mut self.pace
    }

    /// Returns the most bytes of records that one answer to the client carries. A larger chunk is
    /// sent alone.
    pub fn answer_bytes_max(&self) -> usize {
        let pace = self.pace.bytes_max();
        let bytes_max = pace.min(self.broker.config().fetch_bytes_max);
        match self.limit(Traffic::Consumed) {
            Some(rate) => bytes_max.min(answer_bytes_max(rate)),
            None => bytes_max,
        }
    }

    /// Returns the memory for answers.
    pub fn answers(&self) -> &Arc<AnswerMemory> {
        self.broker.answers()
    }

    /// Notes a share session, so that it ends with the connection if it has not ended before.
    pub fn hold_share_session(&mut self, group: &GroupName, member: &MemberId, number: u64) {
        let shares = self.broker.shares();
        let held = self
            .shares
            .get_or_insert_with(|| Held::new(Arc::clone(shares)));
        held.add(group.clone(), member.clone(), number);
    }

    /// Ends the connection's share sessions: the records that its members had acquired become
    /// available to others.
    pub fn end_share_sessions(&mut self) {
        self.shares = None;
    }

    /// Returns the client's quota for this direction, if it has one.
    pub fn limit(&self, traffic: Traffic) -> Option<ByteRate> {
        let (security, principal) = (self.broker.security(), self.access.principal());
        let limit = security.limit(traffic, principal, &self.id);
        limit.map(|(_, rate)| rate)
    }

    /// Returns a check of whether the client may share the log's memory; it can be repeated later.
    /// A client that has mapped the memory can read every stream, and no quota counts its reads.
    pub fn sharing(&self) -> Box<dyn Fn() -> Result<(), String> + Send> {
        let (broker, access, id) = (
            Arc::clone(&self.broker),
            self.access.clone(),
            self.id.clone(),
        );
        Box::new(move || {
            if !access.may_read_all() {
                return Err("only a client that may read every stream may share memory".to_owned());
            }
            let security = broker.security();
            match security.limit(Traffic::Consumed, access.principal(), &id) {
                Some(_) => Err("a client with a quota for reading may not share memory".to_owned()),
                None => Ok(()),
            }
        })
    }

    /// Takes bytes on the wire from the client's quota, if it has one; returns how long the client
    /// has to wait then.
    pub fn throttle(&self, traffic: Traffic, client_id: &str, bytes: usize) -> Option<Duration> {
        let (security, principal) = (self.broker.security(), self.access.principal());
        security.throttle(traffic, principal, client_id, bytes)
    }

    /// Returns the client's login, where clients may log in.
    pub fn login(&self) -> Option<&Login> {
        self.login.as_ref()
    }

    /// Returns how long the session may last until the client has to log in again, if it has logged
    /// in with a token.
    pub fn session_lasts(&self) -> Option<Duration> {
        self.broker.security().session_lasts(self.login.as_ref()?)
    }

    /// Returns whether the client is authenticated, or need not be.
    pub fn is_known(&self) -> bool {
        let is_logged_in = |login: &Login| login.lock().principal().is_some();
        !self.needs_login() || self.login.as_ref().is_none_or(is_logged_in)
    }

    /// Returns whether the client has to log in, and no certificate stands for the login.
    fn needs_login(&self) -> bool {
        self.peer.log_in == LogIn::Must && self.certified.is_none()
    }

    /// Returns the client's login if the next message belongs to the login and has no request
    /// around it.
    pub fn bare_login(&self) -> Option<Login> {
        let is_bare = |login: &&Login| login.lock().takes_bare_message();
        self.login.as_ref().filter(is_bare).cloned()
    }

    /// Returns whether the connection is to be closed once the client knows the reason.
    pub fn is_refused(&self) -> bool {
        let is_failed = |login: &Login| login.lock().is_failed();
        self.login.as_ref().is_some_and(is_failed)
    }

    /// Accepts or refuses a request at this stage of the login. After a refusal the connection is
    /// to be closed.
    pub fn admit(&mut self, api: ApiKey) -> Result<(), ResponseError> {
        let Some(login) = &self.login else {
            return Ok(());
        };
        let may_ask = self.may_ask(api);
        let mut login = login.lock();
        if let Some(principal) = login.principal() {
            self.access.set_principal(principal);
        }
        if may_ask {
            return Ok(());
        }
        login.refuse();
        Err(ResponseError::IllegalSaslState)
    }

    /// Returns whether the client may send this kind of request at this stage of the login.
    pub fn may_ask(&self, api: ApiKey) -> bool {
        let Some(login) = &self.login else {
            return true;
        };
        let login = login.lock();
        // A client whose login failed cannot go on unauthenticated.
        login.admits(api) || !self.needs_login() && !login.is_failed()
    }

    /// Returns the other side of the connection.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns the host and the port where the client finds this broker.
    pub fn advertised(&self) -> (String, u16) {
        self.peer.advertised.clone()
    }

    /// Returns the stream of this name, including those that clients can only read.
    pub fn stream(&mut self, name: &str) -> Result<Stream, LogError> {
        if let Some(stream) = self.streams.get(name)
            && !stream.is_deleted()
        {
            return Ok(stream.clone());
        }
        let stream = self.broker.shown_stream(name)?;
        self.keep(stream.clone());
        Ok(stream)
    }

    /// Returns the stream of this id, including those that clients can only read.
    pub fn stream_by_uuid(&mut self, uuid: Uuid) -> Result<Stream, LogError> {
        if let Some(stream) = self.streams_by_uuid.get(&uuid)
            && !stream.is_deleted()
        {
            return Ok(stream.clone());
        }
        let stream = self.broker.shown_stream_by_uuid(uuid)?;
        self.keep(stream.clone());
        Ok(stream)
    }

    /// Returns the name of the stream of this id.
    pub fn stream_name(&self, id: StreamId) -> Option<String> {
        let stream = self.broker.log().stream_by_id(id).and_then(not_internal);
        Some(stream.ok()?.name().to_owned())
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
