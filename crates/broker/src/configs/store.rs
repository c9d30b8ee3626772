//! The settings that were changed while the broker ran, of all resources but topics, in a ledger.
//!
//! [`Writer`] defines the encoding of numbers and texts.
//!
//! ```text
//! kind  key                                          value
//! 4     broker: text, empty for all brokers          value: text
//!       setting: text
//! 16    subscription to metrics: text, setting: text value: text
//! 32    group: text, setting: text                   value: text
//! ```
//!
//! Kinds are the numbers of Kafka's protocol for resources. The settings of topics are part of their streams.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millstream_base::Clock;
use millstream_log::{Log, LogError, SETTINGS_BYTES_MAX};
use millstream_wire::ResponseError;
use parking_lot::{Mutex, RwLock};

use super::change::Own;
use super::setting::Refused;
use crate::error::response_error;
use crate::ledger::{Ledger, Reader, Record, RecordError, Writer};

/// The stream that holds the settings.
pub const LEDGER: &str = "__configs";

/// The most resources of a kind that have settings of their own.
const RESOURCES_MAX: usize = 10_000;

/// The longest name of a resource, which is that of a group.
const NAME_BYTES_MAX: usize = 4096;

/// The kinds of resources with settings in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    Broker = 4,
    ClientMetrics = 16,
    Group = 32,
}

impl Kind {
    fn of_code(code: i8) -> Option<Kind> {
        match code {
            4 => Some(Kind::Broker),
            16 => Some(Kind::ClientMetrics),
            32 => Some(Kind::Group),
            _ => None,
        }
    }
}

/// The settings by the kind and name of their resource. A resource without settings of its own has no entry.
type Stored = BTreeMap<Kind, BTreeMap<String, Own>>;

/// The stored settings.
pub struct ConfigStore {
    ledger: Arc<Ledger>,
    clock: Arc<dyn Clock>,
    stored: RwLock<Stored>,
    /// Held from the read of the stored settings until their change is durable.
    changing: Mutex<()>,
    /// The ledger is damaged: defaults count, and nothing is changed.
    is_damaged: AtomicBool,
}

impl ConfigStore {
    /// Reads the stored settings. If the ledger is damaged, the defaults apply.
    ///
    /// # Errors
    /// When the ledger cannot be read, or holds records of another kind.
    pub fn open(log: &Log, clock: Arc<dyn Clock>) -> Result<ConfigStore, LogError> {
        let ledger = Ledger::open(log, LEDGER)?;
        let (records, is_damaged) = match ledger.read() {
            Err(error @ LogError::Corrupted { .. }) => {
                tracing::error!(
                    "settings that were changed while the broker ran cannot be read, so their defaults apply: {error}"
                );
                (Vec::new(), true)
            }
            read => (read?, false),
        };
        let mut stored = Stored::new();
        for record in records {
            let (kind, name, setting, value) =
                decode(record).map_err(|error| LogError::BadSetting {
                    setting: LEDGER,
                    why: format!("the stream holds something else than settings: {error}"),
                })?;
            if let Some(value) = value {
                let of_kind = stored.entry(kind).or_default();
                of_kind.entry(name).or_default().insert(setting, value);
            }
        }
        Ok(ConfigStore {
            ledger: Arc::new(ledger),
            clock,
            stored: RwLock::new(stored),
            changing: Mutex::default(),
            is_damaged: AtomicBool::new(is_damaged),
        })
    }

    /// The own settings of a resource.
    pub fn own(&self, kind: Kind, name: &str) -> Own {
        let stored = self.stored.read();
        let own = stored.get(&kind).and_then(|of_kind| of_kind.get(name));
        own.cloned().unwrap_or_default()
    }

    /// The resources of a kind with settings of their own, ordered by name.
    pub fn names(&self, kind: Kind) -> Vec<String> {
        let stored = self.stored.read();
        let of_kind = stored.get(&kind).into_iter().flat_map(BTreeMap::keys);
        of_kind.cloned().collect()
    }

    /// Changes settings, or only checks the change. Returns when the change is durable; it applies from then on.
    /// Calls `counts` before another change begins.
    ///
    /// # Errors
    /// When `change` refuses, there is too much to keep, or the log does not take it.
    pub fn change(
        &self,
        kind: Kind,
        name: &str,
        validate_only: bool,
        change: impl FnOnce(&mut Own) -> Result<(), Refused>,
        counts: impl FnOnce(&Own),
    ) -> Result<(), Refused> {
        let _one = self.changing.lock();
        let before = self.own(kind, name);
        let mut after = before.clone();
        change(&mut after)?;
        self.check_size(kind, name, &after)?;
        if validate_only || before == after {
            return Ok(());
        }
        if self.is_damaged.load(Ordering::Relaxed) {
            let message = format!("the stream {LEDGER} is damaged, so settings cannot be changed");
            return Err(Refused::new(ResponseError::KafkaStorageError, message));
        }
        let names = before.keys().chain(after.keys());
        let changed = names.filter(|setting| before.get(*setting) != after.get(*setting));
        let records = changed.map(|setting| encode(kind, name, setting, after.get(setting)));
        let durable = self
            .ledger
            .append(Vec::from_iter(records), self.clock.now())
            .and_then(|end| self.ledger.lane().wait_durable(end));
        durable.map_err(|error| Refused::new(response_error(&error), error.to_string()))?;
        self.ledger.compact_if_due();
        let mut stored = self.stored.write();
        let of_kind = stored.entry(kind).or_default();
        match after.is_empty() {
            true => of_kind.remove(name),
            false => of_kind.insert(name.to_owned(), after.clone()),
        };
        drop(stored);
        counts(&after);
        Ok(())
    }

