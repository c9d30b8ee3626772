//! The atomics and futexes of this crate. `RUSTFLAGS="--cfg loom"` replaces them by loom's, which
//! walks through all interleavings.

use std::sync::PoisonError;

#[cfg(loom)]
pub use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
pub use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub use model::{Futex, Slot};
#[cfg(not(loom))]
pub use system::{Futex, Slot};

use crate::descriptor::DESCRIPTOR_WORDS;

/// Locks a mutex even after a panic. No user code runs under the lock, so a panic cannot leave the state half
/// changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(not(loom))]
mod system {
    use std::time::Duration;

    use rustix::io::Errno;
    use rustix::thread::futex::{self, Flags, Timespec};

    use super::{AtomicU32, AtomicU64, DESCRIPTOR_WORDS, Ordering};

    /// A word that threads of several processes can wait on.
    #[repr(transparent)]
    pub struct Futex {
        pub word: AtomicU32,
    }

    impl Futex {
        /// Waits while the word is `expected`. Returns when it is not, after a wake-up, after `timeout`,
        /// and sometimes without a reason.
        pub fn wait(&self, expected: u32, timeout: Option<Duration>) {
            // A timeout beyond the system's range counts as none.
            let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
            // Without `PRIVATE` the system finds the word by its place in the file.
            match futex::wait(&self.word, Flags::empty(), expected, timeout.as_ref()) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => (),
                Err(error) => panic!("waiting on a futex: {error}"),
            }
        }

        /// Wakes all waiters.
        pub fn wake_all(&self) {
            if let Err(error) = futex::wake(&self.word, Flags::empty(), i32::MAX as u32) {
                panic!("waking the waiters of a futex: {error}");
            }
        }
    }

    /// Room for a descriptor. The broker writes the words, and the consumer reads them; the ring's tail and
    /// progress order these accesses. The words are atomics, so a peer that breaks this order causes wrong
    /// values, which the reader checks, and no undefined behaviour.
    #[repr(C, align(128))]
    pub struct Slot {
        words: [AtomicU64; DESCRIPTOR_WORDS],
    }

    impl Slot {
        #[inline]
        pub fn write(&self, words: &[u64; DESCRIPTOR_WORDS]) {
            for (place, word) in self.words.iter().zip(words) {
                place.store(*word, Ordering::Relaxed);
            }
        }

        #[inline]
        pub fn read(&self) -> [u64; DESCRIPTOR_WORDS] {
            std::array::from_fn(|index| self.words[index].load(Ordering::Relaxed))
        }
    }
}

#[cfg(loom)]
mod model {
    use std::time::Duration;

    use loom::cell::Cell;
    use loom::sync::Condvar;

    use super::{AtomicU32, DESCRIPTOR_WORDS, Mutex, Ordering, lock};

    /// A futex that works like the system's: it compares the word under the lock under which it wakes
    /// waiters. Time does not pass in a model, so a lost wake-up shows as a deadlock.
    #[derive(Default)]
    pub struct Futex {
        pub word: AtomicU32,
        queue: Mutex<()>,
        woken: Condvar,
    }

    impl Futex {
        pub fn wait(&self, expected: u32, _timeout: Option<Duration>) {
            let queue = lock(&self.queue);
            if self.word.load(Ordering::Relaxed) == expected {
                drop(self.woken.wait(queue));
            }
        }

        pub fn wake_all(&self) {
            let _queue = lock(&self.queue);
            self.woken.notify_all();
        }
    }

    /// A slot whose cell lets loom check that it has one owner at a time.
    #[derive(Default)]
    pub struct Slot {
        words: Cell<[u64; DESCRIPTOR_WORDS]>,
    }

    impl Slot {
        pub fn write(&self, words: &[u64; DESCRIPTOR_WORDS]) {
            self.words.set(*words);
        }

        pub fn read(&self) -> [u64; DESCRIPTOR_WORDS] {
            self.words.get()
        }
    }
}
