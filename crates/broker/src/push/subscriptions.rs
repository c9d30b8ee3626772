//! The subscriptions of one connection.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::on_request::OnRequest;
use super::shared::SharedSubscription;
use crate::access::Access;
use crate::security::{Operation, Resource};

/// The subscriptions of one connection. They end with it.
#[derive(Default)]
pub struct Subscriptions {
    last: u32,
    pub open: HashMap<u32, Open>,
}

/// A subscription, and the streams that it reads.
pub struct Open {
    pub reads: Arc<Reads>,
    pub kind: Kind,
}

/// The streams that a subscription reads.
#[derive(Default)]
pub struct Reads {
    /// The number of partitions that the client has named.
    pub partitions: usize,
    pub streams: BTreeSet<String>,
    pub applications: BTreeSet<String>,
}

impl Reads {
    /// Returns whether the client may read all of them.
    pub fn are_allowed(&self, access: &Access) -> bool {
        let may_read = |resource| access.would(Operation::Read, resource);
        self.streams
            .iter()
            .all(|name| may_read(Resource::topic(name)))
            && self
                .applications
                .iter()
                .all(|name| may_read(Resource::group(name)))
    }
}

/// The way of the chunks to the client.
pub enum Kind {
    OnRequest(Arc<OnRequest>),
    Shared(SharedSubscription),
}

impl Subscriptions {
    /// Returns the streams that a subscription reads, if it exists.
    pub fn reads(&self, subscription: u32) -> Option<&Reads> {
        self.open.get(&subscription).map(|open| &*open.reads)
    }

    /// Ends all subscriptions.
    pub fn end(&mut self) {
        for (_, open) in self.open.drain() {
            open.end();
        }
    }

    /// Returns the number of partitions that the client has named, of all subscriptions together.
    pub fn partitions(&self) -> usize {
        self.open.values().map(|open| open.reads.partitions).sum()
    }

    pub fn add(&mut self, open: Open) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.open.insert(self.last, open);
        self.last
    }
}

impl Open {
    /// Ends the subscription; its pending requests are answered.
    pub fn end(self) {
        if let Kind::OnRequest(on_request) = &self.kind {
            on_request.end();
        }
    }
}