    fn check_size(&self, kind: Kind, name: &str, after: &Own) -> Result<(), Refused> {
        if name.len() > NAME_BYTES_MAX {
            let why = format!("the name is longer than {NAME_BYTES_MAX} bytes");
            return Err(Refused::request(why));
        }
        let bytes: usize = after
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        if bytes > SETTINGS_BYTES_MAX {
            let why = format!("the settings are larger than {SETTINGS_BYTES_MAX} bytes together");
            return Err(Refused::invalid(why));
        }
        let stored = self.stored.read();
        let is_full = stored
            .get(&kind)
            .is_some_and(|of_kind| of_kind.len() >= RESOURCES_MAX && !of_kind.contains_key(name));
        match is_full && !after.is_empty() {
            true => Err(Refused::new(
                ResponseError::PolicyViolation,
                format!("{RESOURCES_MAX} others have settings of their own already"),
            )),
            false => Ok(()),
        }
    }
}

fn encode(kind: Kind, name: &str, setting: &str, value: Option<&String>) -> Record {
    Record {
        key: Writer::key(kind as u8).text(name).text(setting).done(),
        value: value.map(|value| Writer::value().text(value).done()),
    }
}

type Decoded = (Kind, String, String, Option<String>);

fn decode(record: Record) -> Result<Decoded, RecordError> {
    let Record { key, value } = record;
    let text = |reader: &mut Reader, field| {
        let text = reader.text::<Arc<str>>(field)?;
        Ok::<String, RecordError>(text.to_string())
    };
    let value = value.map(|value| Reader::value(value, |value| text(value, "value")));
    let value = value.transpose()?;
    Reader::key(key, |key| {
        let kind = key.code("kind", Kind::of_code)?;
        Ok((kind, text(key, "name")?, text(key, "setting")?, value))
    })
}

#[cfg(test)]
mod tests {
    use millstream_base::{ByteSize, SystemClock};
    use millstream_log::LogConfig;

    use super::*;

    fn open(dir: &std::path::Path) -> (Log, ConfigStore) {
        let log = Log::open(LogConfig::with_pool(dir, ByteSize(16 << 20))).unwrap();
        let store = ConfigStore::open(&log, Arc::new(SystemClock::default())).unwrap();
        (log, store)
    }

    fn set(
        store: &ConfigStore,
        kind: Kind,
        name: &str,
        value: Option<&str>,
    ) -> Result<(), Refused> {
        let change = |own: &mut Own| {
            match value {
                Some(value) => own.insert("s".to_owned(), value.to_owned()),
                None => own.remove("s"),
            };
            Ok(())
        };
        store.change(kind, name, false, change, |_| {})
    }

    #[test]
    fn changed_settings_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (log, store) = open(dir.path());
        set(&store, Kind::Broker, "", Some("1")).unwrap();
        set(&store, Kind::Group, "g", Some("2")).unwrap();
        set(&store, Kind::Group, "h", Some("3")).unwrap();
        set(&store, Kind::Group, "h", None).unwrap();
        let checked = store.change(
            Kind::Group,
            "i",
            true,
            |own| {
                own.insert("s".to_owned(), "4".to_owned());
                Ok(())
            },
            |_| panic!("it is only checked"),
        );
        assert_eq!(checked, Ok(()));
        drop(store);
        log.close().unwrap();

        let (_log, store) = open(dir.path());
        let own = |kind, name: &str| store.own(kind, name).remove("s");
        assert_eq!(own(Kind::Broker, "").as_deref(), Some("1"));
        assert_eq!(own(Kind::Group, "g").as_deref(), Some("2"));
        assert_eq!(store.names(Kind::Group), ["g"]);
        assert_eq!(store.names(Kind::ClientMetrics), [""; 0]);
    }

    #[test]
    fn settings_that_are_too_large_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (_log, store) = open(dir.path());
        let large = "x".repeat(SETTINGS_BYTES_MAX + 1);
        let refused = set(&store, Kind::Group, "g", Some(&large)).unwrap_err();
        assert_eq!(refused.error, ResponseError::InvalidConfig);
        let name = "n".repeat(NAME_BYTES_MAX + 1);
        let refused = set(&store, Kind::Group, &name, Some("1")).unwrap_err();
        assert_eq!(refused.error, ResponseError::InvalidRequest);
        assert_eq!(store.names(Kind::Group), [""; 0]);
    }
}
