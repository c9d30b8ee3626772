//! Orderly shutdown: on SIGINT, SIGTERM or SIGHUP, or on request of the program.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit;

/// The stop flag of the program; a clone shares it.
#[derive(Debug, Clone)]
pub struct Stop {
    is_set: Arc<AtomicBool>,
    /// Becomes readable on a stop and is never read, so that it wakes all waiting threads.
    wake: Arc<(UnixStream, UnixStream)>,
}

impl Stop {
    /// Set by the first SIGINT, SIGTERM or SIGHUP. A second SIGINT or SIGTERM ends the process at
    /// once. SIGHUP may come twice for one terminal that closes, and never where it was ignored
    /// when the program was started, as `nohup` does.
    pub fn on_signals() -> io::Result<Stop> {
        let stop = Stop {
            is_set: Arc::default(),
            wake: Arc::new(UnixStream::pair()?),
        };
        for signal in [SIGINT, SIGTERM] {
            // Registered first: the first signal finds the flag not set yet.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                exit::INTERRUPTED.into(),
                Arc::clone(&stop.is_set),
            )?;
            stop.set_on(signal)?;
        }
        if !is_ignored(SIGHUP) {
            stop.set_on(SIGHUP)?;
        }
        Ok(stop)
    }

    fn set_on(&self, signal: i32) -> io::Result<()> {
        signal_hook::flag::register(signal, Arc::clone(&self.is_set))?;
        signal_hook::low_level::pipe::register(signal, self.wake.1.try_clone()?)?;
        Ok(())
    }

    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    pub fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
        // A full socket already wakes all waiting threads.
        let _ = io::Write::write(&mut &self.wake.1, &[0]);
    }

    /// Waits until data can be read; returns `false` on a stop.
    pub fn wait_readable(&self, input: BorrowedFd<'_>) -> io::Result<bool> {
        if self.is_set() {
            return Ok(false);
        }
        let mut fds = [
            PollFd::from_borrowed_fd(input, PollFlags::IN),
            PollFd::from_borrowed_fd(self.wake.0.as_fd(), PollFlags::IN),
        ];
        wait(&mut fds, None)?;
        Ok(!self.is_set())
    }

    /// Waits for this time; returns `false` on a stop.
    pub fn sleep(&self, duration: Duration) -> io::Result<bool> {
        if !self.is_set() {
            let mut fds = [PollFd::from_borrowed_fd(self.wake.0.as_fd(), PollFlags::IN)];
            let timeout = Timespec::try_from(duration).map_err(io::Error::other)?;
            wait(&mut fds, Some(&timeout))?;
        }
        Ok(!self.is_set())
    }
}

/// Returns whether the process ignores a signal. Linux shows this in a file; if it cannot be read, the signal keeps
/// its action.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_none_or(|mask| mask & 1 << (signal - 1) != 0)
}

/// Returns early on a signal, which callers see by the flag.
fn wait(fds: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> io::Result<()> {
    match poll(fds, timeout) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
