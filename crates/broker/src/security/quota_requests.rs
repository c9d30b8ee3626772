//! Kafka's requests about quotas.

use std::collections::HashSet;

use millstream_wire::messages::{
    AlterClientQuotasRequest, AlterClientQuotasResponse, DescribeClientQuotasRequest,
    DescribeClientQuotasResponse, alter_client_quotas_request as asked,
    alter_client_quotas_response as altered, describe_client_quotas_request as filter,
    describe_client_quotas_response as described,
};
use millstream_wire::{ResponseError, StrBytes};

use super::ip_quotas::{ConnectionRate, InvalidIp, IpEntity};
use super::quotas::{ByteRate, Entity, EntityPart, Limits, QUOTAS_MAX};
use super::record::Change;
use super::{Record, Store};

const USER: &str = "user";
const CLIENT_ID: &str = "client-id";
const IP: &str = "ip";

const PRODUCED: &str = "producer_byte_rate";
const CONSUMED: &str = "consumer_byte_rate";
const CONNECTED: &str = "connection_creation_rate";

/// The reason for which a request, or a part of it, is refused.
struct Refused {
    error: ResponseError,
    why: String,
}

fn invalid(why: impl Into<String>) -> Refused {
    let (error, why) = (ResponseError::InvalidRequest, why.into());
    Refused { error, why }
}

/// The limits that a request concerns.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Target {
    Client(Entity),
    Ip(IpEntity),
}

/// The condition that a part of an entity must meet to be described.
enum Wanted<P> {
    Anything,
    Nothing,
    Something,
    This(P),
}

impl<P: PartialEq> Wanted<P> {
    fn matches(&self, part: Option<&P>) -> bool {
        match self {
            Wanted::Anything => true,
            Wanted::Nothing => part.is_none(),
            Wanted::Something => part.is_some(),
            Wanted::This(wanted) => part == Some(wanted),
        }
    }

    /// Parses a part of an entity. `named` reads a name, and `default` stands for the default.
    fn of(
        component: &filter::ComponentData,
        default: P,
        named: impl FnOnce(&str) -> Result<P, Refused>,
    ) -> Result<Wanted<P>, Refused> {
        match (component.match_type, component._match.as_deref()) {
            (0, Some(name)) => Ok(Wanted::This(named(name)?)),
            (1, None) => Ok(Wanted::This(default)),
            (2, None) => Ok(Wanted::Something),
            _ => Err(invalid("a name is matched exactly, by default, or any")),
        }
    }
}

/// The filter of a description: each part of an entity must match.
struct Filter {
    user: Wanted<EntityPart>,
    client_id: Wanted<EntityPart>,
    ip: Wanted<IpEntity>,
}

const NO_NAME: &str = "no user or client id can have this name";
const NO_TYPE: &str = "limits are of a user, a client id or both, or of an ip, each named once";

fn part_of(name: &str) -> Result<EntityPart, Refused> {
    EntityPart::named(name).ok_or_else(|| invalid(NO_NAME))
}

fn ip_of(name: &str) -> Result<IpEntity, Refused> {
    let ip = name.parse();
    ip.map_err(|error: InvalidIp| invalid(error.to_string()))
}

impl Store {
    /// Answers with the limits that the request's filter matches.
    pub fn describe_quotas(
        &self,
        request: &DescribeClientQuotasRequest,
    ) -> DescribeClientQuotasResponse {
        let response = DescribeClientQuotasResponse::default().with_error_message(None);
        let filter = match wanted(request) {
            Ok(filter) => filter,
            Err(Refused { error, why }) => {
                return response
                    .with_error_code(error.code())
                    .with_error_message(Some(StrBytes::from_string(why)))
                    .with_entries(None);
            }
        };
        let quotas = self.quotas();
        let of_clients = quotas.iter().filter(|(entity, _)| {
            filter.user.matches(entity.user.as_ref())
                && filter.client_id.matches(entity.client_id.as_ref())
                && filter.ip.matches(None)
        });
        let of_clients =
            of_clients.map(|(entity, limits)| (describe_entity(entity), describe_limits(limits)));
        let of_ips = quotas.connection_rates().iter().filter(|(entity, _)| {
            let is_of_clients = !filter.user.matches(None) || !filter.client_id.matches(None);
            !is_of_clients && filter.ip.matches(Some(entity))
        });
        let of_ips = of_ips.map(|(entity, rate)| (describe_ip(entity), describe_rate(rate)));
        let entries = of_clients.chain(of_ips).map(|(entity, values)| {
            described::EntryData::default()
                .with_entity(entity)
                .with_values(values)
        });
        response.with_entries(Some(entries.collect()))
    }

