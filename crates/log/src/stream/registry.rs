//! The streams of a log, by id, by name and by identity.

use std::sync::Arc;

use hashbrown::HashMap;
use millstream_base::StreamId;
use uuid::Uuid;

use crate::lane::shared::StreamShared;
use crate::stream::{StreamKind, StreamState};

/// The streams of the log.
#[derive(Debug, Default)]
pub struct Streams {
    pub by_id: HashMap<StreamId, Arc<StreamState>>,
    pub by_name: HashMap<String, StreamId>,
    /// The identities of users' streams.
    pub by_uuid: HashMap<Uuid, StreamId>,
    pub next_id: u64,
}

impl Streams {
    pub fn add(&mut self, stream: Arc<StreamState>) {
        let shared = &stream.shared;
        self.by_name.insert(shared.name.clone(), shared.id);
        if stream.kind == StreamKind::Stream {
            self.by_uuid.insert(shared.uuid, shared.id);
        }
        self.by_id.insert(shared.id, stream);
    }

    /// Removes a deleted stream from the lookups by name and identity.
    pub fn forget_names(&mut self, shared: &StreamShared) {
        self.by_name.remove(&shared.name);
        self.by_uuid.remove(&shared.uuid);
    }
}
