//! Kafka's requests about quotas.

use std::collections::HashSet;

use millstream_wire::messages::{
    AlterClientQuotasRequest, AlterClientQuotasResponse, DescribeClientQuotasRequest,
    DescribeClientQuotasResponse, alter_client_quotas_request as asked,
    alter_client_quotas_response as altered, describe_client_quotas_request as filter,
    describe_client_quotas_response as described,
};
use millstream_wire::{ResponseError, StrBytes};

use super::quotas::{ByteRate, Entity, EntityPart, Limits, QUOTAS_MAX};
use super::record::Change;
use super::{Record, Store};

const USER: &str = "user";
const CLIENT_ID: &str = "client-id";

const PRODUCED: &str = "producer_byte_rate";
const CONSUMED: &str = "consumer_byte_rate";

/// Why a request, or a part of it, is refused.
struct Refused {
    error: ResponseError,
    why: &'static str,
}

fn invalid(why: &'static str) -> Refused {
    let error = ResponseError::InvalidRequest;
    Refused { error, why }
}

/// What a part of an entity must be to be described.
enum Wanted {
    Anything,
    Nothing,
    Something,
    This(EntityPart),
}

impl Wanted {
    fn matches(&self, part: Option<&EntityPart>) -> bool {
        match self {
            Wanted::Anything => true,
            Wanted::Nothing => part.is_none(),
            Wanted::Something => part.is_some(),
            Wanted::This(wanted) => part == Some(wanted),
        }
    }

    fn of(component: &filter::ComponentData) -> Result<Wanted, Refused> {
        match (component.match_type, component._match.as_deref()) {
            (0, Some(name)) => {
                let part = EntityPart::named(name).ok_or_else(|| invalid(NO_NAME))?;
                Ok(Wanted::This(part))
            }
            (1, None) => Ok(Wanted::This(EntityPart::Default)),
            (2, None) => Ok(Wanted::Something),
            _ => Err(invalid("a name is matched exactly, by default, or any")),
        }
    }
}

const NO_NAME: &str = "nobody can be called so";
const NO_TYPE: &str = "limits are of users and client ids only, each named once";

impl Store {
    /// Tells the limits that the request is about.
    pub fn describe_quotas(
        &self,
        request: &DescribeClientQuotasRequest,
    ) -> DescribeClientQuotasResponse {
        let response = DescribeClientQuotasResponse::default().with_error_message(None);
        let (user, client_id) = match wanted(request) {
            Ok(wanted) => wanted,
            Err(Refused { error, why }) => {
                return response
                    .with_error_code(error.code())
                    .with_error_message(Some(StrBytes::from_static_str(why)))
                    .with_entries(None);
            }
        };
        let found = self.quotas().iter().filter(|(entity, _)| {
            user.matches(entity.user.as_ref()) && client_id.matches(entity.client_id.as_ref())
        });
        let entries = found.map(|(entity, limits)| {
            described::EntryData::default()
                .with_entity(describe_entity(entity))
                .with_values(describe_limits(limits))
        });
        response.with_entries(Some(entries.collect()))
    }

    /// What the request changes. Of an entity whose changes are not all possible, none is made.
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
                    .with_error_message(Some(StrBytes::from_static_str(why))),
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
        named: &mut HashSet<Entity>,
        count: &mut usize,
    ) -> Result<Option<Record>, Refused> {
        let entity = entity_of(&entry.entity)?;
        if !named.insert(entity.clone()) {
            return Err(invalid(
                "limits of one entity are altered once in a request",
            ));
        }
        let old = self.quotas().get(&entity);
        let mut limits = old.copied().unwrap_or_default();
        for change in &entry.ops {
            alter(&mut limits, change)?;
        }
        if old.is_none() && !limits.is_empty() {
            if *count >= QUOTAS_MAX {
                let error = ResponseError::PolicyViolation;
                let why = "there are as many limits as there may be";
                return Err(Refused { error, why });
            }
            *count += 1;
        }
        let is_same = limits == old.copied().unwrap_or_default();
        Ok((!is_same).then(|| Change::Quota(entity, limits).encode()))
    }
}

fn wanted(request: &DescribeClientQuotasRequest) -> Result<(Wanted, Wanted), Refused> {
    let (mut user, mut client_id) = (None, None);
    for component in &request.components {
        let place = match &*component.entity_type {
            USER => &mut user,
            CLIENT_ID => &mut client_id,
            _ => return Err(invalid(NO_TYPE)),
        };
        if place.replace(Wanted::of(component)?).is_some() {
            return Err(invalid(NO_TYPE));
        }
    }
    let otherwise = || match request.strict {
        true => Wanted::Nothing,
        false => Wanted::Anything,
    };
    Ok((
        user.unwrap_or_else(otherwise),
        client_id.unwrap_or_else(otherwise),
    ))
}

fn entity_of(parts: &[asked::EntityData]) -> Result<Entity, Refused> {
    let mut entity = Entity::default();
    for part in parts {
        let place = match &*part.entity_type {
            USER => &mut entity.user,
            CLIENT_ID => &mut entity.client_id,
            _ => return Err(invalid(NO_TYPE)),
        };
        let named = match &part.entity_name {
            None => EntityPart::Default,
            Some(name) => EntityPart::named(name).ok_or_else(|| invalid(NO_NAME))?,
        };
        if place.replace(named).is_some() {
            return Err(invalid(NO_TYPE));
        }
    }
    match entity == Entity::default() {
        true => Err(invalid(NO_TYPE)),
        false => Ok(entity),
    }
}

fn alter(limits: &mut Limits, change: &asked::OpData) -> Result<(), Refused> {
    let limit = match &*change.key {
        PRODUCED => &mut limits.produced,
        CONSUMED => &mut limits.consumed,
        _ => {
            let why = "there are limits for producer_byte_rate and consumer_byte_rate only";
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
    // What is not in bounds becomes 0 or too large a number.
    let rate = ByteRate::new(value as u64).filter(|_| value.fract() == 0.0);
    rate.ok_or_else(|| invalid("a limit is a whole number of bytes per second, 1 to 2^53"))
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

fn describe_limits(limits: &Limits) -> Vec<described::ValueData> {
    let limits = [(PRODUCED, limits.produced), (CONSUMED, limits.consumed)];
    let limits = limits.into_iter().filter_map(|(key, rate)| {
        let value = described::ValueData::default().with_key(StrBytes::from_static_str(key));
        Some(value.with_value(rate?.bytes_per_second() as f64))
    });
    limits.collect()
}
