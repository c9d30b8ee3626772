//! Quotas: limits on the bytes per second that clients may send and receive, and on the connections
//! per second that they may open.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ip_quotas::{ConnectionRate, ConnectionRates, IpEntity};
use super::principal::is_name;

/// The most entities with limits.
pub const QUOTAS_MAX: usize = 10_000;

/// The highest limit: larger numbers are not exact in Kafka's protocol.
const BYTES_PER_SECOND_MAX: u64 = 1 << 53;

/// A limit, in bytes per second; at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteRate(u64);

impl ByteRate {
    /// Returns `None` if the limit is out of bounds.
    pub fn new(bytes_per_second: u64) -> Option<ByteRate> {
        let bounds = 1..=BYTES_PER_SECOND_MAX;
        let is_valid = bounds.contains(&bytes_per_second);
        is_valid.then_some(ByteRate(bytes_per_second))
    }

    /// Returns the bytes per second.
    pub fn bytes_per_second(self) -> u64 {
        self.0
    }
}

/// The direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Traffic {
    /// Records that are sent to the broker.
    Produced,
    /// Records that are sent to the client.
    Consumed,
}

/// The users or client ids that a part of an entity covers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntityPart {
    /// All that have no limits of their own, each by itself.
    Default,
    /// This user or client id.
    Named(Arc<str>),
}

impl EntityPart {
    /// Returns the part of this name; `None` if no user or client id can have it.
    pub fn named(name: &str) -> Option<EntityPart> {
        is_name(name).then(|| EntityPart::Named(name.into()))
    }
}

/// The clients of a limit: a user, a client id, or a client id of a user. At least one of both is
/// present.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entity {
    /// The user; `None` covers every user.
    pub user: Option<EntityPart>,
    /// The client id; `None` covers every client id.
    pub client_id: Option<EntityPart>,
}

/// The limits of an entity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The limit on bytes to the broker.
    pub produced: Option<ByteRate>,
    /// The limit on bytes to clients.
    pub consumed: Option<ByteRate>,
}

impl Limits {
    fn of(&self, traffic: Traffic) -> Option<ByteRate> {
        match traffic {
            Traffic::Produced => self.produced,
            Traffic::Consumed => self.consumed,
        }
    }

    /// Returns whether there is no limit.
    pub fn is_empty(&self) -> bool {
        *self == Limits::default()
    }
}

/// The clients that share one limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Share {
    /// The direction that is limited.
    pub traffic: Traffic,
    /// The user; `None` for all users together.
    pub user: Option<Arc<str>>,
    /// The client id; `None` for all client ids together.
    pub client_id: Option<Arc<str>>,
}

/// All limits.
#[derive(Debug, Clone, Default)]
pub struct Quotas {
    entities: BTreeMap<Entity, Limits>,
    connection_rates: ConnectionRates,
}

impl Quotas {
    /// Sets the limits of an entity; an entity without limits is removed.
    pub(super) fn set(&mut self, entity: Entity, limits: Limits) {
        match limits.is_empty() {
            true => self.entities.remove(&entity),
            false => self.entities.insert(entity, limits),
        };
    }

    pub(super) fn set_connection_rate(&mut self, entity: IpEntity, rate: Option<ConnectionRate>) {
        self.connection_rates.set(entity, rate);
    }

    /// Returns the connection rates of addresses.
    pub fn connection_rates(&self) -> &ConnectionRates {
        &self.connection_rates
    }

    /// Returns the limits of exactly this entity.
    pub fn get(&self, entity: &Entity) -> Option<&Limits> {
        self.entities.get(entity)
    }

    /// Returns all users and client ids with limits.
    pub fn iter(&self) -> impl Iterator<Item = (&Entity, &Limits)> {
        self.entities.iter()
    }

    /// Returns the number of users, client ids and addresses with limits.
    pub fn len(&self) -> usize {
        self.entities.len() + self.connection_rates.len()
    }

    /// Returns whether there are no limits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether any user or client id has a limit in bytes.
    pub fn limits_bytes(&self) -> bool {
        !self.entities.is_empty()
    }

    /// Returns the limit for a client of a user, and the clients that share it. The first in
    /// Kafka's order applies: the limit of the user before that of all users, that of a client id
    /// before one without.
    pub fn find(&self, traffic: Traffic, user: &str, client_id: &str) -> Option<(Share, ByteRate)> {
        let (user, client_id): (Arc<str>, Arc<str>) = (user.into(), client_id.into());
        let parts = |name: &Arc<str>| {
            let named = EntityPart::Named(Arc::clone(name));
            [Some(named), Some(EntityPart::Default), None]
        };
        let client_ids = parts(&client_id);
        let entities = parts(&user).into_iter().flat_map(|user| {
            client_ids.iter().map(move |client_id| Entity {
                user: user.clone(),
                client_id: client_id.clone(),
            })
        });
        let mut found = entities.filter_map(|entity| {
            let rate = self.entities.get(&entity)?.of(traffic)?;
            Some((entity, rate))
        });
        let (entity, rate) = found.next()?;
        let share = Share {
            traffic,
            user: entity.user.is_some().then_some(user),
            client_id: entity.client_id.is_some().then_some(client_id),
        };
        Some((share, rate))
    }
}
