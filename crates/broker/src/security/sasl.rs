//! The server's side of SASL: authenticates the client of a connection.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use millstream_base::Timestamp;
use millstream_wire::messages::{
    SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse,
};
use millstream_wire::sasl::{
    BearerMessage, ClientFinal, ClientFirst, Hash, InvalidMessage, Mechanism, Nonce, PlainMessage,
    ScramExchange, ServerFinal, ServerFirst,
};
use millstream_wire::{ApiKey, ResponseError, StrBytes};

use super::token_check::TokenCheck;

use super::principal::Principal;
use super::tokens::TokenError;
use super::users::{Claimed, Users};

/// From this version of SaslHandshake on, SaslAuthenticate requests follow it.
const VERSION_WITH_REQUESTS: i16 = 1;

/// The login of one connection.
///
/// 1. The client chooses a mechanism: [`handshake`](Self::handshake).
/// 2. It sends one message for PLAIN, two for SCRAM: [`authenticate`](Self::authenticate).
/// 3. It is authenticated ([`principal`](Self::principal)), or it is refused
///    ([`is_failed`](Self::is_failed)) and the connection is to be closed when the answer is sent.
///
/// ```
/// use millstream_broker::security::{Authentication, Secret, Users};
/// use millstream_wire::messages::{SaslAuthenticateRequest, SaslHandshakeRequest};
/// use millstream_wire::sasl::{Mechanism, Nonce};
///
/// let users = Users::new(Secret::from_random([7; 32]));
/// let mut login = Authentication::new(Mechanism::PASSWORDS.into());
/// let hello = SaslHandshakeRequest::default().with_mechanism("PLAIN".into());
/// assert_eq!(login.handshake(1, &hello).error_code, 0);
///
/// let password = SaslAuthenticateRequest::default().with_auth_bytes("\0alice\0secret".into());
/// let answer = login.authenticate(&users, &Nonce::from_random(&[1; 18]), &password);
/// assert_eq!(
///     answer.error_message.as_deref(),
///     Some("Authentication failed: Invalid username or password")
/// );
/// assert!(login.is_failed());
/// ```
#[derive(Debug)]
pub struct Authentication {
    mechanisms: Arc<[Mechanism]>,
    state: State,
    /// See [`mechanism`](Self::mechanism).
    mechanism: Option<Mechanism>,
    /// See [`claimed_user`](Self::claimed_user).
    claimed_user: Option<String>,
    takes_bare_messages: bool,
    tokens: Option<Arc<TokenCheck>>,
    session: Option<Session>,
}

/// A login by a token, which lasts until the token ends.
#[derive(Debug, Clone)]
struct Session {
    principal: Principal,
    ends_at: Timestamp,
}

#[derive(Debug)]
enum State {
    /// The client has sent nothing yet.
    Silent,
    /// The client has chosen a mechanism.
    Chosen(Mechanism),
    /// The client has sent its name, and got the challenge.
    Challenged(Box<Challenge>),
    Done(Principal),
    Failed,
}

/// The data that a proof is checked against.
#[derive(Debug)]
struct Challenge {
    client_first: ClientFirst,
    server_first: ServerFirst,
    claimed: Claimed,
}

/// The reason for which a client is not logged in, as Kafka's clients know it. No message repeats
/// the client's input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The request is not the next one of a login.
    #[error("a login begins with SaslHandshake, goes on with SaslAuthenticate, and is done once")]
    Order,
    /// The message is not SASL.
    #[error("Authentication failed: {0}")]
    Invalid(#[from] InvalidMessage),
    /// The client wants to act as another user.
    #[error(
        "Authentication failed: Client requested an authorization id that is different from username"
    )]
    OtherAuthorization,
    /// The user is unknown, or the password wrong.
    #[error("Authentication failed: Invalid username or password")]
    Password,
    /// The user is unknown, or the proof wrong.
    #[error(
        "Authentication failed during authentication due to invalid credentials with SASL mechanism {0}"
    )]
    Proof(Mechanism),
    /// The token is not valid.
    #[error("Authentication failed: the token is refused: {0}")]
    Token(#[from] TokenError),
    /// The client logs in again, as another user.
    #[error("Authentication failed: a connection that logs in again stays with its user")]
    OtherUser,
    /// The password was not checked, because there were too many wrong ones before.
    #[error(
        "Authentication failed: too many logins of this user from this address have failed; try again in a minute"
    )]
    TooManyFailed,
}

impl LoginError {
    /// Returns the error code for the client.
    pub fn code(self) -> ResponseError {
        match self {
            LoginError::Order => ResponseError::IllegalSaslState,
            _ => ResponseError::SaslAuthenticationFailed,
        }
    }
}

impl Authentication {
    /// Returns the login of a new connection, by one of these mechanisms.
    pub fn new(mechanisms: Arc<[Mechanism]>) -> Self {
        Authentication {
            mechanisms,
            state: State::Silent,
            mechanism: None,
            claimed_user: None,
            takes_bare_messages: false,
            tokens: None,
            session: None,
        }
    }

