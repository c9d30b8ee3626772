//! The owners of settings and of quotas, as users write them.

use std::str::FromStr;

use millstream_client::{QuotaKind, SettingsOwner};

/// The owner of settings, as users write it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// The only broker of the cluster.
    OnlyBroker,
    This(SettingsOwner),
}

impl FromStr for Owner {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Owner, Self::Err> {
        const EXPECTED: &str = "must be broker, broker/NUMBER, stream/NAME or group/NAME";
        let owner = match text.split_once('/') {
            None if text == "broker" => return Ok(Owner::OnlyBroker),
            None | Some((_, "")) => return Err(EXPECTED),
            Some(("broker", number)) => {
                SettingsOwner::Broker(number.parse().map_err(|_| EXPECTED)?)
            }
            Some(("stream", name)) => SettingsOwner::Stream(name.to_owned()),
            Some(("group", name)) => SettingsOwner::Group(name.to_owned()),
            Some(_) => return Err(EXPECTED),
        };
        Ok(Owner::This(owner))
    }
}

/// A setting with its new value: `retention.ms=1000`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    pub name: String,
    pub value: String,
}

impl FromStr for Assignment {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Assignment, Self::Err> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok(Assignment {
                name: name.to_owned(),
                value: value.to_owned(),
            }),
            _ => Err("must be SETTING=VALUE, for instance retention.ms=86400000"),
        }
    }
}

/// The name that stands for all that have no limits of their own.
pub const ALL: &str = "*";

/// A part of an entity that has limits: `user=alice`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntityPart {
    pub kind: QuotaKind,
    /// `None` stands for all.
    pub name: Option<String>,
}

impl FromStr for EntityPart {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<EntityPart, Self::Err> {
        const EXPECTED: &str = "must be user=NAME, client-id=NAME or ip=ADDRESS";
        let (kind, name) = text.split_once('=').ok_or(EXPECTED)?;
        let mut kinds = QuotaKind::ALL.into_iter();
        let kind = kinds.find(|known| known.name() == kind).ok_or(EXPECTED)?;
        match name {
            "" => Err(EXPECTED),
            ALL => Ok(EntityPart { kind, name: None }),
            _ => Ok(EntityPart {
                kind,
                name: Some(name.to_owned()),
            }),
        }
    }
}
