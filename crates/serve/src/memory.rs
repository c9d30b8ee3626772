//! The bounds of the memory of all unsent answers, of all bodies of requests, and of large events.

use std::sync::Arc;

use axum::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit, in bytes, of permits.
const UNIT_BYTES: usize = 1 << 10;

/// Memory that requests share.
pub struct Memory {
    units: u32,
    free: Arc<Semaphore>,
}

impl Memory {
    pub fn new(bytes: usize) -> Memory {
        let units = (bytes / UNIT_BYTES) as u32;
        Memory {
            units,
            free: Arc::new(Semaphore::new(units as usize)),
        }
    }

    /// Takes memory, if it is free. A request for more than the whole memory takes all of it.
    pub fn take(&self, bytes: usize) -> Option<Room> {
        let free = Arc::clone(&self.free);
        let permit = free.try_acquire_many_owned(self.units_of(bytes)).ok()?;
        Some(Room { _permit: permit })
    }

    /// As [`take`](Self::take), and waits until the memory is free. `None` only if the program is ending.
    pub async fn wait(&self, bytes: usize) -> Option<Room> {
        let free = Arc::clone(&self.free);
        let permit = free.acquire_many_owned(self.units_of(bytes)).await.ok()?;
        Some(Room { _permit: permit })
    }

    fn units_of(&self, bytes: usize) -> u32 {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        units.min(self.units)
    }
}

/// Memory that was taken; it is free again when this is dropped.
pub struct Room {
    _permit: OwnedSemaphorePermit,
}

impl Room {
    /// Returns the bytes, which hold this memory until the last of their slices is dropped.
    pub fn hold(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(Held { bytes, _room: self })
    }
}

struct Held<B> {
    bytes: B,
    _room: Room,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Held<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_bytes_hold_their_memory() {
        let memory = Memory::new(3 << 10);
        let held = memory.take(2_000).unwrap().hold(vec![7; 2_000]);
        let slice = held.slice(1..2);
        drop(held);
        assert!(memory.take(1_025).is_none());
        let rest = memory.take(1_024).unwrap();
        drop(slice);
        assert!(memory.take(usize::MAX).is_none());
        drop(rest);
        // More than all of it.
        assert!(memory.take(usize::MAX).is_some());
    }
}
