//! Credentials of an HTTP client: the HTTP server reads them, and the broker checks them.

use std::fmt;

/// The credentials that a request over HTTP carries.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// A name and a password: HTTP's scheme `Basic`, and SASL's PLAIN.
    Password {
        /// The user's name.
        user: String,
        /// The user's password.
        password: String,
    },
    /// A token: HTTP's scheme `Bearer`, and SASL's OAUTHBEARER.
    Token(String),
}

/// Hides passwords and tokens.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credentials::Password { user, .. } => write!(f, "Password({user:?})"),
            Credentials::Token(_) => f.write_str("Token"),
        }
    }
}
