//! Lookups of the values that keys had when a hold was made.

use std::sync::Arc;

use millstream_base::{Offset, partition_of_key};

use crate::error::{LogError, Result};
use crate::handle::stream::Stream;
use crate::hold::{Hold, ListedHold, unknown};
use crate::read::keys::version::KeyVersion;

impl Stream {
    /// Returns its holds, by name.
    pub fn holds(&self) -> Vec<ListedHold> {
        self.stream.listed_holds(self.core.clock.now())
    }

    /// Returns the names of its holds.
    pub fn hold_names(&self) -> Vec<String> {
        let now = self.core.clock.now();
        let holds = self.stream.shared.holds.all().into_iter();
        let holds = holds.filter(|hold| !hold.is_over(now));
        holds.map(|hold| hold.name.clone()).collect()
    }

    /// Returns the hold of a name.
    ///
    /// # Errors
    /// When there is none, or its time is over.
    pub fn hold(&self, name: &str) -> Result<Arc<Hold>> {
        let found = self.stream.shared.holds.get(name);
        let found = found.filter(|(_, hold)| !hold.is_over(self.core.clock.now()));
        let (_, hold) = found.ok_or_else(|| unknown(self.name(), name))?;
        Ok(hold)
    }

    /// Returns the version that a key had when a hold was made; `None` if it had none, or one that has ended by now.
    ///
    /// # Errors
    /// When there is no such hold, or retention has removed records since, and as [`Stream::get`].
    pub fn get_at_hold(&self, key: &[u8], hold: &str) -> Result<Option<KeyVersion>> {
        let hold = self.hold(hold)?;
        let partitions = self.partition_count();
        if partitions != hold.partitions {
            return Err(LogError::HoldOutgrown {
                stream: self.name().to_owned(),
                name: hold.name.clone(),
                then: hold.partitions,
                now: partitions,
            });
        }
        let partition = partition_of_key(key, partitions as usize) as u32;
        match hold.end_of(partition) {
            Offset(0) => Ok(None),
            Offset(end) => self.partition(partition)?.get_at(key, Offset(end - 1)),
        }
    }
}
