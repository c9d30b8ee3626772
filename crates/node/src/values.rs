//! Values of settings: listeners and users.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use millstream_broker::security::Principal;
use millstream_broker::{ListenerConfig, Objective, Protocol};

/// The bounds of the times of objectives.
pub const OBJECTIVE_MIN: Duration = Duration::from_millis(1);
/// See [`OBJECTIVE_MIN`].
pub const OBJECTIVE_MAX: Duration = Duration::from_secs(60);

/// A Kafka listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Its protocol; `None` for that of the broker.
    pub protocol: Option<Protocol>,
    /// A name or an IP address.
    pub host: String,
    /// Its port; 0 for a free one.
    pub port: u16,
}

/// The error for a listener whose host has no address.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {host}: {error}")]
pub struct NoAddress {
    /// The host.
    pub host: String,
    /// The resolver's error.
    pub error: io::Error,
}

impl Listener {
    /// Resolves the listener's address. For a name, takes its first IPv4 address, or else its first address; clients
    /// get the name.
    fn config(&self) -> Result<ListenerConfig, NoAddress> {
        let ip: Option<IpAddr> = self.host.parse().ok();
        let no_address = |error| NoAddress {
            host: self.host.clone(),
            error,
        };
        let address = match ip {
            Some(ip) => SocketAddr::new(ip, self.port),
            None => first_address(&self.host, self.port).map_err(no_address)?,
        };
        Ok(ListenerConfig {
            address,
            advertised: ip.is_none().then(|| (self.host.clone(), 0)),
            protocol: self.protocol,
        })
    }
}

fn first_address(host: &str, port: u16) -> io::Result<SocketAddr> {
    let found: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    let of_ipv4 = found.iter().find(|address| address.is_ipv4());
    let first = of_ipv4.or(found.first()).copied();
    first.ok_or_else(|| io::Error::other("the name has no address"))
}

/// The Kafka listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listeners(pub Vec<Listener>);

impl Listeners {
    /// Resolves the addresses of the listeners.
    ///
    /// # Errors
    /// If a host name has no address.
    pub fn configs(&self) -> Result<Vec<ListenerConfig>, NoAddress> {
        self.0.iter().map(Listener::config).collect()
    }
}

/// Reads `[PROTOCOL://]HOST:PORT`, or several with `;` between.
///
/// # Errors
/// The syntax, for people.
pub fn listeners(text: &str) -> Result<Listeners, String> {
    let listeners = text.split(';').map(|listener| {
        let listener = listener.trim();
        let (protocol, place) = match listener.split_once("://") {
            Some((protocol, place)) => (Some(protocol.parse()?), place),
            None => (None, listener),
        };
        let (host, port) = host_and_port(place).ok_or(
            "must be a host and a port, for instance 127.0.0.1:9092; or several with `;` between, each with its \
             protocol, for instance PLAINTEXT://127.0.0.1:9092;SASL_SSL://0.0.0.0:9093",
        )?;
        Ok(Listener {
            protocol,
            host,
            port,
        })
    });
    listeners.collect::<Result<_, String>>().map(Listeners)
}

/// Reads a host without brackets, and a port. The host is an IP address, or may be a name.
pub fn host_and_port(text: &str) -> Option<(String, u16)> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some((address.ip().to_string(), address.port()));
    }
    let (host, port) = text.rsplit_once(':')?;
    let is_part = |char: char| char.is_ascii_alphanumeric() || "-._".contains(char);
    let is_name = !host.is_empty() && host.chars().all(is_part);
    Some((host.to_owned(), port.parse().ok()?)).filter(|_| is_name)
}

/// Users, by their names.
pub type Principals = HashSet<Principal>;

/// Reads names of users separated by `;`, with or without `User:` before them.
///
/// # Errors
/// The first text that is no name.
pub fn principals(text: &str) -> Result<Principals, String> {
    let names = text
        .split(';')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let principals = names.map(|name| {
        let name = name.strip_prefix("User:").unwrap_or(name);
        Principal::user(name).ok_or_else(|| format!("{name:?} cannot be a user's name"))
    });
    principals.collect()
}

/// Reads an objective: the time within which 99 % of requests are to be answered.
///
/// # Errors
/// The syntax and the bounds, for people.
pub fn objective(text: &str) -> Result<Objective, String> {
    let time = humantime::parse_duration(text).ok();
    let time = time.filter(|time| (OBJECTIVE_MIN..=OBJECTIVE_MAX).contains(time));
    let objective = time.map(Objective::p99);
    objective.ok_or_else(|| "must be a time from 1ms to 1m, for instance 20ms".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_listener(text: &str, expected: Option<(Option<&str>, &str, u16)>) {
        let found = listeners(text).ok().map(|found| {
            assert_eq!(found.0.len(), 1);
            let listener = &found.0[0];
            let protocol = listener.protocol.map(Protocol::name);
            (protocol, listener.host.clone(), listener.port)
        });
        let expected = expected.map(|(protocol, host, port)| (protocol, host.to_owned(), port));
        assert_eq!(found, expected, "{text:?}");
    }

    #[test]
    fn listeners_have_hosts_ports_and_protocols() {
        check_listener("127.0.0.1:9092", Some((None, "127.0.0.1", 9092)));
        check_listener("[::1]:0", Some((None, "::1", 0)));
        check_listener(
            "broker-1.example.com:1",
            Some((None, "broker-1.example.com", 1)),
        );
        check_listener(
            "SASL_SSL://0.0.0.0:9093",
            Some((Some("SASL_SSL"), "0.0.0.0", 9093)),
        );
        check_listener(
            "plaintext://localhost:9",
            Some((Some("PLAINTEXT"), "localhost", 9)),
        );
        for wrong in [
            "",
            "9092",
            ":9092",
            "localhost",
            "localhost:",
            "localhost:65536",
            "::1:9092",
            "a b:1",
            "HTTP://localhost:1",
            "SSL://",
            "localhost:1;",
        ] {
            check_listener(wrong, None);
        }
        assert_eq!(
            listeners("localhost:1; SSL://[::]:2").map(|all| all.0.len()),
            Ok(2)
        );
    }

    #[test]
    fn objectives_are_times_within_bounds() {
        let time = Duration::from_millis(20);
        assert_eq!(objective("20ms"), Ok(Objective::p99(time)));
        for wrong in ["", "20", "0ms", "999us", "61s", "-1s", "1e3s"] {
            assert!(objective(wrong).is_err(), "{wrong}");
        }
    }
}
