//! The applications, or shared groups, that have been handed groups.

use std::collections::HashSet;
use std::sync::Arc;

use millstream_base::StreamId;
use millstream_log::{Log, LogError, SharedGroup, Stream};
use millstream_wire::ResponseError;
use parking_lot::Mutex;

use super::find::unknown_id;
use super::refused::Refused;

/// The most applications since the broker started, over all streams: their state stays in memory.
const APPLICATIONS_MAX: usize = 10_000;

/// The applications that have been handed groups.
#[derive(Default)]
pub struct Applications {
    known: Mutex<HashSet<(StreamId, String)>>,
}

impl Applications {
    /// Returns the application of this name. Creates it if it does not exist and there is room for
    /// it.
    pub fn open(
        &self,
        log: &Log,
        stream: &Stream,
        name: &str,
    ) -> Result<Arc<SharedGroup>, Refused> {
        let application = {
            let mut known = self.known.lock();
            let key = (stream.id(), name.to_owned());
            if !known.contains(&key) && known.len() >= APPLICATIONS_MAX {
                known.retain(|(id, _)| log.stream_by_id(*id).is_ok());
                if known.len() >= APPLICATIONS_MAX {
                    return Err(Refused::new(
                        ResponseError::ThrottlingQuotaExceeded,
                        format!("there are {APPLICATIONS_MAX} applications already"),
                    ));
                }
            }
            let application = application(log, stream, name)?;
            known.insert(key);
            application
        };
        // Another stream may have the name by now.
        match stream.is_deleted() {
            true => Err(unknown_id(stream.id())),
            false => Ok(application),
        }
    }

    /// Returns the application of this name, if it was handed any group.
    pub fn find(
        &self,
        log: &Log,
        stream: &Stream,
        name: &str,
    ) -> Result<Option<Arc<SharedGroup>>, Refused> {
        let is_known = self.known.lock().contains(&(stream.id(), name.to_owned()));
        match is_known {
            true => self.open(log, stream, name).map(Some),
            false => Ok(None),
        }
    }
}

fn application(log: &Log, stream: &Stream, name: &str) -> Result<Arc<SharedGroup>, Refused> {
    let application = log.shared_group(stream.name(), name);
    application.map_err(|error| match error {
        LogError::BadName { .. } => Refused::new(ResponseError::InvalidGroupId, error.to_string()),
        LogError::UnknownStream { .. } => unknown_id(stream.id()),
        error => error.into(),
    })
}
