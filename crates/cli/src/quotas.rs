//! `millstream quota …`: limits of users, client ids and addresses.

use millstream_base::ByteSize;
use millstream_client::{Quota, QuotaEntity, QuotaKind};
use serde_json::{Map, Value, json};

use crate::args::QuotaCommand;
use crate::console::{Align, Table, grouped, print_json, report};
use crate::remote::Remote;
use crate::settings::Settings;
use crate::usage::WrongUsage;
use crate::values::{ALL, EntityPart, Limit};

/// Kafka's names of the limits.
const PRODUCED: &str = "producer_byte_rate";
const CONSUMED: &str = "consumer_byte_rate";
const CONNECTED: &str = "connection_creation_rate";

pub fn run(command: QuotaCommand, settings: &Settings, is_json: bool) -> anyhow::Result<()> {
    let remote = Remote::only(settings, "quotas")?;
    match command {
        QuotaCommand::List => print_quotas(&remote.wait(remote.client().quotas())?, is_json),
        QuotaCommand::Set {
            entity,
            produce,
            consume,
            connections,
        } => {
            let bytes = |limit: Option<Limit<ByteSize>>| {
                limit.map(|Limit(size)| size.map(|ByteSize(bytes)| bytes as f64))
            };
            let limits = [
                (PRODUCED, bytes(produce)),
                (CONSUMED, bytes(consume)),
                (
                    CONNECTED,
                    connections.map(|Limit(count)| count.map(f64::from)),
                ),
            ];
            let limits = limits.into_iter();
            let limits: Vec<_> = limits
                .filter_map(|(name, limit)| Some((name, limit?)))
                .collect();
            change(&remote, entity, &limits, "set the limits", is_json)
        }
        QuotaCommand::Remove { entity } => {
            let is_ip = entity.iter().any(|part| part.kind == QuotaKind::Ip);
            let names: &[&str] = match is_ip {
                true => &[CONNECTED],
                false => &[PRODUCED, CONSUMED],
            };
            let limits: Vec<_> = names.iter().map(|name| (*name, None)).collect();
            change(&remote, entity, &limits, "removed all limits", is_json)
        }
    }
}

fn change(
    remote: &Remote,
    parts: Vec<EntityPart>,
    limits: &[(&str, Option<f64>)],
    done: &str,
    is_json: bool,
) -> anyhow::Result<()> {
    let count = parts.len();
    let entity: QuotaEntity = parts
        .into_iter()
        .map(|part| (part.kind, part.name))
        .collect();
    if entity.len() < count {
        return Err(WrongUsage::error(
            "an entity has at most one user and one client-id, or one ip",
        ));
    }
    remote.wait(remote.client().alter_quota(&entity, limits))?;
    let quotas = remote.wait(remote.client().quotas())?;
    let quota = quotas.into_iter().find(|quota| quota.entity == entity);
    let quota = quota.unwrap_or_else(|| Quota {
        entity: entity.clone(),
        limits: Default::default(),
    });
    let sentence = format_args!("{done} of {}", sentence(&entity));
    report(is_json, &document(&quota), sentence)
}

fn sentence(entity: &QuotaEntity) -> String {
    let parts = entity.iter().map(|(kind, name)| {
        let name = name.as_deref().unwrap_or(ALL);
        format!("{}={name}", kind.name())
    });
    parts.collect::<Vec<_>>().join(" ")
}

fn document(quota: &Quota) -> Value {
    let entity = quota.entity.iter().map(|(kind, name)| {
        let name = name.as_deref().unwrap_or(ALL);
        (kind.name().to_owned(), name.into())
    });
    let limit = |name| quota.limits.get(name).map(|limit| *limit as u64);
    json!({
        "entity": Value::Object(entity.collect::<Map<_, _>>()),
        "produce_bytes": limit(PRODUCED),
        "consume_bytes": limit(CONSUMED),
        "connections": limit(CONNECTED),
    })
}

fn print_quotas(quotas: &[Quota], is_json: bool) -> anyhow::Result<()> {
    if is_json {
        let quotas: Vec<Value> = quotas.iter().map(document).collect();
        return print_json(&json!({ "quotas": quotas }));
    }
    let mut table = Table::new(&[
        ("entity", Align::Left),
        ("produce/s", Align::Right),
        ("consume/s", Align::Right),
        ("connections/s", Align::Right),
    ]);
    for quota in quotas {
        let limit = |name| quota.limits.get(name).map(|limit| *limit as u64);
        let bytes = |name| limit(name).map(|bytes| ByteSize(bytes).to_string());
        table.row([
            sentence(&quota.entity),
            bytes(PRODUCED).unwrap_or_default(),
            bytes(CONSUMED).unwrap_or_default(),
            limit(CONNECTED).map(grouped).unwrap_or_default(),
        ]);
    }
    table.print()
}
