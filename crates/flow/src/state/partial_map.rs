//! A map of which each instance of an operator changes a replica of its own, as a state element.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use millstream_base::KeyRange;
use serde_json::Value as Json;

use crate::error::BoxError;
use crate::ranks::owners::KeyOwners;
use crate::state::element::{Element, PartialElement, Replica};
use crate::state::key_ref::PairRef;
use crate::state::lockable::Locked;
use crate::state::maps::MapOf;
use crate::state::partial::StateReader;
use crate::state::size::StateSize;
use crate::state::value_table::ValueTable;
use crate::state::values::{Layout, Place, SharedTable, Value, Values};
use crate::windows::{Key, of_text, text_of};

/// A partial state element that is a map from fields `F` to values `V` (iwo 2.7.2). Each instance of
/// [`update_local`](crate::Operators::update_local) reads and changes a replica of its own, as [`MapOf`], without an
/// exchange of items; readers get the values of all replicas, merged. A clone is another handle of the same element.
///
/// A changelog has a record for each entry of each replica. A flow that resumes with fewer instances keeps the replicas of
/// the others: readers find them merged as before, and no instance changes them.
pub struct PartialMap<F, V> {
    /// By the number of the replica, and the field.
    pub(crate) values: Values<(u32, F), V>,
    merge: Arc<Merge<V>>,
    owners: KeyOwners,
    rank: u32,
    ranks: u32,
    /// The number of replicas on this rank that instances have.
    replicas: Arc<AtomicU32>,
}

/// Adds the second value to the first.
type Merge<V> = dyn Fn(&mut V, &V) + Send + Sync;

impl<F, V> Clone for PartialMap<F, V> {
    fn clone(&self) -> Self {
        PartialMap {
            values: self.values.clone(),
            merge: Arc::clone(&self.merge),
            owners: self.owners.clone(),
            rank: self.rank,
            ranks: self.ranks,
            replicas: Arc::clone(&self.replicas),
        }
    }
}

impl<F: Key, V: Value> PartialMap<F, V> {
    pub(crate) fn new(
        kind: &'static str,
        place: &Place,
        merge: impl Fn(&mut V, &V) + Send + Sync + 'static,
    ) -> Self {
        PartialMap {
            values: Values::new(Layout::of_replicas(kind), place),
            merge: Arc::new(merge),
            owners: KeyOwners::new(place.ranks, place.partitions),
            rank: place.rank,
            ranks: place.ranks,
            replicas: Arc::default(),
        }
    }

    /// Returns the present value of a field over all replicas of this rank, merged; `None` if no replica has one. Instances
    /// wait while their replica is read. The function of an [`update_local`](crate::Operators::update_local) of the same
    /// element must not call this, since it would wait for itself.
    pub fn get(&self, field: &F) -> Option<V> {
        let mut sum = None;
        self.for_each_replica(|table, replica| {
            if let Some(value) = table.get(&PairRef(&replica, field)) {
                self.add(&mut sum, value);
            }
        });
        sum
    }

    /// Returns the present entries over all replicas of this rank, merged. Otherwise as [`get`](Self::get).
    pub fn merged(&self) -> HashMap<F, V> {
        let mut merged: HashMap<F, Option<V>> = HashMap::new();
        for table in self.values.tables() {
            for ((_, field), value) in table.lock().iter() {
                match merged.get_mut(field) {
                    Some(sum) => self.add(sum, value),
                    None => drop(merged.insert(field.clone(), Some(value.clone()))),
                }
            }
        }
        let entries = merged.into_iter();
        entries
            .filter_map(|(field, value)| Some((field, value?)))
            .collect()
    }

    /// Calls `each` for the replicas of this rank, with the table that has the replica. Each table is locked meanwhile.
    pub(super) fn for_each_replica(&self, mut each: impl FnMut(&ValueTable<(u32, F), V>, u32)) {
        for table in self.values.tables() {
            let table = table.lock();
            let mut next = Some(0_u32);
            while let Some(from) = next {
                // The first entry of the next replica.
                let range = KeyRange::new(from.to_be_bytes(), None);
                let replica = table.range(&range).next().map(|(_, (replica, _))| *replica);
                if let Some(replica) = replica {
                    each(&table, replica);
                }
                next = replica.and_then(|replica| replica.checked_add(1));
            }
        }
    }

    fn add(&self, sum: &mut Option<V>, value: &V) {
        match sum {
            Some(sum) => (self.merge)(sum, value),
            None => *sum = Some(value.clone()),
        }
    }
}

impl<F: Key, V: Value> Element<u32> for PartialMap<F, V> {
    type Content<'a> = MapOf<'a, u32, F, V>;
    type Partition = SharedTable<(u32, F), V>;

    fn partitions(&self) -> Option<usize> {
        Some(self.values.tables().len())
    }

    fn partition(&self, index: usize) -> Self::Partition {
        Arc::clone(&self.values.tables()[index])
    }

    #[inline]
    fn change<R>(
        &self,
        table: &mut Locked<'_, Self::Partition>,
        replica: &u32,
        change: impl FnOnce(MapOf<'_, u32, F, V>) -> R,
    ) -> Option<R> {
        Some(change(MapOf::new(table, replica)))
    }

    fn shorten<'short, 'long: 'short>(
        content: MapOf<'long, u32, F, V>,
    ) -> MapOf<'short, u32, F, V> {
        content
    }
}

impl<F: Key, V: Value> PartialElement for PartialMap<F, V> {
    fn add_replica(&self) -> Replica<Self::Partition> {
        // Numbers of the replicas of one rank are apart by the number of ranks, so each rank owns those that it adds.
        let index = self.replicas.fetch_add(1, Ordering::Relaxed);
        let number = index * self.ranks + self.rank;
        let partition = self.owners.of_replica(number).partition;
        Replica {
            number,
            table: Arc::clone(&self.values.tables()[partition]),
        }
    }
}

/// Reads the values of all replicas of this rank, merged.
impl<F: Key, V: Value> StateReader for PartialMap<F, V> {
    fn get(&self, key: &str) -> Option<Json> {
        let value = of_text(key).find_map(|field: F| self.get(&field))?;
        serde_json::to_value(value).ok()
    }

    fn keys(&self, limit: usize) -> Vec<String> {
        let mut keys = HashSet::new();
        for table in self.values.tables() {
            let table = table.lock();
            let fields = table.iter().filter_map(|((_, field), _)| text_of(field));
            for field in fields {
                if keys.len() == limit {
                    break;
                }
                keys.insert(field);
            }
        }
        keys.into_iter().collect()
    }

    fn size(&self) -> StateSize {
        self.values.size()
    }

    fn save(&self) -> Result<Vec<u8>, BoxError> {
        self.values.save()
    }

    fn types(&self) -> String {
        self.values.types()
    }

    fn restore(&self, saved: &[u8]) -> Result<(), BoxError> {
        self.values.restore(saved)
    }
}
