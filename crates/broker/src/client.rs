//! What is known of who is on the other side of a connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::StreamId;
use millstream_log::{LogError, Stream};
use millstream_wire::{ApiKey, ResponseError, Uuid};

use tokio::sync::watch;

use crate::access::Access;
use crate::broker::Broker;
use crate::groups::{GroupName, MemberId};
use crate::listener::LogIn;
use crate::native::Upload;
use crate::pace::Pace;
use crate::peer::Peer;
use crate::push::Subscriptions;
use crate::security::service::Login;
use crate::security::{ByteRate, Principal, Traffic};
use crate::shares::service::Held;
use crate::throttle;
use crate::user_streams::not_internal;

/// Streams that a connection has used lately: looked up once.
const STREAMS_MAX: usize = 4096;

/// The state of one connection.
pub struct Client {
    peer: Peer,
    id: String,
    broker: Arc<Broker>,
    access: Access,
    /// Only where clients may log in.
    login: Option<Login>,
    /// Who it is by its certificate.
    certified: Option<Principal>,
    pace: Pace,
    ending: watch::Receiver<bool>,
    /// The object that it puts.
    pub(crate) upload: Option<Upload>,
    pub(crate) subscriptions: Subscriptions,
    /// The share sessions that it has begun, if it has.
    shares: Option<Held>,
    streams: HashMap<Arc<str>, Stream>,
    streams_by_uuid: HashMap<Uuid, Stream>,
}

impl Client {
    /// `ending` says when the broker ends.
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
            broker: Arc::clone(broker),
            upload: None,
            subscriptions: Subscriptions::default(),
            shares: None,
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

    /// What it may do.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Says when the broker ends: nobody is to wait for records then.
    pub fn ending(&self) -> watch::Receiver<bool> {
        self.ending.clone()
    }

    /// For how long it may say nothing, and be told nothing.
    pub fn idle_max(&self) -> Duration {
        self.broker.config().idle_max
    }

    /// How fast it takes what it reads.
    pub fn pace_mut(&mut self) -> &mut Pace {
        &mut self.pace
    }

    /// The most bytes of records that it gets at once. A chunk that is larger comes alone.
    pub fn answer_bytes_max(&self) -> usize {
        let pace = self.pace.bytes_max();
        let bytes_max = pace.min(self.broker.config().fetch_bytes_max);
        match self.limit(Traffic::Consumed) {
            Some(rate) => bytes_max.min(throttle::answer_bytes_max(rate)),
            None => bytes_max,
        }
    }

    /// Ends a share session with the connection, if it has not ended before.
    pub fn hold_share_session(&mut self, group: &GroupName, member: &MemberId, number: u64) {
        let shares = self.broker.shares();
        let held = self
            .shares
            .get_or_insert_with(|| Held::new(Arc::clone(shares)));
        held.add(group.clone(), member.clone(), number);
    }

    /// Ends its share sessions: what its members hold is available to others.
    pub fn end_share_sessions(&mut self) {
        self.shares = None;
    }

    /// Its quota for what goes this way, if it has one.
    pub fn limit(&self, traffic: Traffic) -> Option<ByteRate> {
        let (security, principal) = (self.broker.security(), self.access.principal());
        let limit = security.limit(traffic, principal, &self.id);
        limit.map(|(_, rate)| rate)
    }

    /// Says whether it may share the log's memory, also later: whoever has that mapped can read every stream, and
    /// nobody counts what it reads.
    pub fn sharing(&self) -> Box<dyn Fn() -> Result<(), String> + Send> {
        let (broker, access, id) = (
            Arc::clone(&self.broker),
            self.access.clone(),
            self.id.clone(),
        );
        Box::new(move || {
            if !access.may_read_all() {
                return Err("only who may read every stream may share memory".to_owned());
            }
            let security = broker.security();
            match security.limit(Traffic::Consumed, access.principal(), &id) {
                Some(_) => Err("who has a quota for reading does not share memory".to_owned()),
                None => Ok(()),
            }
        })
    }

    /// Takes bytes that go over the wire from its quota, if it has one; for how long it is to wait then.
    pub fn throttle(&self, traffic: Traffic, client_id: &str, bytes: usize) -> Option<Duration> {
        let (security, principal) = (self.broker.security(), self.access.principal());
        security.throttle(traffic, principal, client_id, bytes)
    }

    /// Its login, where clients may log in.
    pub fn login(&self) -> Option<&Login> {
        self.login.as_ref()
    }

    /// How long it may go on before it has to log in again, if it has logged in by a token.
    pub fn session_lasts(&self) -> Option<Duration> {
        self.broker.security().session_lasts(self.login.as_ref()?)
    }

    /// Whether it has shown who it is, or need not.
    pub fn is_known(&self) -> bool {
        let is_logged_in = |login: &Login| login.lock().principal().is_some();
        !self.needs_login() || self.login.as_ref().is_none_or(is_logged_in)
    }

    /// Whether it has to log in, and no certificate stands for the login.
    fn needs_login(&self) -> bool {
        self.peer.log_in == LogIn::Must && self.certified.is_none()
    }

    /// Its login, if what comes next is a message of that without a request around it.
    pub fn bare_login(&self) -> Option<Login> {
        let is_bare = |login: &&Login| login.lock().takes_bare_message();
        self.login.as_ref().filter(is_bare).cloned()
    }

    /// Whether its connection is to be closed when it is told why.
    pub fn is_refused(&self) -> bool {
        let is_failed = |login: &Login| login.lock().is_failed();
        self.login.as_ref().is_some_and(is_failed)
    }

    /// Whether this request may come now. If not, its connection is to be closed.
    pub fn admit(&mut self, api: ApiKey) -> Result<(), ResponseError> {
        let needs_login = self.needs_login();
        let Some(login) = &self.login else {
            return Ok(());
        };
        let mut login = login.lock();
        if let Some(principal) = login.principal() {
            self.access.set_principal(principal);
        }
        // A client whose login has failed does not go on without one.
        if login.admits(api) || !needs_login && !login.is_failed() {
            return Ok(());
        }
        login.refuse();
        Err(ResponseError::IllegalSaslState)
    }

    /// The other side of the connection.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The host and the port where it finds this broker.
    pub fn advertised(&self) -> (String, u16) {
        self.peer.advertised.clone()
    }

    /// The stream of this name, also where clients can only read it.
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

    /// What the stream of this id is called.
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
