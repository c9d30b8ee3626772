//! Memory of requests that are being worked on: bounded, and never all of it taken by large ones.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Memory is counted in units of so many bytes.
const UNIT: usize = 1 << 10;

/// Requests up to this size have a part of the memory for themselves.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// The part of the memory that is for small requests: one in so many bytes.
const SMALL_SHARE: usize = 4;

/// Memory for requests.
pub struct Memory {
    small: Part,
    large: Part,
}

struct Part {
    free: Arc<Semaphore>,
    units: u32,
}

impl Memory {
    /// So many bytes in all.
    pub fn new(bytes: usize) -> Memory {
        let small = bytes / SMALL_SHARE;
        Memory {
            small: Part::new(small),
            large: Part::new(bytes - small),
        }
    }

    /// How many bytes are taken.
    pub fn used(&self) -> u64 {
        let used = |part: &Part| part.units as usize - part.free.available_permits();
        ((used(&self.small) + used(&self.large)) * UNIT) as u64
    }

    fn part(&self, bytes: usize) -> &Part {
        match bytes <= SMALL_BYTES_MAX {
            true => &self.small,
            false => &self.large,
        }
    }

    /// Memory for a request of so many bytes, if it can be had at once.
    pub fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let part = self.part(bytes);
        let free = Arc::clone(&part.free);
        free.try_acquire_many_owned(part.units_of(bytes)).ok()
    }

    /// Waits for memory for a request of so many bytes.
    pub async fn take(&self, bytes: usize) -> OwnedSemaphorePermit {
        let part = self.part(bytes);
        let free = Arc::clone(&part.free);
        let permit = free.acquire_many_owned(part.units_of(bytes)).await;
        permit.expect("the semaphore is never closed")
    }
}

impl Part {
    fn new(bytes: usize) -> Part {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX).max(1);
        Part {
            free: Arc::new(Semaphore::new(units as usize)),
            units,
        }
    }

    /// One that is larger than all there is waits until it is alone.
    fn units_of(&self, bytes: usize) -> u32 {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        units.clamp(1, self.units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_requests_leave_memory_for_small_ones() {
        let memory = Memory::new(4 << 20);
        let large = memory.take(100 << 20).await;
        assert!(memory.try_take(SMALL_BYTES_MAX + 1).is_none());
        let small: Vec<_> = (0..16).map(|_| memory.try_take(SMALL_BYTES_MAX)).collect();
        assert!(small.iter().all(Option::is_some));
        assert!(memory.try_take(0).is_none());
        drop(large);
        assert!(memory.try_take(3 << 20).is_some());
    }
}
