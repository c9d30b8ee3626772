//! The message of PLAIN (RFC 4616).

use std::fmt;

use super::{InvalidMessage, MESSAGE_BYTES_MAX};

/// A user's name and password, as the client sends them.
#[derive(Clone, PartialEq, Eq)]
pub struct PlainMessage<'a> {
    /// The user that the client wants to act as; empty for `user`.
    pub authorization: &'a str,
    /// The user's name.
    pub user: &'a str,
    /// Its password.
    pub password: &'a str,
}

impl fmt::Debug for PlainMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainMessage")
            .field("authorization", &self.authorization)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

impl<'a> PlainMessage<'a> {
    /// Parses the message. Any part may be empty.
    ///
    /// # Errors
    /// If it is too long, not UTF-8, or does not have three parts.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, InvalidMessage> {
        let invalid = |what| InvalidMessage {
            message: "PLAIN",
            what,
        };
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(invalid("it is too long"));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| invalid("it is not UTF-8"))?;
        let mut parts = text.split('\0');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(authorization), Some(user), Some(password), None) => Ok(PlainMessage {
                authorization,
                user,
                password,
            }),
            _ => Err(invalid(
                "three parts were expected, with a zero byte between them",
            )),
        }
    }

    /// Returns the bytes of the message. They are secret.
    pub fn to_bytes(&self) -> Vec<u8> {
        [self.authorization, self.user, self.password]
            .join("\0")
            .into_bytes()
    }
}
