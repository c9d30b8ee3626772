//! The security records in the log, byte for byte.
//!
//! [`Writer`] defines the encoding of numbers and texts.
//!
//! ```text
//! kind  key                                  value
//! 1                                          secret: 32 bytes
//! 2     hash u8, user: text                  credential: iterations u32, salt bytes, stored key,
//!                                            server key (each of the size of the hash)
//! 3     resource type u8, pattern type u8,   access rule: nothing more
//!       resource: text, principal: text,
//!       host: text, operation u8,
//!       permission u8
//! 4     user: part, client id: part          limits: produced bytes per second ?u64, consumed
//!                                            bytes per second ?u64
//! 5     ip: part                             connections per second u32
//! ```
//!
//! Hashes are 1 for SHA-256 and 2 for SHA-512, of 32 and 64 bytes. They and the numbers of access rules are
//! those of Kafka's protocol. A `part` is a u8: 0 for none, 1 for the default, 2 before a text. Principals are written `User:name`, hosts as addresses or `*`. The
//! part of kind 5 is an address, or the default for all others.

use std::sync::Arc;

use bytes::Bytes;
use millstream_wire::sasl::{Credential, Hash, Iterations};

use super::acl::{Acl, Operation, Pattern, PatternType, Permission, ResourceType};
use super::ip_quotas::{ConnectionRate, IpEntity};
use super::principal::Principal;
use super::quotas::{ByteRate, Entity, EntityPart, Limits};
use super::users::{self, SECRET_BYTES, Secret};
use crate::ledger::{Reader, Record, RecordError, Writer};

const SECRET: u8 = 1;
const CREDENTIAL: u8 = 2;
const ACL: u8 = 3;
const QUOTA: u8 = 4;
const CONNECTION_RATE: u8 = 5;

/// The content of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// The secret that salts of unknown users are derived from.
    Secret(Secret),
    /// The new credential of a user, or its removal.
    Credential(String, Hash, Option<Credential>),
    /// A new access rule, or its removal.
    Acl(Acl, bool),
    /// The new limits of an entity.
    Quota(Entity, Limits),
    /// The new connection rate of addresses, or its removal.
    ConnectionRate(IpEntity, Option<ConnectionRate>),
}

impl Change {
    pub fn encode(&self) -> Record {
        match self {
            Change::Secret(secret) => Record {
                key: Writer::key(SECRET).done(),
                value: Some(Writer::value().raw(secret.as_bytes()).done()),
            },
            Change::Credential(user, hash, credential) => Record {
                key: Writer::key(CREDENTIAL)
                    .u8(hash_code(*hash))
                    .text(user)
                    .done(),
                value: credential.as_ref().map(encode_credential),
            },
            Change::Quota(entity, limits) => Record {
                key: encode_entity(entity),
                value: (!limits.is_empty()).then(|| encode_limits(limits)),
            },
            Change::ConnectionRate(entity, rate) => Record {
                key: encode_ip(*entity),
                value: rate.map(|rate| Writer::value().u32(rate.per_second()).done()),
            },
            Change::Acl(acl, exists) => Record {
                key: encode_acl(acl),
                value: exists.then(|| Writer::value().done()),
            },
        }
    }

    pub fn decode(record: Record) -> Result<Change, RecordError> {
        let Record { key, value } = record;
        Reader::key(key, |key| match key.u8("kind")? {
            SECRET => {
                let field = "secret";
                let value = value.ok_or(RecordError::Removed { field })?;
                Ok(Change::Secret(Reader::value(value, decode_secret)?))
            }
            CREDENTIAL => {
                let hash = key.code("hash", hash_of_code)?;
                let user = key.text::<Arc<str>>("user")?.to_string();
                Principal::user(&user).ok_or(RecordError::Invalid { field: "user" })?;
                let credential = value.map(|value| {
                    Reader::value(value, |value| decode_credential(&user, hash, value))
                });
                let credential = credential.transpose()?;
                Ok(Change::Credential(user, hash, credential))
            }
            ACL => {
                let acl = decode_acl(key)?;
                let value = value.map(|value| Reader::value(value, |_| Ok(())));
                Ok(Change::Acl(acl, value.transpose()?.is_some()))
            }
            QUOTA => {
                let entity = decode_entity(key)?;
                let limits = value.map(|value| Reader::value(value, decode_limits));
                Ok(Change::Quota(
                    entity,
                    limits.transpose()?.unwrap_or_default(),
                ))
            }
            CONNECTION_RATE => {
                let entity = decode_ip(key)?;
                let rate = value.map(|value| Reader::value(value, decode_connection_rate));
                Ok(Change::ConnectionRate(entity, rate.transpose()?))
            }
            kind => Err(RecordError::unknown("kind", kind)),
        })
    }
}

fn decode_secret(value: &mut Reader) -> Result<Secret, RecordError> {
    let bytes = value.raw(SECRET_BYTES, "secret")?;
    let bytes = bytes[..].try_into();
    let bytes = bytes.map_err(|_| RecordError::CutOff { field: "secret" })?;
    Ok(Secret::from_random(bytes))
}

/// Returns the number of a hash in Kafka's protocol.
pub(super) const fn hash_code(hash: Hash) -> u8 {
    match hash {
        Hash::Sha256 => 1,
        Hash::Sha512 => 2,
    }
}