    /// Accepts tokens, too, if OAUTHBEARER is among the mechanisms.
    pub(crate) fn with_tokens(mut self, tokens: Option<Arc<TokenCheck>>) -> Self {
        self.tokens = tokens;
        self
    }

    /// Returns the time by which the client has to log in again, if it has logged in with a token:
    /// otherwise its connection is to be closed.
    pub fn session_ends_at(&self) -> Option<Timestamp> {
        Some(self.session.as_ref()?.ends_at)
    }

    /// Returns the client's user, once it is logged in.
    pub fn principal(&self) -> Option<&Principal> {
        match &self.state {
            State::Done(principal) => Some(principal),
            _ => None,
        }
    }

    /// Returns whether the connection is to be closed after the pending answer.
    pub fn is_failed(&self) -> bool {
        matches!(self.state, State::Failed)
    }

    /// Fails the login of a client that goes on unauthenticated.
    pub fn refuse(&mut self) {
        self.state = State::Failed;
    }

    /// Returns the mechanism, once the client has chosen it.
    pub fn mechanism(&self) -> Option<Mechanism> {
        self.mechanism
    }

    /// Returns the user name that the client claims, also after a refusal. It is any text, of at
    /// most 16 KiB.
    pub fn claimed_user(&self) -> Option<&str> {
        self.claimed_user.as_deref()
    }

    /// Returns whether this request may come now: before the login, only those that the login
    /// needs.
    pub fn admits(&self, api: ApiKey) -> bool {
        use ApiKey::{ApiVersions, SaslAuthenticate, SaslHandshake};
        match &self.state {
            State::Done(_) => true,
            State::Failed => false,
            _ => matches!(api, ApiVersions | SaslHandshake | SaslAuthenticate),
        }
    }

    /// Returns whether the next frame is a message of SASL without a request around it, to be
    /// handed to [`message`](Self::message), as it is after the oldest version of SaslHandshake.
    /// The answer is a bare message, too, or the end of the connection.
    pub fn takes_bare_message(&self) -> bool {
        self.takes_bare_messages && matches!(self.state, State::Chosen(_) | State::Challenged(_))
    }

    /// Handles the client's choice of a mechanism.
    pub fn handshake(
        &mut self,
        version: i16,
        request: &SaslHandshakeRequest,
    ) -> SaslHandshakeResponse {
        let names = self
            .mechanisms
            .iter()
            .map(|mechanism| StrBytes::from_static_str(mechanism.name()));
        let response = SaslHandshakeResponse::default().with_mechanisms(names.collect());
        // A client with a token login may log in again with a newer token: KIP-368.
        let may_begin = match &self.state {
            State::Silent => true,
            State::Done(_) => self.session.is_some() && version >= VERSION_WITH_REQUESTS,
            _ => false,
        };
        if !may_begin {
            self.state = State::Failed;
            return response.with_error_code(ResponseError::IllegalSaslState.code());
        }
        let mechanism = request.mechanism.parse().ok();
        let Some(mechanism) = mechanism.filter(|known| self.mechanisms.contains(known)) else {
            self.state = State::Failed;
            return response.with_error_code(ResponseError::UnsupportedSaslMechanism.code());
        };
        if self.session.is_some() && mechanism != Mechanism::OAuthBearer {
            self.state = State::Failed;
            return response.with_error_code(ResponseError::IllegalSaslState.code());
        }
        self.state = State::Chosen(mechanism);
        self.mechanism = Some(mechanism);
        self.takes_bare_messages = version < VERSION_WITH_REQUESTS;
        response
    }

    /// Handles the next step of the login. See [`message`](Self::message).
    pub fn authenticate(
        &mut self,
        users: &Users,
        nonce: &Nonce,
        request: &SaslAuthenticateRequest,
    ) -> SaslAuthenticateResponse {
        response(self.message(users, nonce, &request.auth_bytes))
    }

    /// Returns the user whose password or proof this message carries, if [`message`](Self::message)
    /// would check it.
    pub fn checks(&self, message: &[u8]) -> Option<String> {
        match &self.state {
            State::Chosen(Mechanism::Plain) => {
                Some(PlainMessage::parse(message).ok()?.user.to_owned())
            }
            State::Challenged(challenge) => Some(challenge.client_first.user.clone()),
            _ => None,
        }
    }

    /// Returns whether this message carries a token that names a key which the server does not
    /// have.
    pub fn shows_unknown_key(&self, message: &[u8]) -> bool {
        match (&self.state, &self.tokens) {
            (State::Chosen(Mechanism::OAuthBearer), Some(tokens)) => BearerMessage::parse(message)
                .is_ok_and(|message| tokens.lacks_key_of(message.token)),
            _ => false,
        }
    }

