//! Checks whether a broker may listen on an address.

use std::net::SocketAddr;

use millstream_base::is_loopback;

/// The error for an address on which any client could connect and do everything.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{address} can be reached from other machines, and clients need not log in there: turn \
     authentication on, listen on 127.0.0.1 only, or say --insecure if every client that can reach it may do \
     everything"
)]
pub struct Exposed {
    /// The address.
    pub address: SocketAddr,
}

millstream_base::debug_as_display!(Exposed);

/// A permitted exposure that deserves a warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Exposure {
    /// The option `--insecure` permits it.
    #[error("{0} can be reached from other machines, and clients need not log in there")]
    Open(SocketAddr),
    /// Passwords sent with PLAIN, and all records, can be read on the way.
    #[error(
        "{0} can be reached from other machines, and connections are not encrypted: turn TLS on"
    )]
    Readable(SocketAddr),
}

/// Checks whether the broker may listen on this address. Returns the exposures that deserve a
/// warning.
///
/// # Errors
/// When other machines reach the address, clients need no login there, and `insecure` is `false`.
///
/// ```
/// use millstream_broker::security::check_exposure;
///
/// let local = "127.0.0.1:9092".parse().unwrap();
/// assert_eq!(check_exposure(local, false, false, false), Ok(None));
/// let all = "0.0.0.0:9092".parse().unwrap();
/// assert!(check_exposure(all, false, true, false).is_err());
/// assert_eq!(check_exposure(all, true, true, false), Ok(None));
/// ```
pub fn check_exposure(
    address: SocketAddr,
    authentication: bool,
    tls: bool,
    insecure: bool,
) -> Result<Option<Exposure>, Exposed> {
    if is_loopback(address.ip()) {
        return Ok(None);
    }
    match (authentication, tls) {
        (true, true) => Ok(None),
        (true, false) => Ok(Some(Exposure::Readable(address))),
        (false, _) if insecure => Ok(Some(Exposure::Open(address))),
        (false, _) => Err(Exposed { address }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(address: &str, settings: [bool; 3], expected: Result<Option<&str>, &str>) {
        let [authentication, tls, insecure] = settings;
        let address = address.parse().unwrap();
        let found = check_exposure(address, authentication, tls, insecure);
        let warning = found.map(|warning| warning.map(|warning| warning.to_string()));
        let warning = warning.map_err(|error| error.to_string());
        match (warning, expected) {
            (Ok(None), Ok(None)) => {}
            (Ok(Some(text)), Ok(Some(part))) | (Err(text), Err(part)) => {
                assert!(
                    text.contains(part) && text.contains(&address.to_string()),
                    "{text}"
                );
            }
            (found, _) => panic!("{address} {settings:?}: {found:?}"),
        }
    }

    #[test]
    fn clients_of_other_machines_are_admitted_only_with_a_login() {
        for address in [
            "127.0.0.1:1",
            "127.1.2.3:1",
            "[::1]:1",
            "[::ffff:127.0.0.1]:1",
        ] {
            check(address, [false, false, false], Ok(None));
        }
        for address in [
            "0.0.0.0:1",
            "[::]:1",
            "10.0.0.1:1",
            "[2001:db8::1]:1",
            "128.0.0.1:1",
        ] {
            check(address, [false, false, false], Err("--insecure"));
            check(address, [false, true, false], Err("turn authentication on"));
            check(
                address,
                [false, false, true],
                Ok(Some("clients need not log in")),
            );
            check(address, [true, false, false], Ok(Some("turn TLS on")));
            check(address, [true, true, true], Ok(None));
        }
    }
}
