//! SASL: the authentication of a connection's client. No I/O, no randomness of its own.
//!
//! The mechanisms are PLAIN (RFC 4616), SCRAM with SHA-256 and SHA-512 (RFC 5802 and 7677), without
//! channel binding, and OAUTHBEARER (RFC 7628). This module has their messages, the arithmetic of SCRAM, and the client's
//! side ([`Client`]); the broker stores users and the server's state.
//!
//! As in Kafka, names and passwords stay as they are, in UTF-8, without the normalization (SASLprep) of
//! RFC 5802. With it, Kafka's clients could not log in.
//!
//! ```
//! use millstream_wire::sasl::{
//!     Client, ClientFinal, ClientFirst, Credential, Hash, Iterations, Mechanism, Nonce, Progress,
//!     ScramExchange, ServerFinal, ServerFirst,
//! };
//!
//! // The server knows this of the user.
//! let credential = Credential::new(Hash::Sha256, "secret", b"random salt", Iterations(4096));
//!
//! let mechanism = Mechanism::Scram(Hash::Sha256);
//! let (client, first) = Client::start(mechanism, "alice", "secret", &Nonce::from_random(&[1; 18]))?;
//!
//! // The server answers with its half of the nonce, and the parameters of the password hash.
//! let client_first = ClientFirst::parse(&first)?;
//! let nonce = client_first.nonce.joined(&Nonce::from_random(&[2; 18]));
//! let server_first = ServerFirst::new(nonce, credential.salt(), credential.iterations());
//! let Progress::Send(client, proof) = client.answer(server_first.text().as_bytes())? else {
//!     panic!("the client proves that it has the password");
//! };
//!
//! // The server believes it, and proves that it knows the user.
//! let client_final = ClientFinal::parse(&proof)?;
//! let exchange = ScramExchange::new(&client_first, &server_first, &client_final);
//! assert!(credential.is_proved_by(&client_final.proof, &exchange));
//! let server_final = ServerFinal::Signature(credential.signature(&exchange));
//! assert!(matches!(client.answer(server_final.text().as_bytes())?, Progress::Done));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bearer;
mod client;
mod hash;
mod plain;
mod scram;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

pub use self::bearer::BearerMessage;
pub use self::client::{Client, ClientError, Progress};
pub use self::hash::{Credential, Hash, ITERATIONS_DEFAULT, Iterations, Key, SaltedPassword};
pub use self::plain::PlainMessage;
pub use self::scram::{
    ClientFinal, ClientFirst, NONCE_BYTES, Nonce, ScramExchange, ServerFinal, ServerFirst,
};

/// The longest SASL message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// The mechanism by which a client authenticates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mechanism {
    /// Sends name and password as they are; for encrypted connections.
    Plain,
    /// Proves that it has the password, without sending it.
    Scram(Hash),
    /// Sends a token that names the user and has an issuer's signature; for encrypted connections.
    OAuthBearer,
}

impl Mechanism {
    /// The mechanisms with a password, the best last.
    pub const PASSWORDS: [Mechanism; 3] = [
        Mechanism::Plain,
        Mechanism::Scram(Hash::Sha256),
        Mechanism::Scram(Hash::Sha512),
    ];

    /// Returns the mechanism's name in SASL.
    pub const fn name(self) -> &'static str {
        match self {
            Mechanism::Plain => "PLAIN",
            Mechanism::Scram(Hash::Sha256) => "SCRAM-SHA-256",
            Mechanism::Scram(Hash::Sha512) => "SCRAM-SHA-512",
            Mechanism::OAuthBearer => "OAUTHBEARER",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Mechanism {
    type Err = UnknownMechanism;

    fn from_str(name: &str) -> Result<Self, UnknownMechanism> {
        let mut all = Mechanism::PASSWORDS
            .into_iter()
            .chain([Mechanism::OAuthBearer]);
        all.find(|mechanism| mechanism.name() == name)
            .ok_or(UnknownMechanism)
    }
}

/// The error of an unknown name of a mechanism.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the SASL mechanism must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER")]
pub struct UnknownMechanism;

/// The reason why bytes are not the expected message. It does not repeat them, since they may hold a
/// password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the SASL message {message} is refused: {what}")]
pub struct InvalidMessage {
    /// The name of the expected message.
    pub message: &'static str,
    /// The fault.
    pub what: &'static str,
}
