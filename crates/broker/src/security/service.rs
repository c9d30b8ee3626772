//! The security service: its records in a ledger, logins, and the requests about users and access
//! rules.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{Clock, Credentials, Random, Timestamp};
use millstream_log::{Log, LogError};
use millstream_wire::messages::{
    SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest,
};
use millstream_wire::sasl::{
    BearerMessage, Hash, ITERATIONS_DEFAULT, Mechanism, NONCE_BYTES, Nonce,
};
use millstream_wire::{ResponseError, StrBytes};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::connection_pace::ConnectionPace;
use super::login_pace::{Attempt, LoginPace, WAIT_MAX};
use super::peer_lines::PeerLines;
use super::throttle::Throttle;
use super::token_check::{TokenCheck, TokenKeysError};
use crate::counters::Counter;
use crate::ledger::Ledger;
use crate::security::{
    AclSettings, Acls, AuditAction, AuditEvent, Authentication, ByteRate, Identity, LoginError,
    Operation, Principal, Record, RecordError, Resource, ResourceType, SALT_BYTES, SECRET_BYTES,
    Secret, SecurityConfig, Share, Store, Traffic, UserError, log_changes, principal_of,
    sasl_response,
};

/// The stream of users and access rules.
pub const LEDGER: &str = "__security";

/// The delay of the answer to a refused login: it slows down guesses of passwords.
const REFUSED_AFTER: Duration = Duration::from_millis(100);

/// The login of one connection.
pub type Login = Arc<Mutex<Authentication>>;

