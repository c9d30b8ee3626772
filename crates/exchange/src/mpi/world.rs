//! The calls of MPI. Only here is memory handed to it.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem;
use std::os::raw::c_int;

use bytes::Bytes;
use mpi::Threading;
use mpi::environment::Universe;
use mpi::ffi;
use mpi::point_to_point::Message;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{AsRaw, Communicator, Equivalence, Source};

/// The kinds of MPI's messages, by their tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Frame = 1,
    /// The bytes of a long message, which the frame before has announced.
    Long = 2,
}

/// A transfer in progress. It owns the memory.
pub enum Transfer {
    Send {
        to: u32,
        bytes: Bytes,
    },
    /// `number` is the argument of [`World::receive`].
    Receive {
        from: u32,
        number: u64,
        kind: Kind,
        length: usize,
        bytes: Vec<u8>,
    },
}

/// A message that a rank sends and this one has to receive.
pub struct Announced {
    pub from: u32,
    /// `None` if the tag is of no known kind.
    pub kind: Option<Kind>,
    pub length: usize,
    message: Message,
}

impl Announced {
    /// Leaves it where it is, for ever. All ranks are about to end because of it.
    pub fn refuse(self) {
        mem::forget(self.message);
    }
}

/// MPI from its beginning to its end, and all ranks in it.
///
/// # Why no code touches MPI's memory
///
/// MPI reads or writes a transfer's memory from the call that begins it to the one that finds it complete. In between
/// no other code has it: the transfer lies in `transfers`, which is private, and is handed out only after MPI has
/// reported its request as complete. That memory does not move with the transfer, since `Bytes` and `Vec` keep theirs
/// on the heap, and it is not freed early: a `World` that is dropped with transfers in flight leaks them.
///
/// All calls come from the thread that began MPI, as `MPI_THREAD_FUNNELED` asks for: there is one `World` in a process,
/// since MPI begins only once, and it cannot go to another thread.
pub struct World {
    /// The request of the transfer at the same index.
    requests: Vec<ffi::MPI_Request>,
    transfers: Vec<Transfer>,
    /// The buffer for the indices of complete requests.
    indices: Vec<c_int>,
    communicator: SimpleCommunicator,
    /// Dropped last, which ends MPI.
    _universe: Universe,
    _on_this_thread: PhantomData<*const ()>,
}

impl World {
    /// Begins MPI.
    pub fn initialize() -> Result<World, String> {
        let (universe, threading) = mpi::initialize_with_threading(Threading::Funneled)
            .ok_or("it has begun before, and does so once in a process")?;
        if threading < Threading::Funneled {
            return Err("it was built without support for threads".to_owned());
        }
        Ok(World {
            requests: Vec::new(),
            transfers: Vec::new(),
            indices: Vec::new(),
            communicator: universe.world(),
            _universe: universe,
            _on_this_thread: PhantomData,
        })
    }

    pub fn rank(&self) -> u32 {
        self.communicator.rank().unsigned_abs()
    }

    pub fn count(&self) -> u32 {
        self.communicator.size().unsigned_abs()
    }

    /// Returns whether transfers are in flight.
    pub fn is_busy(&self) -> bool {
        !self.transfers.is_empty()
    }

    /// Begins to send. `bytes` are no more than fit into MPI's count of 31 bits.
    pub fn send(&mut self, to: u32, kind: Kind, bytes: Bytes) {
        let count = c_int::try_from(bytes.len()).expect("lengths are bounded below 2^31");
        let mut request = no_request();
        // SAFETY: `bytes` has `count` bytes, and goes into `transfers`, where it stays unchanged until the request is
        // complete. MPI checks rank and tag, and ends the process if they are wrong.
        unsafe {
            ffi::MPI_Isend(
                bytes.as_ptr().cast(),
                count,
                u8::equivalent_datatype().as_raw(),
                to as c_int,
                kind as c_int,
                self.communicator.as_raw(),
                &raw mut request,
            );
        }
        self.requests.push(request);
        self.transfers.push(Transfer::Send { to, bytes });
    }

    /// The next message that some rank sends, in the order in which each of them does.
    pub fn probe(&self) -> Option<Announced> {
        let (message, status) = self.communicator.any_process().immediate_matched_probe()?;
        let kind = [Kind::Frame, Kind::Long]
            .into_iter()
            .find(|kind| *kind as c_int == status.tag());
        // MPI reports no count for a message beyond the range of its counts.
        let count = status.count(u8::equivalent_datatype());
        let length = usize::try_from(count).unwrap_or(usize::MAX);
        Some(Announced {
            from: status.source_rank().unsigned_abs(),
            kind,
            length,
            message,
        })
    }

    /// Begins to receive.
    pub fn receive(&mut self, announced: Announced, number: u64) {
        let Announced {
            from,
            kind,
            length,
            message,
        } = announced;
        let kind = kind.expect("only messages of known kinds are received");
        let count = c_int::try_from(length).expect("it was a count of MPI");
        let mut bytes: Vec<u8> = Vec::with_capacity(length);
        let mut request = no_request();
        let mut handle = message.as_raw();
        // The call below receives it.
        mem::forget(message);
        // SAFETY: `bytes` has room for `count` bytes, and goes into `transfers`, where no code reads it until the
        // request is complete. The message was matched by a probe, and is received once.
        unsafe {
            ffi::MPI_Imrecv(
                bytes.as_mut_ptr().cast(),
                count,
                u8::equivalent_datatype().as_raw(),
                &raw mut handle,
                &raw mut request,
            );
        }
        self.requests.push(request);
        self.transfers.push(Transfer::Receive {
            from,
            number,
            kind,
            length,
            bytes,
        });
    }

    /// Returns the complete transfers, in any order.
    pub fn finish(&mut self, finished: &mut Vec<Transfer>) {
        if self.requests.is_empty() {
            return;
        }
        let count = c_int::try_from(self.requests.len()).expect("transfers are bounded");
        self.indices.resize(self.requests.len(), 0);
        let mut complete: c_int = 0;
        // SAFETY: both arrays have `count` places, and MPI may write to them as long as the call lasts. All requests
        // are active.
        unsafe {
            ffi::MPI_Testsome(
                count,
                self.requests.as_mut_ptr(),
                &raw mut complete,
                self.indices.as_mut_ptr(),
                ffi::RSMPI_STATUSES_IGNORE,
            );
        }
        let complete = usize::try_from(complete).unwrap_or(0);
        let indices = &mut self.indices[..complete];
        // Remove from the end, so that no removal changes the meaning of the next index.
        indices.sort_unstable_by(|a, b| b.cmp(a));
        for index in indices {
            let index = *index as usize;
            self.requests.swap_remove(index);
            finished.push(complete_transfer(self.transfers.swap_remove(index)));
        }
    }

    /// Ends the processes of all ranks, with exit code 1.
    pub fn abort(&self) -> ! {
        self.communicator.abort(1)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // MPI may still have them.
        mem::forget(mem::take(&mut self.transfers));
    }
}

/// Returns the value of a request before MPI sets it.
fn no_request() -> ffi::MPI_Request {
    // SAFETY: it is a constant of the MPI library.
    unsafe { ffi::RSMPI_REQUEST_NULL }
}

/// Received bytes have their length only when they are there.
fn complete_transfer(mut transfer: Transfer) -> Transfer {
    if let Transfer::Receive { bytes, length, .. } = &mut transfer {
        // SAFETY: the capacity is the length that the probe returned, and the receive of just this message, which is
        // complete, has filled it.
        unsafe { bytes.set_len(*length) };
    }
    transfer
}
