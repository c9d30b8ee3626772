//! Delivery counts on their way to the ledger.
//!
//! A delivery is answered before its count is durable, so its share-partition need not be stored for it alone: the next
//! acknowledgement stores it, too, and under load comes at once. A task stores the rest.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::{Entry, ShareService};
use crate::shares::record::Key;

/// A kill of the process may take back the counts of the deliveries within this time, and within the time of a sync.
const STORED_WITHIN: Duration = Duration::from_millis(20);

/// The share-partitions whose last deliveries the ledger lacks.
#[derive(Default)]
pub struct Deliveries {
    unstored: Mutex<BTreeSet<Key>>,
    /// Rung when the first one is added.
    bell: Notify,
}

impl ShareService {
    /// Has the deliveries of a share-partition stored soon.
    pub(super) fn store_soon(&self, key: &Key, entry: &mut Entry) {
        if !std::mem::replace(&mut entry.has_unstored, true) {
            let mut unstored = self.deliveries.unstored.lock();
            if unstored.is_empty() {
                self.deliveries.bell.notify_one();
            }
            unstored.insert(key.clone());
        }
    }

    /// Stores the counts of deliveries, as long as the broker runs.
    pub async fn keep_storing_deliveries(self: Arc<Self>) {
        loop {
            self.deliveries.bell.notified().await;
            sleep(STORED_WITHIN).await;
            self.store_deliveries();
        }
    }

    /// Stores the counts of deliveries that the ledger lacks. After a failure the next change of the share-partition stores
    /// them.
    pub fn store_deliveries(&self) {
        let unstored = std::mem::take(&mut *self.deliveries.unstored.lock());
        for key in unstored {
            let Some(entry) = self.find(&key) else {
                continue;
            };
            let mut entry = entry.lock();
            if std::mem::take(&mut entry.has_unstored) && !entry.is_gone {
                // The log of the program has the failure.
                let _ = self.store(&key, Some(&entry.shares));
            }
        }
    }
}
