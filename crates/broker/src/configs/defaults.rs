//! The defaults of topics that were changed while the broker runs.

use millstream_log::Log;

use super::change::Own;
use super::setting::{Found, Source};
use super::store::{ConfigStore, Kind};
use super::topics;
use crate::config::BrokerConfig;

/// The name of all brokers together.
pub const ALL_BROKERS: &str = "";

/// The settings that administrators changed for this broker, and for all brokers.
pub struct Changed {
    pub this: Own,
    pub all: Own,
}

impl Changed {
    pub fn of(store: &ConfigStore, config: &BrokerConfig) -> Changed {
        Changed {
            this: store.own(Kind::Broker, &config.node_id.to_string()),
            all: store.own(Kind::Broker, ALL_BROKERS),
        }
    }

    pub fn value(&self, name: &str) -> Option<&str> {
        let value = self.this.get(name).or_else(|| self.all.get(name));
        value.map(String::as_str)
    }

    pub fn found(&self, name: &'static str) -> impl Iterator<Item = Found> {
        let places = [
            (Source::Broker, &self.this),
            (Source::AllBrokers, &self.all),
        ];
        places.into_iter().filter_map(move |(source, own)| {
            Some(Found {
                source,
                name,
                value: own.get(name)?.clone(),
            })
        })
    }
}

/// Applies the changed defaults to topics without settings of their own.
pub fn use_defaults(log: &Log, store: &ConfigStore, config: &BrokerConfig) {
    let changed = Changed::of(store, config);
    let defaults = topics::defaults(|name| changed.value(name));
    log.set_defaults(defaults);
}
