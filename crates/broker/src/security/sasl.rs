//! The server's side of SASL: who is on the other side of a connection.

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

use crate::token_check::TokenCheck;

use super::principal::Principal;
use super::tokens::TokenError;
use super::users::{Claimed, Users};

/// From this version of SaslHandshake on, what follows it is SaslAuthenticate requests.
const VERSION_WITH_REQUESTS: i16 = 1;

/// The login of one connection.
///
/// 1. The client says how it wants to log in: [`handshake`](Self::handshake).
/// 2. It sends one message for PLAIN, two for SCRAM: [`authenticate`](Self::authenticate).
/// 3. It is known ([`principal`](Self::principal)), or it is refused ([`is_failed`](Self::is_failed)) and
///    the connection is to be closed when the answer is sent.
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

/// A login by a token, which lasts as long as that.
#[derive(Debug, Clone)]
struct Session {
    principal: Principal,
    ends_at: Timestamp,
}

#[derive(Debug)]
enum State {
    /// Nothing was said.
    Silent,
    /// The client has chosen how to log in.
    Chosen(Mechanism),
    /// It has said who it is, and was told what to prove it with.
    Challenged(Box<Challenge>),
    Done(Principal),
    Failed,
}

/// What a proof is checked against.
#[derive(Debug)]
struct Challenge {
    client_first: ClientFirst,
    server_first: ServerFirst,
    claimed: Claimed,
}

/// Why a client is not logged in, as Kafka's clients know it. None of it repeats what the client sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The request is not the next one of a login.
    #[error("a login begins with SaslHandshake, goes on with SaslAuthenticate, and is done once")]
    Order,
    /// The message is no SASL.
    #[error("Authentication failed: {0}")]
    Invalid(#[from] InvalidMessage),
    /// The client wants to act as somebody else.
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
    /// The token is not good.
    #[error("Authentication failed: the token is refused: {0}")]
    Token(#[from] TokenError),
    /// The client logs in again, as another user.
    #[error("Authentication failed: a connection that logs in again stays with its user")]
    OtherUser,
    /// The password was not checked, since too many were wrong before.
    #[error(
        "Authentication failed: too many logins of this user from this address have failed; try again in a minute"
    )]
    TooManyFailed,
}

impl LoginError {
    /// The code that a client is told.
    pub fn code(self) -> ResponseError {
        match self {
            LoginError::Order => ResponseError::IllegalSaslState,
            _ => ResponseError::SaslAuthenticationFailed,
        }
    }
}

impl Authentication {
    /// Of a new connection, by one of these mechanisms.
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

    /// The same, which takes tokens, too, if OAUTHBEARER is among the mechanisms.
    pub(crate) fn with_tokens(mut self, tokens: Option<Arc<TokenCheck>>) -> Self {
        self.tokens = tokens;
        self
    }

    /// When the client has to have logged in again, if it has logged in by a token: otherwise its connection is to be
    /// closed.
    pub fn session_ends_at(&self) -> Option<Timestamp> {
        Some(self.session.as_ref()?.ends_at)
    }

    /// Who the client is, once it is logged in.
    pub fn principal(&self) -> Option<&Principal> {
        match &self.state {
            State::Done(principal) => Some(principal),
            _ => None,
        }
    }

    /// Whether the connection is to be closed when what was answered is sent.
    pub fn is_failed(&self) -> bool {
        matches!(self.state, State::Failed)
    }

    /// The client goes on without having shown who it is.
    pub fn refuse(&mut self) {
        self.state = State::Failed;
    }

    /// How the client logs in, once it has said so.
    pub fn mechanism(&self) -> Option<Mechanism> {
        self.mechanism
    }

    /// Who the client says that it is, also if it is refused. Any text, of at most 16 KiB.
    pub fn claimed_user(&self) -> Option<&str> {
        self.claimed_user.as_deref()
    }

    /// Whether this request may come now: before a client is logged in, only what it needs for that.
    pub fn admits(&self, api: ApiKey) -> bool {
        use ApiKey::{ApiVersions, SaslAuthenticate, SaslHandshake};
        match &self.state {
            State::Done(_) => true,
            State::Failed => false,
            _ => matches!(api, ApiVersions | SaslHandshake | SaslAuthenticate),
        }
    }

    /// Whether the next frame is a message of SASL without a request around it, to be handed to
    /// [`message`](Self::message): so after the oldest version of SaslHandshake. It is answered by a bare
    /// message, too, or by closing the connection.
    pub fn takes_bare_message(&self) -> bool {
        self.takes_bare_messages && matches!(self.state, State::Chosen(_) | State::Challenged(_))
    }

    /// The client says how it wants to log in.
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
        // A client that logged in by a token may do so again with a newer one: KIP-368.
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

    /// The client goes on. See [`message`](Self::message).
    pub fn authenticate(
        &mut self,
        users: &Users,
        nonce: &Nonce,
        request: &SaslAuthenticateRequest,
    ) -> SaslAuthenticateResponse {
        response(self.message(users, nonce, &request.auth_bytes))
    }

    /// The user whose password or proof this message is, if [`message`](Self::message) would check it.
    pub fn checks(&self, message: &[u8]) -> Option<String> {
        match &self.state {
            State::Chosen(Mechanism::Plain) => {
                Some(PlainMessage::parse(message).ok()?.user.to_owned())
            }
            State::Challenged(challenge) => Some(challenge.client_first.user.clone()),
            _ => None,
        }
    }

    /// Whether this message shows a token that names a key which the server does not have.
    pub fn shows_unknown_key(&self, message: &[u8]) -> bool {
        match (&self.state, &self.tokens) {
            (State::Chosen(Mechanism::OAuthBearer), Some(tokens)) => BearerMessage::parse(message)
                .is_ok_and(|message| tokens.lacks_key_of(message.token)),
            _ => false,
        }
    }

    /// Takes a message and answers it. `nonce` is random, and a new one for every message.
    ///
    /// With PLAIN this hashes the password, which takes milliseconds; all else is fast.
    ///
    /// # Errors
    /// When the client is refused; then the login has failed.
    pub fn message(
        &mut self,
        users: &Users,
        nonce: &Nonce,
        message: &[u8],
    ) -> Result<Bytes, LoginError> {
        let (state, answer) = match std::mem::replace(&mut self.state, State::Failed) {
            State::Chosen(Mechanism::Plain) => self.check_password(users, message)?,
            State::Chosen(Mechanism::Scram(hash)) => self.challenge(users, hash, nonce, message)?,
            State::Chosen(Mechanism::OAuthBearer) => self.check_token(message)?,
            State::Challenged(challenge) => check_proof(*challenge, message)?,
            State::Silent | State::Done(_) | State::Failed => return Err(LoginError::Order),
        };
        self.state = state;
        Ok(answer)
    }

    fn check_password(
        &mut self,
        users: &Users,
        message: &[u8],
    ) -> Result<(State, Bytes), LoginError> {
        let message = PlainMessage::parse(message)?;
        self.claimed_user = Some(message.user.to_owned());
        if !message.authorization.is_empty() && message.authorization != message.user {
            return Err(LoginError::OtherAuthorization);
        }
        let has_password = users.has_password(message.user, message.password);
        let principal = Principal::user(message.user).filter(|_| has_password);
        let principal = principal.ok_or(LoginError::Password)?;
        Ok((State::Done(principal), Bytes::new()))
    }

    fn check_token(&mut self, message: &[u8]) -> Result<(State, Bytes), LoginError> {
        let message = BearerMessage::parse(message)?;
        // The mechanism is there only with it.
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

/// The answer to a message, as a response.
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
