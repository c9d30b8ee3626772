//! The client's side of SASL.

use std::fmt;

use bytes::Bytes;

use super::{
    BearerMessage, ClientFinal, ClientFirst, Hash, InvalidMessage, Iterations, Key, Mechanism,
    Nonce, PlainMessage, SaltedPassword, ScramExchange, ServerFinal, ServerFirst,
};

/// The client refuses fewer iterations, since an eavesdropper could then find the password.
const ITERATIONS_MIN: Iterations = Iterations(4096);
/// The client refuses more iterations, since a server could keep it busy. This many take some tenths of a second.
const ITERATIONS_MAX: Iterations = Iterations(1_000_000);

/// The client's message after the server has refused its token.
const END: &[u8] = b"\x01";

/// A login in progress. Its messages are the bytes of SaslAuthenticate requests and of their answers.
pub struct Client(State);

enum State {
    /// The client has sent its only message, and waits for the server's decision.
    Sent,
    /// The client has sent a token, and waits for the server's decision.
    Token,
    /// The server has refused the token, and the client has asked it to end the login.
    RefusedToken { why: String },
    /// The client has sent its name.
    First {
        hash: Hash,
        password: Box<str>,
        message: ClientFirst,
    },
    /// The client has proved that it has the password.
    Proved { signature: Key },
}

/// The next step after an answer of the server.
#[derive(Debug)]
pub enum Progress {
    /// The client must send these bytes, which are secret, and wait for another answer.
    Send(Client, Bytes),
    /// The client is logged in, and with SCRAM it knows that the server knows the user.
    Done,
}

/// The reason why a login fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The server's message is not valid SASL.
    #[error(transparent)]
    Invalid(#[from] InvalidMessage),
    /// The name or password is empty, or has a zero byte. PLAIN separates its parts by zero bytes, and SCRAM forbids them.
    #[error("the user's name and the password must not be empty or contain a zero byte")]
    Unfit,
    /// The mechanism takes a token, not a password.
    #[error("OAUTHBEARER takes a token instead of a user's name and password")]
    NoPassword,
    /// The token is empty, or has a character that tokens cannot have.
    #[error("a token has printable characters without spaces, and at least one")]
    Token,
    /// The server asks for too few or too many iterations.
    #[error(
        "the server wants the password hashed {0} times; {ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed"
    )]
    Iterations(Iterations),
    /// The server's nonce does not continue the client's.
    #[error("the server answers another client: its nonce does not continue this client's")]
    OtherNonce,
    /// The server refuses the client.
    #[error("the server refuses the user or the password: {0}")]
    Refused(String),
    /// The server refuses the token.
    #[error("the server refuses the token: {0}")]
    RefusedToken(String),
    /// The server could not prove that it knows the user.
    #[error("the server does not know the user: its signature is wrong")]
    WrongSignature,
}

impl Client {
    /// Begins a login. Send the returned bytes, which are secret. PLAIN ignores `nonce`.
    ///
    /// # Errors
    /// [`ClientError::Unfit`], or [`ClientError::NoPassword`] for OAUTHBEARER.
    pub fn start(
        mechanism: Mechanism,
        user: &str,
        password: &str,
        nonce: &Nonce,
    ) -> Result<(Client, Bytes), ClientError> {
        if [user, password]
            .iter()
            .any(|text| text.is_empty() || text.contains('\0'))
        {
            return Err(ClientError::Unfit);
        }
        match mechanism {
            Mechanism::Plain => {
                let message = PlainMessage {
                    authorization: "",
                    user,
                    password,
                };
                Ok((Client(State::Sent), message.to_bytes().into()))
            }
            Mechanism::Scram(hash) => {
                let message = ClientFirst::new(user, nonce);
                let bytes = Bytes::copy_from_slice(message.text().as_bytes());
                let state = State::First {
                    hash,
                    password: password.into(),
                    message,
                };
                Ok((Client(state), bytes))
            }
            Mechanism::OAuthBearer => Err(ClientError::NoPassword),
        }
    }

    /// Begins a login by OAUTHBEARER with a token. Send the returned bytes, which are secret.
    ///
    /// # Errors
    /// [`ClientError::Token`].
    pub fn start_with_token(token: &str) -> Result<(Client, Bytes), ClientError> {
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ClientError::Token);
        }
        let message = BearerMessage {
            authorization: "",
            token,
        };
        Ok((Client(State::Token), message.to_bytes().into()))
    }

    /// Processes the server's answer.
    ///
    /// # Errors
    /// If the answer is not valid SASL, or shows that the server is not the expected one.
    pub fn answer(self, bytes: &[u8]) -> Result<Progress, ClientError> {
        match self.0 {
            State::Sent => Ok(Progress::Done),
            State::Token if bytes.is_empty() => Ok(Progress::Done),
            // The server fails the login only after the client's next message (RFC 7628, section 3.2.3).
            State::Token => {
                let why = String::from_utf8_lossy(bytes).into_owned();
                let client = Client(State::RefusedToken { why });
                Ok(Progress::Send(client, Bytes::from_static(END)))
            }
            State::RefusedToken { why } => Err(ClientError::RefusedToken(why)),
            State::First {
                hash,
                password,
                message,
            } => prove(hash, &password, &message, &ServerFirst::parse(bytes)?),
            State::Proved { signature } => match ServerFinal::parse(bytes)? {
                ServerFinal::Signature(key) if key == signature => Ok(Progress::Done),
                ServerFinal::Signature(_) => Err(ClientError::WrongSignature),
                ServerFinal::Error(error) => Err(ClientError::Refused(error)),
            },
        }
    }
}

fn prove(
    hash: Hash,
    password: &str,
    client_first: &ClientFirst,
    server_first: &ServerFirst,
) -> Result<Progress, ClientError> {
    if !server_first.nonce.continues(&client_first.nonce) {
        return Err(ClientError::OtherNonce);
    }
    let iterations = server_first.iterations;
    if !(ITERATIONS_MIN..=ITERATIONS_MAX).contains(&iterations) {
        return Err(ClientError::Iterations(iterations));
    }
    let salted = SaltedPassword::new(hash, password, &server_first.salt, iterations);
    let mut client_final = ClientFinal::without_proof(client_first, server_first);
    let exchange = ScramExchange::new(client_first, server_first, &client_final);
    client_final.proof = salted.proof(&exchange);
    let signature = salted.server_signature(&exchange);
    let client = Client(State::Proved { signature });
    Ok(Progress::Send(client, client_final.text().into()))
}

/// Leaves out the password.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.0 {
            State::Sent => "Sent",
            State::Token => "Token",
            State::RefusedToken { .. } => "RefusedToken",
            State::First { .. } => "First",
            State::Proved { .. } => "Proved",
        };
        f.debug_tuple("Client").field(&state).finish()
    }
}