    /// Handles a message and returns the answer. `nonce` is random, and a new one for every
    /// message.
    ///
    /// With PLAIN this hashes the password, which takes milliseconds; all else is fast. `users` may be a lock: it is
    /// dropped before that.
    ///
    /// # Errors
    /// When the client is refused; then the login has failed.
    pub fn message(
        &mut self,
        users: impl Deref<Target = Users>,
        nonce: &Nonce,
        message: &[u8],
    ) -> Result<Bytes, LoginError> {
        let (state, answer) = match std::mem::replace(&mut self.state, State::Failed) {
            State::Chosen(Mechanism::Plain) => self.check_password(users, message)?,
            State::Chosen(Mechanism::Scram(hash)) => {
                self.challenge(&users, hash, nonce, message)?
            }
            State::Chosen(Mechanism::OAuthBearer) => self.check_token(message)?,
            State::Challenged(challenge) => check_proof(*challenge, message)?,
            State::Silent | State::Done(_) | State::Failed => return Err(LoginError::Order),
        };
        self.state = state;
        Ok(answer)
    }

    fn check_password(
        &mut self,
        users: impl Deref<Target = Users>,
        message: &[u8],
    ) -> Result<(State, Bytes), LoginError> {
        let message = PlainMessage::parse(message)?;
        self.claimed_user = Some(message.user.to_owned());
        if !message.authorization.is_empty() && message.authorization != message.user {
            return Err(LoginError::OtherAuthorization);
        }
        let claimed = users.claimed_password(message.user);
        // A change of users waits for this lock.
        drop(users);
        let has_password = claimed.is(message.password);
        let principal = Principal::user(message.user).filter(|_| has_password);
        let principal = principal.ok_or(LoginError::Password)?;
        Ok((State::Done(principal), Bytes::new()))
    }

    fn check_token(&mut self, message: &[u8]) -> Result<(State, Bytes), LoginError> {
        let message = BearerMessage::parse(message)?;
        // The mechanism is offered only where tokens are accepted.
        let tokens = self.tokens.as_ref().ok_or(LoginError::Order)?;
        let verified = tokens.check(message.token)?;
        let user = verified.principal.name();
        self.claimed_user = Some(user.to_owned());
        if !message.authorization.is_empty() && message.authorization != user {
            return Err(LoginError::OtherAuthorization);
        }
        let before = self.session.as_ref();
        if before.is_some_and(|session| session.principal != verified.principal) {
            return Err(LoginError::OtherUser);
        }
        self.session = Some(Session {
            principal: verified.principal.clone(),
            ends_at: verified.ends_at,
        });
        Ok((State::Done(verified.principal), Bytes::new()))
    }

    fn challenge(
        &mut self,
        users: &Users,
        hash: Hash,
        nonce: &Nonce,
        message: &[u8],
    ) -> Result<(State, Bytes), LoginError> {
        let client_first = ClientFirst::parse(message)?;
        let user = &client_first.user;
        self.claimed_user = Some(user.clone());
        if client_first
            .authorization
            .as_ref()
            .is_some_and(|wanted| wanted != user)
        {
            return Err(LoginError::OtherAuthorization);
        }
        let claimed = users.claimed(user, hash);
        let credential = &claimed.credential;
        let nonce = client_first.nonce.joined(nonce);
        let server_first = ServerFirst::new(nonce, credential.salt(), credential.iterations());
        let answer = Bytes::copy_from_slice(server_first.text().as_bytes());
        let challenge = Challenge {
            client_first,
            server_first,
            claimed,
        };
        Ok((State::Challenged(Box::new(challenge)), answer))
    }
}

/// Returns the answer to a message, as a response.
pub fn response(answer: Result<Bytes, LoginError>) -> SaslAuthenticateResponse {
    match answer {
        Ok(bytes) => SaslAuthenticateResponse::default()
            .with_error_message(None)
            .with_auth_bytes(bytes),
        Err(error) => SaslAuthenticateResponse::default()
            .with_error_code(error.code().code())
            .with_error_message(Some(StrBytes::from_string(error.to_string()))),
    }
}

fn check_proof(challenge: Challenge, message: &[u8]) -> Result<(State, Bytes), LoginError> {
    let Challenge {
        client_first,
        server_first,
        claimed: Claimed { credential, exists },
    } = challenge;
    let client_final = ClientFinal::parse(message)?;
    let exchange = ScramExchange::new(&client_first, &server_first, &client_final);
    let is_proved = credential.is_proved_by(&client_final.proof, &exchange)
        && client_final.nonce == server_first.nonce
        && client_final.repeats_header_of(&client_first);
    let principal = Principal::user(&client_first.user).filter(|_| is_proved && exists);
    let mechanism = Mechanism::Scram(credential.hash());
    let principal = principal.ok_or(LoginError::Proof(mechanism))?;
    let answer = ServerFinal::Signature(credential.signature(&exchange)).text();
    Ok((State::Done(principal), answer.into()))
}
