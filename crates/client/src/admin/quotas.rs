//! Quotas: the limits of users, client ids and addresses.

use std::collections::BTreeMap;

use millstream_wire::messages::alter_client_quotas_request::{EntityData, EntryData, OpData};
use millstream_wire::messages::{AlterClientQuotasRequest, DescribeClientQuotasRequest};

use crate::client::{Client, text};
use crate::error::ClientError;

/// The kind of a part of an entity that has limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaKind {
    /// A user.
    User,
    /// A client id.
    ClientId,
    /// An IP address.
    Ip,
}

impl QuotaKind {
    /// All kinds.
    pub const ALL: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::ClientId, QuotaKind::Ip];

    /// Returns the kind's name in Kafka's protocol.
    pub const fn name(self) -> &'static str {
        match self {
            QuotaKind::User => "user",
            QuotaKind::ClientId => "client-id",
            QuotaKind::Ip => "ip",
        }
    }
}

/// An entity that has limits: the name of each of its parts; `None` stands for all that have no limits of their own.
pub type QuotaEntity = BTreeMap<QuotaKind, Option<String>>;

/// The limits of an entity.
#[derive(Debug, Clone, PartialEq)]
pub struct Quota {
    /// The entity.
    pub entity: QuotaEntity,
    /// The limits by their names, for example `producer_byte_rate`.
    pub limits: BTreeMap<String, f64>,
}

impl Client {
    /// Returns the limits of all entities, in their order.
    ///
    /// # Errors
    /// When no server answers, or the user may not describe limits.
    pub async fn quotas(&self) -> Result<Vec<Quota>, ClientError> {
        let answer = self.ask(DescribeClientQuotasRequest::default()).await?;
        let message = answer.error_message.as_deref();
        ClientError::check(answer.error_code, message, "listing quotas")?;
        let mut quotas = Vec::new();
        for entry in answer.entries.unwrap_or_default() {
            let parts = entry.entity.iter().filter_map(|part| {
                let mut kinds = QuotaKind::ALL.into_iter();
                let kind = kinds.find(|kind| kind.name() == part.entity_type.as_str())?;
                Some((kind, part.entity_name.as_ref().map(|name| name.to_string())))
            });
            let limits = entry.values.iter();
            quotas.push(Quota {
                entity: parts.collect(),
                limits: limits
                    .map(|limit| (limit.key.to_string(), limit.value))
                    .collect(),
            });
        }
        quotas.sort_by(|one, other| one.entity.cmp(&other.entity));
        Ok(quotas)
    }

    /// Sets limits of an entity; removes those without a value.
    ///
    /// # Errors
    /// When a limit or its value is invalid, or the user may not change limits.
    pub async fn alter_quota(
        &self,
        entity: &QuotaEntity,
        limits: &[(&str, Option<f64>)],
    ) -> Result<(), ClientError> {
        let parts = entity.iter().map(|(kind, name)| {
            EntityData::default()
                .with_entity_type(text(kind.name()))
                .with_entity_name(name.as_deref().map(text))
        });
        let changes = limits.iter().map(|(name, value)| {
            OpData::default()
                .with_key(text(name))
                .with_value(value.unwrap_or_default())
                .with_remove(value.is_none())
        });
        let entry = EntryData::default()
            .with_entity(parts.collect())
            .with_ops(changes.collect());
        let request = AlterClientQuotasRequest::default().with_entries(vec![entry]);
        for entry in self.ask(request).await?.entries {
            let message = entry.error_message.as_deref();
            ClientError::check(entry.error_code, message, "the quota")?;
        }
        Ok(())
    }
}