/// Returns the hash of a number in Kafka's protocol.
pub(super) const fn hash_of_code(code: i8) -> Option<Hash> {
    match code {
        1 => Some(Hash::Sha256),
        2 => Some(Hash::Sha512),
        _ => None,
    }
}

fn encode_credential(credential: &Credential) -> Bytes {
    Writer::value()
        .u32(credential.iterations().0)
        .bytes(credential.salt())
        .raw(credential.stored_key().as_bytes())
        .raw(credential.server_key().as_bytes())
        .done()
}

fn decode_credential(
    user: &str,
    hash: Hash,
    value: &mut Reader,
) -> Result<Credential, RecordError> {
    let iterations = Iterations(value.u32("iterations")?);
    let salt = value.bytes("salt")?;
    let stored_key = value.raw(hash.output_bytes(), "stored key")?;
    let server_key = value.raw(hash.output_bytes(), "server key")?;
    let field = "credential";
    users::check(user, &salt, iterations).map_err(|_| RecordError::Invalid { field })?;
    Credential::from_parts(hash, &salt, iterations, &stored_key, &server_key)
        .ok_or(RecordError::Invalid { field })
}

fn encode_acl(acl: &Acl) -> Bytes {
    Writer::key(ACL)
        .u8(acl.pattern.kind as u8)
        .u8(acl.pattern.pattern_type as u8)
        .text(&acl.pattern.name)
        .text(&acl.principal.to_string())
        .text(&acl.host.to_string())
        .u8(acl.operation as u8)
        .u8(acl.permission as u8)
        .done()
}

fn decode_acl(key: &mut Reader) -> Result<Acl, RecordError> {
    let kind = key.code("resource type", ResourceType::from_code)?;
    let pattern_type = key.code("pattern type", PatternType::from_code)?;
    let pattern = Pattern {
        kind,
        pattern_type,
        name: key.text::<Arc<str>>("resource")?.to_string(),
    };
    let field = "resource";
    pattern
        .check()
        .map_err(|_| RecordError::Invalid { field })?;
    Ok(Acl {
        pattern,
        principal: key.parsed("principal")?,
        host: key.parsed("host")?,
        operation: key.code("operation", Operation::from_code)?,
        permission: key.code("permission", Permission::from_code)?,
    })
}

/// The kinds of a part of an entity.
const NO_PART: u8 = 0;
const DEFAULT_PART: u8 = 1;
const NAMED_PART: u8 = 2;

fn encode_entity(entity: &Entity) -> Bytes {
    let mut writer = Writer::key(QUOTA);
    for part in [&entity.user, &entity.client_id] {
        match part {
            None => writer.u8(NO_PART),
            Some(EntityPart::Default) => writer.u8(DEFAULT_PART),
            Some(EntityPart::Named(name)) => writer.u8(NAMED_PART).text(name),
        };
    }
    writer.done()
}

fn decode_entity(key: &mut Reader) -> Result<Entity, RecordError> {
    let entity = Entity {
        user: decode_part(key, "user")?,
        client_id: decode_part(key, "client id")?,
    };
    match entity == Entity::default() {
        true => Err(RecordError::Invalid { field: "entity" }),
        false => Ok(entity),
    }
}

fn decode_part(key: &mut Reader, field: &'static str) -> Result<Option<EntityPart>, RecordError> {
    match key.u8(field)? {
        NO_PART => Ok(None),
        DEFAULT_PART => Ok(Some(EntityPart::Default)),
        NAMED_PART => {
            let name: Arc<str> = key.text(field)?;
            let part = EntityPart::named(&name);
            part.map(Some).ok_or(RecordError::Invalid { field })
        }
        part => Err(RecordError::unknown(field, part)),
    }
}

fn encode_limits(limits: &Limits) -> Bytes {
    let mut writer = Writer::value();
    for limit in [limits.produced, limits.consumed] {
        writer.option(&limit, |writer, rate| writer.u64(rate.bytes_per_second()));
    }
    writer.done()
}

fn decode_limits(value: &mut Reader) -> Result<Limits, RecordError> {
    let mut rate = |field| {
        let rate = value.option(field, Reader::u64)?;
        let valid = rate.map(|rate| ByteRate::new(rate).ok_or(RecordError::Invalid { field }));
        valid.transpose()
    };
    Ok(Limits {
        produced: rate("limit of produced bytes")?,
        consumed: rate("limit of consumed bytes")?,
    })
}

fn encode_ip(entity: IpEntity) -> Bytes {
    let mut writer = Writer::key(CONNECTION_RATE);
    match entity {
        IpEntity::Default => writer.u8(DEFAULT_PART).done(),
        IpEntity::Address(address) => writer.u8(NAMED_PART).text(&address.to_string()).done(),
    }
}

fn decode_ip(key: &mut Reader) -> Result<IpEntity, RecordError> {
    match key.u8("ip")? {
        DEFAULT_PART => Ok(IpEntity::Default),
        NAMED_PART => key.parsed("ip"),
        part => Err(RecordError::unknown("ip", part)),
    }
}

fn decode_connection_rate(value: &mut Reader) -> Result<ConnectionRate, RecordError> {
    let field = "connections per second";
    ConnectionRate::new(value.u32(field)?).ok_or(RecordError::Invalid { field })
}