    /// Returns the answer and the records of the request's changes. If one change of an entity is
    /// not possible, none of that entity is made.
    pub fn alter_quotas(
        &self,
        request: &AlterClientQuotasRequest,
    ) -> (AlterClientQuotasResponse, Vec<Record>) {
        let mut records = Vec::new();
        let mut named = HashSet::new();
        let mut count = self.quotas().len();
        let entries = request.entries.iter().map(|entry| {
            let result = self.alter_quota(entry, &mut named, &mut count);
            let entity = entry.entity.iter().map(|part| {
                altered::EntityData::default()
                    .with_entity_type(part.entity_type.clone())
                    .with_entity_name(part.entity_name.clone())
            });
            let response = altered::EntryData::default()
                .with_entity(entity.collect())
                .with_error_message(None);
            match result {
                Ok(record) => {
                    records.extend(record.filter(|_| !request.validate_only));
                    response
                }
                Err(Refused { error, why }) => response
                    .with_error_code(error.code())
                    .with_error_message(Some(StrBytes::from_string(why))),
            }
        });
        let entries = entries.collect();
        (
            AlterClientQuotasResponse::default().with_entries(entries),
            records,
        )
    }

    fn alter_quota(
        &self,
        entry: &asked::EntryData,
        named: &mut HashSet<Target>,
        count: &mut usize,
    ) -> Result<Option<Record>, Refused> {
        let target = target_of(&entry.entity)?;
        if !named.insert(target.clone()) {
            return Err(invalid(
                "limits of one entity are altered once in a request",
            ));
        }
        let (change, is_new) = match target {
            Target::Client(entity) => self.limits_change(entity, &entry.ops)?,
            Target::Ip(entity) => self.rate_change(entity, &entry.ops)?,
        };
        if is_new {
            if *count >= QUOTAS_MAX {
                let error = ResponseError::PolicyViolation;
                let why = format!("there may be {QUOTAS_MAX} entities with limits at most");
                return Err(Refused { error, why });
            }
            *count += 1;
        }
        Ok(change.map(|change| change.encode()))
    }

    /// Returns the change of the limits of users and client ids, if there is one, and whether they
    /// had no limits before.
    fn limits_change(
        &self,
        entity: Entity,
        changes: &[asked::OpData],
    ) -> Result<(Option<Change>, bool), Refused> {
        let old = self.quotas().get(&entity).copied().unwrap_or_default();
        let mut limits = old;
        for change in changes {
            alter(&mut limits, change)?;
        }
        let is_new = old.is_empty() && !limits.is_empty();
        let change = (limits != old).then_some(Change::Quota(entity, limits));
        Ok((change, is_new))
    }

    /// Returns the same for the connection rate of addresses.
    fn rate_change(
        &self,
        entity: IpEntity,
        changes: &[asked::OpData],
    ) -> Result<(Option<Change>, bool), Refused> {
        let old = self.quotas().connection_rates().get(entity);
        let mut rate = old;
        for change in changes {
            if &*change.key != CONNECTED {
                return Err(invalid(
                    "an ip has a limit for connection_creation_rate only",
                ));
            }
            rate = match change.remove {
                true => None,
                false => Some(connection_rate_of(change.value)?),
            };
        }
        let is_new = old.is_none() && rate.is_some();
        let change = (rate != old).then_some(Change::ConnectionRate(entity, rate));
        Ok((change, is_new))
    }
}

fn wanted(request: &DescribeClientQuotasRequest) -> Result<Filter, Refused> {
    let (mut user, mut client_id, mut ip) = (None, None, None);
    for component in &request.components {
        let is_second = match &*component.entity_type {
            USER => {
                let wanted = Wanted::of(component, EntityPart::Default, part_of)?;
                user.replace(wanted).is_some()
            }
            CLIENT_ID => {
                let wanted = Wanted::of(component, EntityPart::Default, part_of)?;
                client_id.replace(wanted).is_some()
            }
            IP => {
                let wanted = Wanted::of(component, IpEntity::Default, ip_of)?;
                ip.replace(wanted).is_some()
            }
            _ => true,
        };
        if is_second || (ip.is_some() && (user.is_some() || client_id.is_some())) {
            return Err(invalid(NO_TYPE));
        }
    }
    Ok(Filter {
        user: user.unwrap_or(otherwise(request.strict)),
        client_id: client_id.unwrap_or(otherwise(request.strict)),
        ip: ip.unwrap_or(otherwise(request.strict)),
    })
}

