//! Limits on the connections that IP addresses may open per second.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Kafka's type of this quota is a signed number of 32 bits.
const PER_SECOND_MAX: u32 = i32::MAX as u32;

/// A limit, in connections per second; at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionRate(u32);

impl ConnectionRate {
    /// Returns `None` if the limit is out of bounds.
    pub fn new(per_second: u32) -> Option<ConnectionRate> {
        let bounds = 1..=PER_SECOND_MAX;
        let is_valid = bounds.contains(&per_second);
        is_valid.then_some(ConnectionRate(per_second))
    }

    /// Returns the connections per second.
    pub fn per_second(self) -> u32 {
        self.0
    }
}

/// The addresses that a connection rate applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpEntity {
    /// All addresses without a rate of their own, each by itself.
    Default,
    /// One address, as [`IpAddr::to_canonical`] returns it.
    Address(IpAddr),
}

impl IpEntity {
    /// Returns the entity of an address. An IPv4 address in IPv6 form counts as the IPv4 address.
    pub fn of(address: IpAddr) -> IpEntity {
        IpEntity::Address(address.to_canonical())
    }
}

/// The error for text that is not an IP address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an ip is written as an address: the broker looks up no names")]
pub struct InvalidIp;

impl FromStr for IpEntity {
    type Err = InvalidIp;

    /// Parses an address.
    fn from_str(text: &str) -> Result<IpEntity, InvalidIp> {
        text.parse().map(IpEntity::of).map_err(|_| InvalidIp)
    }
}

impl fmt::Display for IpEntity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IpEntity::Default => f.write_str("every ip"),
            IpEntity::Address(address) => write!(f, "ip {address}"),
        }
    }
}

/// The connection rates of all addresses.
#[derive(Debug, Clone, Default)]
pub struct ConnectionRates {
    rates: BTreeMap<IpEntity, ConnectionRate>,
}

impl ConnectionRates {
    /// Sets the rate of addresses, or removes it.
    pub(super) fn set(&mut self, entity: IpEntity, rate: Option<ConnectionRate>) {
        match rate {
            None => self.rates.remove(&entity),
            Some(rate) => self.rates.insert(entity, rate),
        };
    }

    /// Returns the rate that was set for exactly this entity.
    pub fn get(&self, entity: IpEntity) -> Option<ConnectionRate> {
        self.rates.get(&entity).copied()
    }

    /// Returns the rate that applies to an address: its own, or else the default.
    pub fn find(&self, address: IpAddr) -> Option<ConnectionRate> {
        let own = self.get(IpEntity::of(address));
        own.or_else(|| self.get(IpEntity::Default))
    }

    /// Returns all rates.
    pub fn iter(&self) -> impl Iterator<Item = (IpEntity, ConnectionRate)> {
        self.rates.iter().map(|(entity, rate)| (*entity, *rate))
    }

    /// Returns the number of rates.
    pub fn len(&self) -> usize {
        self.rates.len()
    }

    /// Returns whether no address has a rate.
    pub fn is_empty(&self) -> bool {
        self.rates.is_empty()
    }
}
