//! The users that send requests, and the hosts that these come from.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

/// The prefix of all principals: there are users only.
const KIND: &str = "User:";
/// Stands for every user, or for every host.
const EVERY: &str = "*";
/// The longest name of a user, in bytes.
pub const NAME_BYTES_MAX: usize = 1024;

/// A user, in Kafka's words: a principal. Written `User:name`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Principal(Arc<str>);

impl Principal {
    /// Returns the user of this name; `None` if no user can have the name.
    ///
    /// ```
    /// use millstream_broker::security::Principal;
    /// assert_eq!(Principal::user("alice").unwrap().to_string(), "User:alice");
    /// assert_eq!(Principal::user("*"), None);
    /// ```
    pub fn user(name: &str) -> Option<Self> {
        (is_name(name) && name != EVERY).then(|| Principal(name.into()))
    }

    /// Returns the user of connections without authentication: `User:ANONYMOUS`.
    pub fn anonymous() -> Self {
        Principal("ANONYMOUS".into())
    }

    /// Returns, for an access rule, every user, `User:*`. No connection is of this user.
    pub fn everyone() -> Self {
        Principal(EVERY.into())
    }

    /// Returns the name, without `User:`.
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// Returns whether text is printable and short enough to be stored.
pub(super) fn is_name(name: &str) -> bool {
    let bytes = 1..=NAME_BYTES_MAX;
    bytes.contains(&name.len()) && !name.chars().any(char::is_control)
}

/// The error for text that is not a principal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a principal is written User:name, with at most {NAME_BYTES_MAX} bytes and no control characters"
)]
pub struct InvalidPrincipal;

impl FromStr for Principal {
    type Err = InvalidPrincipal;

    /// Accepts `User:*` too, as [`everyone`](Principal::everyone).
    fn from_str(text: &str) -> Result<Self, InvalidPrincipal> {
        let name = text.strip_prefix(KIND).filter(|name| is_name(name));
        name.map(|name| Principal(name.into()))
            .ok_or(InvalidPrincipal)
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{KIND}{}", self.0)
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string(), f)
    }
}

/// In an access rule: the origin of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// Every address, `*`.
    Any,
    /// This address.
    Address(IpAddr),
}

impl Host {
    /// Returns the host of an address. An IPv4 address is the same in its IPv6 form.
    pub fn of(address: IpAddr) -> Self {
        Host::Address(address.to_canonical())
    }

    /// Returns whether the rule covers requests from an address that [`of`](Self::of) returned.
    pub(super) fn includes(self, host: Host) -> bool {
        self == Host::Any || self == host
    }
}

/// The error for text that is not a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the host of an access rule is an IP address, or * for any")]
pub struct InvalidHost;

impl FromStr for Host {
    type Err = InvalidHost;

    fn from_str(text: &str) -> Result<Self, InvalidHost> {
        match text {
            EVERY => Ok(Host::Any),
            _ => text.parse().map(Host::of).map_err(|_| InvalidHost),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Any => f.write_str(EVERY),
            Host::Address(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn principals_round_trip_through_text() {
        for text in [
            "User:alice",
            "User:*",
            "User:CN=a,O=b",
            "User:a:b",
            "User:Dvořák",
        ] {
            let principal: Principal = text.parse().unwrap();
            assert_eq!(principal.to_string(), text);
            assert_eq!(format!("{principal:?}"), format!("{text:?}"));
        }
        let long = format!("User:{}", "a".repeat(NAME_BYTES_MAX + 1));
        for text in [
            "alice",
            "User:",
            "user:alice",
            "Group:a",
            "User:a\nb",
            "",
            &long,
        ] {
            assert_eq!(text.parse::<Principal>(), Err(InvalidPrincipal), "{text}");
        }
        assert_eq!(Principal::user(""), None);
    }

    #[test]
    fn a_host_is_an_address_or_a_star() {
        for (text, written) in [
            ("*", "*"),
            ("10.0.0.1", "10.0.0.1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("0:0::1", "::1"),
        ] {
            assert_eq!(text.parse::<Host>().unwrap().to_string(), written);
        }
        for text in ["", "example.com", "10.0.0.0/8", "10.0.0.1:9092", " *"] {
            assert_eq!(text.parse::<Host>(), Err(InvalidHost), "{text}");
        }
    }
}
