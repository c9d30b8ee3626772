//! The message of OAUTHBEARER (RFC 7628, section 3.1), as Kafka's clients send it.

use std::fmt;

use super::{InvalidMessage, MESSAGE_BYTES_MAX};

/// The byte behind the header, and behind each pair of a key and a value.
const SEPARATOR: char = '\x01';

/// A token, as the client sends it.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerMessage<'a> {
    /// The user that the client wants to act as; empty for the user of the token.
    pub authorization: &'a str,
    /// The token.
    pub token: &'a str,
}

/// Leaves out the token.
impl fmt::Debug for BearerMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BearerMessage")
            .field("authorization", &self.authorization)
            .finish_non_exhaustive()
    }
}

impl<'a> BearerMessage<'a> {
    /// Parses the message, and skips extensions.
    ///
    /// # Errors
    /// If it is too long, or does not follow RFC 7628.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, InvalidMessage> {
        let invalid = |what| InvalidMessage {
            message: "OAUTHBEARER",
            what,
        };
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(invalid("it is too long"));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| invalid("it is not UTF-8"))?;
        let header = text.strip_prefix("n,").or(text.strip_prefix("y,"));
        let header = header.ok_or(invalid("it must begin with n or y"))?;
        let (authorization, rest) = header
            .split_once(',')
            .ok_or(invalid("the second comma is missing"))?;
        let authorization = match authorization {
            "" => "",
            named => named
                .strip_prefix("a=")
                .filter(|name| !name.contains('='))
                .ok_or(invalid("the authorization id cannot be read"))?,
        };
        let pairs = rest
            .strip_prefix(SEPARATOR)
            .and_then(|rest| rest.strip_suffix("\x01\x01"))
            .ok_or(invalid("it must end with two bytes of value 1"))?;
        let mut tokens = pairs
            .split(SEPARATOR)
            .filter_map(|pair| pair.strip_prefix("auth="));
        let (Some(value), None) = (tokens.next(), tokens.next()) else {
            return Err(invalid("there must be one pair with the key auth"));
        };
        let (scheme, token) = value
            .split_once(' ')
            .ok_or(invalid("the token is missing"))?;
        match scheme.eq_ignore_ascii_case("bearer") {
            true => Ok(BearerMessage {
                authorization,
                token: token.trim(),
            }),
            false => Err(invalid("the token is not a bearer token")),
        }
    }

    /// Returns the bytes of the message. They are secret.
    pub fn to_bytes(&self) -> Vec<u8> {
        let header = match self.authorization {
            "" => "n,,".to_owned(),
            name => format!("n,a={name},"),
        };
        format!("{header}\x01auth=Bearer {}\x01\x01", self.token).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_bearer_messages_of_clients_are_parsed() {
        for (bytes, authorization) in [
            (&b"n,,\x01auth=Bearer a.b.c\x01\x01"[..], ""),
            (b"n,a=alice,\x01auth=Bearer a.b.c\x01\x01", "alice"),
            (
                b"n,,\x01host=h\x01port=1\x01auth=bearer a.b.c\x01x=y\x01\x01",
                "",
            ),
        ] {
            let token = "a.b.c";
            let expected = BearerMessage {
                authorization,
                token,
            };
            assert_eq!(BearerMessage::parse(bytes), Ok(expected.clone()));
            let written = expected.to_bytes();
            assert_eq!(BearerMessage::parse(&written), Ok(expected.clone()));
            assert!(!format!("{expected:?}").contains(token));
        }
        for wrong in [
            &b""[..],
            b"n,,",
            b"p=x,,\x01auth=Bearer a\x01\x01",
            b"n,,\x01\x01",
            b"n,,\x01auth=Bearer a\x01",
            b"n,,\x01auth=Basic a\x01\x01",
            b"n,,\x01auth=Bearer a\x01auth=Bearer b\x01\x01",
            b"n,,\x01auth=Bearer\x01\x01",
            b"n,,\x01auth=Bearer \xff\x01\x01",
        ] {
            assert!(BearerMessage::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
