//! The values of a keyed stream by their keys, in the process or of a server.

use std::sync::atomic::AtomicBool;

use millstream_client::KeyRecord;
use millstream_flow::{BoxError, KeyLookup};

use super::log::LogKeys;
use super::server::ServerKeys;

/// Looks up keys of a keyed stream of a log in the process, or of a server.
pub struct AnyKeys(Place);

enum Place {
    Log(LogKeys),
    Server(ServerKeys),
}

impl From<LogKeys> for AnyKeys {
    fn from(keys: LogKeys) -> AnyKeys {
        AnyKeys(Place::Log(keys))
    }
}

impl From<ServerKeys> for AnyKeys {
    fn from(keys: ServerKeys) -> AnyKeys {
        AnyKeys(Place::Server(keys))
    }
}

impl KeyLookup for AnyKeys {
    fn name(&self) -> String {
        match &self.0 {
            Place::Log(keys) => format!("stream {}", keys.stream().name()),
            Place::Server(keys) => format!("stream {}", keys.stream()),
        }
    }

    fn get(
        &self,
        keys: &[Vec<u8>],
        is_stopped: &AtomicBool,
    ) -> Result<Vec<Option<Vec<u8>>>, BoxError> {
        let values = match &self.0 {
            Place::Log(log) => log.get(keys, |_, version| Ok(version.value.to_vec())),
            Place::Server(server) => server.wait(is_stopped, server.get(keys)).map(|found| {
                let found = found.into_iter();
                let value = |found: KeyRecord| found.newest.value.to_vec();
                found.map(|found| found.map(value)).collect()
            }),
        };
        values.map_err(|error| format!("{}: {error}", self.name()).into())
    }
}
