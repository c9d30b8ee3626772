//! Ranks that are processes under MPI, started by `mpirun` or SLURM's `srun`.
//!
//! MPI has nothing to sleep on, and its libraries are slow when many threads call them. So each rank has one thread,
//! the messenger, that makes all calls: it sends the parcels that other threads post, and delivers those that arrive.
//! While there is traffic it polls; then it sleeps, for longer and longer, and wakes at once for a parcel posted here.
//!
//! The launcher detects the death of a process, and ends all others: MPI's own error handler stays in place.

mod messenger;
mod outbox;
mod peer;
mod world;

use std::sync::{Arc, mpsc};
use std::thread;

use self::messenger::Messenger;
use self::outbox::Outbox;
use self::world::World;
use crate::endpoint::Endpoint;
use crate::error::ExchangeError;

/// Returns the endpoint of this process's rank. MPI ends with it, and begins only once in a process.
///
/// # Errors
/// When MPI cannot begin, or reports another number of ranks than expected.
pub fn endpoint(expected: Option<u32>) -> Result<Arc<Endpoint>, ExchangeError> {
    let (begun, endpoint) = mpsc::sync_channel(1);
    let run = move || match begin(expected) {
        Ok(messenger) => {
            // The receiver waits for this message, so it still exists.
            let _ = begun.send(Ok(messenger.endpoint()));
            messenger.run();
        }
        Err(error) => {
            let _ = begun.send(Err(error));
        }
    };
    thread::Builder::new()
        .name("messenger".to_owned())
        .spawn(run)
        .map_err(|error| failed(&format!("no thread for its messages: {error}")))?;
    endpoint
        .recv()
        .unwrap_or_else(|_| Err(failed("it ended while it began")))
}

fn begin(expected: Option<u32>) -> Result<Messenger, ExchangeError> {
    let world = World::initialize().map_err(|what| failed(&what))?;
    let (rank, count) = (world.rank(), world.count());
    if let Some(expected) = expected.filter(|expected| *expected != count) {
        return Err(failed(&format!(
            "{expected} tasks were started, and it knows of {count}: \
             start them with the mpirun of the same MPI, or with srun --mpi=pmix (or pmi2)"
        )));
    }
    let outbox = Arc::new(Outbox::new());
    let endpoint = Arc::new(Endpoint::new(rank, count, outbox.clone()));
    Ok(Messenger::new(world, endpoint, outbox))
}

fn failed(what: &str) -> ExchangeError {
    ExchangeError::Mpi {
        message: what.into(),
    }
}
