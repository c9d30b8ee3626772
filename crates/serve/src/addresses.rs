//! Counts the connections of each address.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// The most connections from one address. The server closes further ones at once, so that one client cannot use up all.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 64;

/// The number of connections from each address.
#[derive(Debug, Default)]
pub struct Addresses {
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// Counts one connection until it is dropped.
#[derive(Debug)]
pub struct Counted {
    addresses: Arc<Addresses>,
    network: IpAddr,
}

impl Addresses {
    /// Counts a connection; `None` if its address has too many.
    pub fn count(self: &Arc<Self>, address: IpAddr) -> Option<Counted> {
        let network = network_of(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(network).or_default();
        // A client on this machine may be a proxy for many others.
        if *count >= CONNECTIONS_PER_ADDRESS_MAX && !network.is_loopback() {
            return None;
        }
        *count += 1;
        Some(Counted {
            addresses: Arc::clone(self),
            network,
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let open = &self.addresses.open;
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.network);
            }
        }
    }
}

/// Returns the network of an IPv6 address, its first 64 bits, since one client can have all addresses in it.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            Ipv6Addr::from(u128::from(address) & (u128::MAX << 64)).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(addresses: &Arc<Addresses>, address: &str) -> Option<Counted> {
        addresses.count(address.parse().unwrap())
    }

    #[test]
    fn connections_of_one_address_are_bounded() {
        let addresses = Arc::new(Addresses::default());
        let mut held: Vec<Counted> = (0..CONNECTIONS_PER_ADDRESS_MAX)
            .map(|_| counted(&addresses, "10.0.0.1").unwrap())
            .collect();
        assert!(counted(&addresses, "10.0.0.1").is_none());
        assert!(counted(&addresses, "::ffff:10.0.0.1").is_none());
        assert!(counted(&addresses, "10.0.0.2").is_some());
        held.pop();
        assert!(counted(&addresses, "10.0.0.1").is_some());
        drop(held);
        assert!(addresses.open.lock().unwrap().is_empty());
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_address() {
        let addresses = Arc::new(Addresses::default());
        let of = |host: usize| format!("2001:db8:0:1::{host:x}");
        let held: Vec<Counted> = (0..CONNECTIONS_PER_ADDRESS_MAX)
            .map(|host| counted(&addresses, &of(host)).unwrap())
            .collect();
        assert!(counted(&addresses, "2001:db8:0:1:ffff::1").is_none());
        assert!(counted(&addresses, "2001:db8:0:2::1").is_some());
        drop(held);
    }

    #[test]
    fn connections_of_this_machine_have_no_bound_of_their_own() {
        let addresses = Arc::new(Addresses::default());
        for address in ["127.0.0.1", "::1"] {
            let held: Vec<_> = (0..1000).map(|_| counted(&addresses, address)).collect();
            assert!(held.iter().all(Option::is_some));
        }
    }
}
