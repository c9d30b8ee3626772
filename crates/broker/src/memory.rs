//! Memory of requests in progress: bounded, and never all of it in use by large ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The unit of the account, in bytes.
const UNIT: usize = 1 << 10;

/// Requests up to this size have a share of the memory for themselves.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// One of this many bytes is reserved for small requests.
const SMALL_SHARE: usize = 4;

/// The memory for decoded fields is this part of the memory for requests, and comes on top of it.
const DECODED_SHARE: usize = 4;

/// The account of the memory for requests.
pub struct Memory {
    small: Share,
    large: Share,
    /// The fields of decoded requests that have not begun. A connection takes it while it holds memory of its request,
    /// and before it waits for that of the answer, so no two connections wait for each other. It takes memory for many
    /// fields only when its earlier requests are answered, so other connections do not wait for these.
    decoded: Share,
}

struct Share {
    free: Arc<Semaphore>,
    units: u32,
    /// How many requests wait for memory.
    waiting: AtomicUsize,
}

impl Memory {
    /// Returns an account of `bytes` bytes in all, beside those of decoded fields.
    pub fn new(bytes: usize) -> Memory {
        let small = bytes / SMALL_SHARE;
        Memory {
            small: Share::new(small),
            large: Share::new(bytes - small),
            decoded: Share::new(bytes / DECODED_SHARE),
        }
    }

    /// Returns how many bytes are in use, without those of decoded fields.
    pub fn used(&self) -> u64 {
        let used = |share: &Share| share.units as usize - share.free.available_permits();
        ((used(&self.small) + used(&self.large)) * UNIT) as u64
    }

    fn share(&self, bytes: usize) -> &Share {
        match bytes <= SMALL_BYTES_MAX {
            true => &self.small,
            false => &self.large,
        }
    }

    /// Takes memory for a request of `bytes` bytes, if it is available at once.
    pub fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.share(bytes).try_take(bytes)
    }

    /// Waits for memory for a request of `bytes` bytes.
    pub async fn take(&self, bytes: usize) -> OwnedSemaphorePermit {
        self.share(bytes).take(bytes).await
    }

    /// Takes memory for the decoded fields of a request, if it is available at once.
    pub fn try_take_decoded(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.decoded.try_take(bytes)
    }

    /// Waits for memory for the decoded fields of a request.
    pub async fn take_decoded(&self, bytes: usize) -> OwnedSemaphorePermit {
        self.decoded.take(bytes).await
    }

    /// Returns whether others wait for the memory that a request of `bytes` bytes takes.
    pub fn is_wanted(&self, bytes: usize) -> bool {
        self.share(bytes).waiting.load(Ordering::Relaxed) > 0
    }
}

/// Counts a wait, however it ends.
struct Waiting<'a>(&'a Share);

impl Waiting<'_> {
    fn begin(share: &Share) -> Waiting<'_> {
        share.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(share)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Share {
    fn new(bytes: usize) -> Share {
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX).max(1);
        Share {
            free: Arc::new(Semaphore::new(units as usize)),
            units,
            waiting: AtomicUsize::new(0),
        }
    }

    fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let free = Arc::clone(&self.free);
        free.try_acquire_many_owned(self.units_of(bytes)).ok()
    }

    async fn take(&self, bytes: usize) -> OwnedSemaphorePermit {
        let free = Arc::clone(&self.free);
        let _waiting = Waiting::begin(self);
        let permit = free.acquire_many_owned(self.units_of(bytes)).await;
        permit.expect("the semaphore is never closed")
    }

    /// Returns a request's units. A request that exceeds the whole memory waits until it is alone.
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
