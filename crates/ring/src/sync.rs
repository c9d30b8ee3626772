//! The ring's atomics and locks. `RUSTFLAGS="--cfg loom"` replaces them by loom's, which walks
//! through all interleavings.

#[cfg(loom)]
pub use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};
use std::sync::PoisonError;
#[cfg(not(loom))]
pub use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

/// Locks a mutex even after a panic. None of the user's code runs under the lock, so a panic cannot leave
/// the value half changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports each use of memory that has one owner at a time to loom, which then checks that every earlier
/// use happened before. Costs nothing otherwise.
#[derive(Default)]
pub struct Track {
    #[cfg(loom)]
    cell: loom::cell::UnsafeCell<()>,
}

impl Track {
    /// Reports a use by the only owner.
    #[inline(always)]
    pub fn owner(&self) {
        #[cfg(loom)]
        self.cell.with_mut(|_| ());
    }

    /// Reports a read by one of several readers.
    #[inline(always)]
    pub fn reader(&self) {
        #[cfg(loom)]
        self.cell.with(|_| ());
    }
}

/// A value with two cache lines of its own, since processors fetch lines in pairs.
#[repr(align(128))]
#[derive(Default)]
pub struct Padded<T>(pub T);

impl<T> std::ops::Deref for Padded<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Declares numbers of which each thread has its own. Under loom one thread of the system plays all threads
/// of a model, many times over. There each of the model's threads has its own numbers, new in each run.
macro_rules! per_thread {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)*) => {
        #[cfg(loom)]
        loom::thread_local! {
            $($(#[$doc])* static $name: std::cell::Cell<usize> = std::cell::Cell::new($value);)*
        }
        #[cfg(not(loom))]
        std::thread_local! {
            $($(#[$doc])* static $name: std::cell::Cell<usize> =
                const { std::cell::Cell::new($value) };)*
        }
    };
}
pub(crate) use per_thread;