/// Returns the condition for a part that the request does not name.
fn otherwise<P>(strict: bool) -> Wanted<P> {
    match strict {
        true => Wanted::Nothing,
        false => Wanted::Anything,
    }
}

fn target_of(parts: &[asked::EntityData]) -> Result<Target, Refused> {
    let (mut entity, mut ip) = (Entity::default(), None);
    for part in parts {
        let name = part.entity_name.as_deref();
        let is_second = match &*part.entity_type {
            USER => {
                let part = name.map_or(Ok(EntityPart::Default), part_of)?;
                entity.user.replace(part).is_some()
            }
            CLIENT_ID => {
                let part = name.map_or(Ok(EntityPart::Default), part_of)?;
                entity.client_id.replace(part).is_some()
            }
            IP => {
                let address = name.map_or(Ok(IpEntity::Default), ip_of)?;
                ip.replace(address).is_some()
            }
            _ => true,
        };
        if is_second {
            return Err(invalid(NO_TYPE));
        }
    }
    match (ip, entity == Entity::default()) {
        (Some(ip), true) => Ok(Target::Ip(ip)),
        (None, false) => Ok(Target::Client(entity)),
        _ => Err(invalid(NO_TYPE)),
    }
}

fn alter(limits: &mut Limits, change: &asked::OpData) -> Result<(), Refused> {
    let limit = match &*change.key {
        PRODUCED => &mut limits.produced,
        CONSUMED => &mut limits.consumed,
        _ => {
            let why = "a user or a client id has limits for producer_byte_rate and consumer_byte_rate only";
            return Err(invalid(why));
        }
    };
    *limit = match change.remove {
        true => None,
        false => Some(rate_of(change.value)?),
    };
    Ok(())
}

fn rate_of(value: f64) -> Result<ByteRate, Refused> {
    // A value out of bounds becomes 0 or too large a number.
    let rate = ByteRate::new(value as u64).filter(|_| value.fract() == 0.0);
    rate.ok_or_else(|| invalid("a limit is a whole number of bytes per second, 1 to 2^53"))
}

fn connection_rate_of(value: f64) -> Result<ConnectionRate, Refused> {
    let rate = ConnectionRate::new(value as u32).filter(|_| value.fract() == 0.0);
    rate.ok_or_else(|| {
        invalid("a limit is a whole number of connections per second, 1 to 2,147,483,647")
    })
}

fn describe_entity(entity: &Entity) -> Vec<described::EntityData> {
    let parts = [(USER, &entity.user), (CLIENT_ID, &entity.client_id)];
    let parts = parts.into_iter().filter_map(|(kind, part)| {
        let name = match part.as_ref()? {
            EntityPart::Default => None,
            EntityPart::Named(name) => Some(StrBytes::from_string(name.to_string())),
        };
        let kind = StrBytes::from_static_str(kind);
        let entity = described::EntityData::default().with_entity_type(kind);
        Some(entity.with_entity_name(name))
    });
    parts.collect()
}

fn describe_ip(entity: IpEntity) -> Vec<described::EntityData> {
    let name = match entity {
        IpEntity::Default => None,
        IpEntity::Address(address) => Some(StrBytes::from_string(address.to_string())),
    };
    let kind = StrBytes::from_static_str(IP);
    let entity = described::EntityData::default().with_entity_type(kind);
    vec![entity.with_entity_name(name)]
}

fn describe_rate(rate: ConnectionRate) -> Vec<described::ValueData> {
    let value = described::ValueData::default().with_key(StrBytes::from_static_str(CONNECTED));
    vec![value.with_value(f64::from(rate.per_second()))]
}

fn describe_limits(limits: &Limits) -> Vec<described::ValueData> {
    let limits = [(PRODUCED, limits.produced), (CONSUMED, limits.consumed)];
    let limits = limits.into_iter().filter_map(|(key, rate)| {
        let value = described::ValueData::default().with_key(StrBytes::from_static_str(key));
        Some(value.with_value(rate?.bytes_per_second() as f64))
    });
    limits.collect()
}
