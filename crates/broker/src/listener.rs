//! Listeners: the addresses that a broker serves, and the protocol that each requires of its
//! clients.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// A listener of a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerConfig {
    /// The address; port 0 picks a free one.
    pub address: SocketAddr,
    /// The host and the port that the broker tells clients to connect to; port 0 is the listener's
    /// own. Without it, clients get the address that they connected to.
    pub advertised: Option<(String, u16)>,
    /// The listener's protocol. Without it, connections are encrypted if the broker has a
    /// certificate, and clients log in if
    /// [`SecurityConfig::authentication`](crate::SecurityConfig::authentication) requires it.
    pub protocol: Option<Protocol>,
}

impl ListenerConfig {
    /// Returns a listener on `address` with the broker's own protocol.
    pub fn new(address: SocketAddr) -> ListenerConfig {
        ListenerConfig {
            address,
            advertised: None,
            protocol: None,
        }
    }
}

/// Whether the clients of a listener log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogIn {
    /// They cannot.
    No,
    /// They may. Without a login, a client is an anonymous user.
    May,
    /// The listener refuses requests before the login.
    Must,
}

/// A listener's requirements for its clients: Kafka's security protocols.
///
/// ```
/// use millstream_broker::Protocol;
///
/// let protocol: Protocol = "sasl_ssl".parse().unwrap();
/// assert!(protocol.tls && protocol.authentication);
/// assert_eq!(protocol.to_string(), "SASL_SSL");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol {
    /// Connections are encrypted.
    pub tls: bool,
    /// Clients log in: by SASL, or with a certificate if TLS asks for one.
    pub authentication: bool,
}

impl Protocol {
    const ALL: [Protocol; 4] = [
        Protocol::new(false, false),
        Protocol::new(true, false),
        Protocol::new(false, true),
        Protocol::new(true, true),
    ];

    const fn new(tls: bool, authentication: bool) -> Protocol {
        Protocol {
            tls,
            authentication,
        }
    }

    /// Returns Kafka's name of the protocol.
    pub fn name(self) -> &'static str {
        match (self.authentication, self.tls) {
            (false, false) => "PLAINTEXT",
            (false, true) => "SSL",
            (true, false) => "SASL_PLAINTEXT",
            (true, true) => "SASL_SSL",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Protocol {
    type Err = String;

    /// Parses Kafka's names, in upper or lower case.
    fn from_str(text: &str) -> Result<Protocol, String> {
        let mut all = Protocol::ALL.into_iter();
        let found = all.find(|protocol| protocol.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| {
            format!(
                "{text:?} is no protocol: there are PLAINTEXT, SSL, SASL_PLAINTEXT and SASL_SSL"
            )
        })
    }
}
