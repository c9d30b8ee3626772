//! The one place that atomics come from, so that loom can take their place and walk through the
//! interleavings (`RUSTFLAGS="--cfg loom"`).

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

/// Locks what no panic can leave half changed: nothing of the user's runs under the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Stands beside memory that has one owner at a time. Says that its owner uses it now; loom then
/// checks that every earlier use happened before. Costs nothing otherwise.
#[derive(Default)]
pub struct Track {
    #[cfg(loom)]
    cell: loom::cell::UnsafeCell<()>,
}

impl Track {
    #[inline(always)]
    pub fn owner(&self) {
        #[cfg(loom)]
        self.cell.with_mut(|_| ());
    }

    /// The same for memory that many may read until one owns it.
    #[inline(always)]
    pub fn reader(&self) {
        #[cfg(loom)]
        self.cell.with(|_| ());
    }
}

/// Alone on its cache lines (two, since processors fetch them in pairs).
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

/// Numbers that each thread has for itself. In a model all threads are one thread of the system, which
/// runs it many times: there they belong to a model's thread, and are new each time.
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
