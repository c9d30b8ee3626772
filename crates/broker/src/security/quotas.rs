//! How many bytes a second clients may send and be sent, and how many connections a second they may open.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ip_quotas::{ConnectionRate, ConnectionRates, IpEntity};
use super::principal::is_name;

/// There are no more entities with limits.
pub const QUOTAS_MAX: usize = 10_000;

/// Higher limits are none: larger numbers are not exact in Kafka's protocol.
const BYTES_PER_SECOND_MAX: u64 = 1 << 53;

/// A limit, in bytes per second; at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteRate(u64);

impl ByteRate {
    /// `None` if it is out of bounds.
    pub fn new(bytes_per_second: u64) -> Option<ByteRate> {
        let bounds = 1..=BYTES_PER_SECOND_MAX;
        let is_valid = bounds.contains(&bytes_per_second);
        is_valid.then_some(ByteRate(bytes_per_second))
    }

    /// Bytes per second.
    pub fn bytes_per_second(self) -> u64 {
        self.0
    }
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Traffic {
    /// Records that are sent to the broker.
    Produced,
    /// Records that are sent to the client.
    Consumed,
}

/// Whom a part of an entity means.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntityPart {
    /// All that have no limits of their own, each by itself.
    Default,
    /// This one.
    Named(Arc<str>),
}

impl EntityPart {
    /// `None` if nobody can be called so.
    pub fn named(name: &str) -> Option<EntityPart> {
        is_name(name).then(|| EntityPart::Named(name.into()))
    }
}

/// Whose limits these are: of a user, a client id, or a client id of a user. One of both is there.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entity {
    /// The user; of any if there is none.
    pub user: Option<EntityPart>,
    /// The client id; with any if there is none.
    pub client_id: Option<EntityPart>,
}

/// The limits of an entity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Of what is sent to the broker.
    pub produced: Option<ByteRate>,
    /// Of what is sent to clients.
    pub consumed: Option<ByteRate>,
}

impl Limits {
    fn of(&self, traffic: Traffic) -> Option<ByteRate> {
        match traffic {
            Traffic::Produced => self.produced,
            Traffic::Consumed => self.consumed,
        }
    }

    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == Limits::default()
    }
}

/// Those who share one limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Share {
    /// What is limited.
    pub traffic: Traffic,
    /// The user; all if there is none.
    pub user: Option<Arc<str>>,
    /// The client id; all if there is none.
    pub client_id: Option<Arc<str>>,
}

/// All limits.
#[derive(Debug, Clone, Default)]
pub struct Quotas {
    entities: BTreeMap<Entity, Limits>,
    connection_rates: ConnectionRates,
}

impl Quotas {
    /// Sets the limits of an entity; without any it is forgotten.
    pub(super) fn set(&mut self, entity: Entity, limits: Limits) {
        match limits.is_empty() {
            true => self.entities.remove(&entity),
            false => self.entities.insert(entity, limits),
        };
    }

    pub(super) fn set_connection_rate(&mut self, entity: IpEntity, rate: Option<ConnectionRate>) {
        self.connection_rates.set(entity, rate);
    }

    /// How many connections a second addresses may open.
    pub fn connection_rates(&self) -> &ConnectionRates {
        &self.connection_rates
    }

    /// The limits of an entity itself.
    pub fn get(&self, entity: &Entity) -> Option<&Limits> {
        self.entities.get(entity)
    }

    /// All users and client ids with limits.
    pub fn iter(&self) -> impl Iterator<Item = (&Entity, &Limits)> {
        self.entities.iter()
    }

    /// How many users, client ids and addresses have limits.
    pub fn len(&self) -> usize {
        self.entities.len() + self.connection_rates.len()
    }

    /// Whether there are no limits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether any user or client id has a limit in bytes.
    pub fn limits_bytes(&self) -> bool {
        !self.entities.is_empty()
    }

    /// The limit for a client of a user, and with whom it is shared. The first that there is counts, in
    /// Kafka's order: that of the user before that of all users, that of a client id before one without.
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