/// The reason for which the security service does not start.
#[derive(thiserror::Error)]
pub enum SecurityError {
    /// The log does not store the records, or does not return them.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log holds something other than users and rules.
    #[error("stream {LEDGER} holds other records than users, access rules and quotas: {0}")]
    Record(#[from] RecordError),
    /// A name or a password is out of bounds.
    #[error(transparent)]
    User(#[from] UserError),
    /// There are no keys to check tokens with.
    #[error(transparent)]
    Tokens(#[from] TokenKeysError),
    /// The system returns no random bytes.
    #[error("the operating system gives no random bytes: {0}")]
    Random(#[from] io::Error),
}

millstream_base::debug_as_display!(SecurityError);

/// Users, access rules, and the decisions by them.
pub struct SecurityService {
    /// Empty where clients need no login.
    mechanisms: Arc<[Mechanism]>,
    tokens: Option<Arc<TokenCheck>>,
    store: RwLock<Store>,
    /// Whether any operation is denied to any user.
    is_restricted: AtomicBool,
    /// Whether any user or client id has a quota.
    is_limited: AtomicBool,
    /// Whether any address has a quota.
    is_paced: AtomicBool,
    /// Grows with every change.
    version: AtomicU64,
    throttle: Throttle,
    connection_pace: ConnectionPace,
    /// Held during a change: changes are made one after another.
    changes: tokio::sync::Mutex<()>,
    ledger: Arc<Ledger>,
    /// The logins in progress at once: passwords are expensive to check.
    logins: Arc<Semaphore>,
    pace: Mutex<LoginPace>,
    peer_lines: PeerLines,
    refused_logins: Counter,
    denied: Counter,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
}

impl SecurityService {
    /// Starts the service from the records of the ledger.
    ///
    /// # Errors
    /// When the ledger cannot be read or written, or holds other records.
    pub fn open(
        log: &Log,
        config: &SecurityConfig,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<SecurityService, SecurityError> {
        let settings = AclSettings {
            super_users: config.super_users.clone(),
            ..AclSettings::new(config.authentication)
        };
        let ledger = Ledger::open(log, LEDGER)?;
        let records = ledger.read()?;
        let mut secret = [0; SECRET_BYTES];
        random.fill(&mut secret)?;
        let (store, first) = Store::restore(settings, records, Secret::from_random(secret))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let tokens = config.tokens.clone().filter(|_| config.authentication);
        let tokens = tokens.map(|tokens| TokenCheck::open(tokens, Arc::clone(&clock)));
        let tokens = tokens.transpose()?.map(Arc::new);
        let passwords = Mechanism::PASSWORDS
            .into_iter()
            .filter(|_| config.authentication);
        let mechanisms = passwords.chain(tokens.as_ref().map(|_| Mechanism::OAuthBearer));
        let service = SecurityService {
            mechanisms: mechanisms.collect(),
            tokens,
            is_restricted: AtomicBool::new(false),
            is_limited: AtomicBool::new(false),
            is_paced: AtomicBool::new(false),
            version: AtomicU64::new(0),
            throttle: Throttle::default(),
            connection_pace: ConnectionPace::default(),
            store: RwLock::new(store),
            changes: tokio::sync::Mutex::new(()),
            ledger: Arc::new(ledger),
            logins: Arc::new(Semaphore::new(cores)),
            pace: Mutex::default(),
            peer_lines: PeerLines::default(),
            refused_logins: Counter::default(),
            denied: Counter::default(),
            clock,
            random,
        };
        service.restrict();
        if let Some(first) = first {
            service.ledger.append([first], service.clock.now())?;
        }
        Ok(service)
    }

    fn restrict(&self) {
        let store = self.store.read();
        let is_restricted = !self.mechanisms.is_empty() || !store.acls().is_empty();
        self.is_restricted.store(is_restricted, Ordering::Release);
        let is_limited = store.quotas().limits_bytes();
        self.is_limited.store(is_limited, Ordering::Relaxed);
        let is_paced = !store.quotas().connection_rates().is_empty();
        self.is_paced.store(is_paced, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns the mechanisms of logins; empty where clients need no login.
    pub fn mechanisms(&self) -> &[Mechanism] {
        &self.mechanisms
    }

    /// Returns a number that changes with users, access rules and quotas.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the login of a new connection; `None` where clients need no login.
    pub fn login(&self) -> Option<Login> {
        let mechanisms = Arc::clone(&self.mechanisms);
        let has_to = !mechanisms.is_empty();
        has_to.then(|| {
            let login = Authentication::new(mechanisms).with_tokens(self.tokens.clone());
            Arc::new(Mutex::new(login))
        })
    }

    /// Returns the check of tokens, if clients may log in with them.
    pub fn tokens(&self) -> Option<&Arc<TokenCheck>> {
        self.tokens.as_ref()
    }

    /// Returns how long the session of a login by a token still lasts.
    pub fn session_lasts(&self, login: &Login) -> Option<Duration> {
        let ends_at = login.lock().session_ends_at()?;
        let ms = ends_at.0.saturating_sub(self.clock.now().0);
        Some(Duration::from_millis(u64::try_from(ms).unwrap_or(0)))
    }

    /// Returns whether any operation is denied to any user.
    pub fn is_restricted(&self) -> bool {
        self.is_restricted.load(Ordering::Acquire)
    }

    /// Returns whether a user may do an operation on a resource.
    pub fn permits(
        &self,
        principal: &Principal,
        from: SocketAddr,
        operation: Operation,
        resource: Resource<'_>,
    ) -> bool {
        self.rules_allow(|acls| acls.authorize(principal, from.ip(), operation, resource))
    }

    fn rules_allow(&self, ask: impl FnOnce(&Acls) -> bool) -> bool {
        !self.is_restricted() || ask(self.store.read().acls())
    }

    /// Returns whether there may be a resource of this type on which a user may do this operation.
    pub fn permits_any(
        &self,
        principal: &Principal,
        from: SocketAddr,
        operation: Operation,
        kind: ResourceType,
    ) -> bool {
        self.rules_allow(|acls| acls.authorize_any(principal, from.ip(), operation, kind))
    }

    /// Returns whether a user may do an operation on all resources of this type.
    pub fn permits_all(
        &self,
        principal: &Principal,
        from: SocketAddr,
        operation: Operation,
        kind: ResourceType,
    ) -> bool {
        self.rules_allow(|acls| acls.authorize_all(principal, from.ip(), operation, kind))
    }

    /// Takes bytes on the wire from the quotas of a client, if it has some; returns how long it has
    /// to wait then.
    pub fn throttle(
        &self,
        traffic: Traffic,
        principal: &Principal,
        client_id: &str,
        bytes: usize,
    ) -> Option<Duration> {
        let (share, rate) = self.limit(traffic, principal, client_id)?;
        let now = self.clock.monotonic();
        let wait = self.throttle.take(share, rate, bytes, now);
        (!wait.is_zero()).then_some(wait)
    }

    /// Returns the quota of a client, and the clients that share it; `None` if it has none.
    pub fn limit(
        &self,
        traffic: Traffic,
        principal: &Principal,
        client_id: &str,
    ) -> Option<(Share, ByteRate)> {
        if !self.is_limited() {
            return None;
        }
        let store = self.store.read();
        store.quotas().find(traffic, principal.name(), client_id)
    }

    /// Counts a connection from an address, if the address has a quota of connections.
    ///
    /// # Errors
    /// When the address is over its quota: returns for how long to hold the connection before
    /// closing it.
    pub fn admit_connection(&self, from: IpAddr) -> Result<(), Duration> {
        if !self.is_paced.load(Ordering::Relaxed) {
            return Ok(());
        }
        let rate = self.store.read().quotas().connection_rates().find(from);
        rate.map_or(Ok(()), |rate| {
            let now = self.clock.monotonic();
            self.connection_pace.admit(from, rate, now)
        })
    }

    /// Returns whether any user or client id has a quota.
    fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    /// Handles a message of SASL. Hashes passwords, so it may take milliseconds; after wrong ones
    /// the check waits.
    pub async fn message(
        self: &Arc<Self>,
        login: &Login,
        from: SocketAddr,
        message: Bytes,
    ) -> io::Result<Result<Bytes, LoginError>> {
        let mut bytes = [0; NONCE_BYTES];
        self.random.fill(&mut bytes)?;
        let nonce = Nonce::from_random(&bytes);
        let shows_unknown_key = login.lock().shows_unknown_key(&message);
        if let Some(tokens) = self.tokens.as_ref().filter(|_| shows_unknown_key) {
            tokens.renew_for_unknown().await;
        }
        let checks = login.lock().checks(&message);
        let attempt = checks.map(|user| self.pace.lock().attempt(&user, from.ip()));
        let Some(turn) = self.turn(attempt).await else {
            let mut login = login.lock();
            login.refuse();
            self.ended(&login, from, None);
            return Ok(Err(LoginError::TooManyFailed));
        };
        let (service, login) = (Arc::clone(self), Arc::clone(login));
        // A check that has begun goes on when the client disconnects: its attempt counts.
        let taken = tokio::task::spawn_blocking(move || {
            let mut login = login.lock();
            let users = RwLockReadGuard::map(service.store.read(), Store::users);
            let answer = login.message(users, &nonce, &message);
            service.ended(&login, from, attempt);
            drop(turn);
            (answer, login.is_failed())
        });
        let (answer, is_failed) = taken.await.map_err(io::Error::other)?;
        if is_failed {
            tokio::time::sleep(REFUSED_AFTER).await;
        }
        Ok(answer)
    }

    /// Waits until an attempt may be checked; `None` when that takes too long.
    async fn turn(&self, attempt: Option<Attempt>) -> Option<OwnedSemaphorePermit> {
        let until = self.clock.monotonic() + WAIT_MAX;
        loop {
            let turn = Arc::clone(&self.logins).acquire_owned().await;
            let turn = turn.expect("the semaphore is never closed");
            let Some(attempt) = attempt else {
                return Some(turn);
            };
            let now = self.clock.monotonic();
            let Err(free_at) = self.pace.lock().begin(attempt, now) else {
                return Some(turn);
            };
            drop(turn);
            if free_at > until {
                return None;
            }
            tokio::time::sleep(free_at.saturating_sub(now)).await;
        }
    }

    /// Counts and audits the outcome of a login, if it has ended.
    fn ended(&self, login: &Authentication, from: SocketAddr, attempt: Option<Attempt>) {
        let now = self.clock.monotonic();
        if login.is_failed() {
            self.refused_logins.add_one();
            if let Some(attempt) = attempt {
                self.pace.lock().failed(attempt, now);
            }
        } else if let (Some(attempt), Some(_)) = (attempt, login.principal()) {
            self.pace.lock().succeeded(attempt, now);
        }
        self.note(login, from);
    }

    /// Logs in by a client's certificate, which TLS has checked. Returns its user; warns if it names none.
    pub fn log_in_by(
        &self,
        certificate: &CertificateDer<'_>,
        from: SocketAddr,
    ) -> Option<Principal> {
        let principal = principal_of(certificate);
        match &principal {
            Some(principal) => self.audit(&AuditEvent {
                identity: Identity::Known(principal),
                from,
                action: AuditAction::LogIn(None),
                allowed: true,
            }),
            None => self.peer_lines.warn(
                from,
                format_args!("the client's certificate has no subject that can be a user, so it logs in no user"),
                self.clock.monotonic(),
            ),
        }
        principal
    }

    /// Audits the outcome of a login, if it has ended.
    fn note(&self, login: &Authentication, from: SocketAddr) {
        let identity = match login.principal() {
            Some(principal) => Identity::Known(principal),
            None if login.is_failed() => {
                Identity::Claimed(login.claimed_user().unwrap_or_default())
            }
            None => return,
        };
        self.audit(&AuditEvent {
            identity,
            from,
            action: AuditAction::LogIn(login.mechanism()),
            allowed: !login.is_failed(),
        });
    }

    /// Writes an audit line. Those that a client can cause without a login are bounded.
    pub fn audit(&self, event: &AuditEvent<'_>) {
        let is_known = || match event.identity {
            Identity::Known(principal) => *principal != Principal::anonymous(),
            Identity::Claimed(_) => false,
        };
        match event.allowed || is_known() {
            true => event.log(),
            false => self.peer_lines.audit(event, self.clock.monotonic()),
        }
    }

    /// Returns the bounded lines that clients can cause without a login.
    pub fn peer_lines(&self) -> &PeerLines {
        &self.peer_lines
    }

    /// Logs in without messages of SASL around the credentials; `None` if that is refused. Also
    /// returns the end of the token, if the credentials are a token.
    pub async fn log_in(
        self: &Arc<Self>,
        from: SocketAddr,
        credentials: &Credentials,
    ) -> Option<(Principal, Option<Timestamp>)> {
        let (mechanism, message) = match credentials {
            // The character NUL separates the parts of the message.
            Credentials::Password { user, password }
                if user.contains('\0') || password.contains('\0') =>
            {
                return None;
            }
            Credentials::Password { user, password } => {
                (Mechanism::Plain, format!("\0{user}\0{password}").into())
            }
            Credentials::Token(token) => {
                let message = BearerMessage {
                    authorization: "",
                    token,
                };
                (Mechanism::OAuthBearer, message.to_bytes())
            }
        };
        let login = self.login()?;
        let name = StrBytes::from_static_str(mechanism.name());
        let hello = SaslHandshakeRequest::default().with_mechanism(name);
        login.lock().handshake(1, &hello);
        let answered = self.message(&login, from, Bytes::from(message)).await;
        answered
            .inspect_err(|error| tracing::error!("logins fail: {error}"))
            .ok()?
            .ok()?;
        let login = login.lock();
        Some((login.principal()?.clone(), login.session_ends_at()))
    }

    /// Returns the time of the service's clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the number of refused logins.
    pub fn refused_logins(&self) -> u64 {
        self.refused_logins.get()
    }

    /// Counts an operation that was denied to a user.
    pub fn count_denied(&self) {
        self.denied.add_one();
    }

    /// Returns the number of denied operations.
    pub fn denied(&self) -> u64 {
        self.denied.get()
    }

    /// Returns the users, access rules and quotas.
    pub fn store(&self) -> RwLockReadGuard<'_, Store> {
        self.store.read()
    }

    /// Answers a message of a login.
    pub async fn authenticate(
        self: &Arc<Self>,
        login: &Login,
        from: SocketAddr,
        request: SaslAuthenticateRequest,
    ) -> SaslAuthenticateResponse {
        let answer = self.message(login, from, request.auth_bytes).await;
        let answer = answer.map(|answer| {
            let ends_at = login.lock().session_ends_at();
            let lifetime_ms = ends_at.map_or(0, |ends_at| ends_at.0 - self.clock.now().0);
            sasl_response(answer).with_session_lifetime_ms(lifetime_ms.max(0))
        });
        answer.unwrap_or_else(|error| {
            tracing::error!("logins fail: {error}");
            SaslAuthenticateResponse::default()
                .with_error_code(ResponseError::UnknownServerError.code())
        })
    }

    /// Makes a change: stores the records that `plan` returns, and applies them when they are
    /// durable.
    pub async fn change<A>(
        &self,
        identity: &Principal,
        from: SocketAddr,
        plan: impl FnOnce(&Store) -> (A, Vec<Record>),
    ) -> Result<A, LogError> {
        let _turn = self.changes.lock().await;
        let (response, records) = plan(&self.store.read());
        if records.is_empty() {
            return Ok(response);
        }
        let kept = records.iter().cloned();
        let appended = self.ledger.append(kept, self.clock.now())?;
        self.ledger.compact_if_due();
        self.ledger.lane().durable(appended).await?;
        log_changes(Identity::Known(identity), from, &records);
        let mut store = self.store.write();
        for record in records {
            store.apply(record).expect("it was just made");
        }
        drop(store);
        self.restrict();
        Ok(response)
    }
}

/// Sets a user's password in a log that no broker uses; takes milliseconds.
///
/// # Errors
/// When the name or the password is out of bounds, or the log does not store it.
pub fn set_password(
    log: &Log,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    user: &str,
    password: &str,
) -> Result<(), SecurityError> {
    let config = SecurityConfig::default();
    let service = SecurityService::open(log, &config, clock, Arc::clone(&random))?;
    let mut records = Vec::new();
    for hash in [Hash::Sha256, Hash::Sha512] {
        let mut salt = [0; SALT_BYTES];
        random.fill(&mut salt)?;
        let store = service.store.read();
        records.push(store.user_record(user, password, hash, ITERATIONS_DEFAULT, &salt)?);
    }
    let end = service.ledger.append(records, service.clock.now())?;
    Ok(service.ledger.lane().wait_durable(end)?)
}
