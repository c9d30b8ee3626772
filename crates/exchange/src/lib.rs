//! Carries bytes between ranks: the processes or threads that run the parts of one flow.
//!
//! A *rank* is one of several that run the same program on the same graph; none of them is special. From each operator
//! of a rank to each of another there may be a channel, with a [`Sender`] on one end and a [`Receiver`] on the other.
//! Each message on a channel arrives whole, once and in order.
//!
//! **Only the beginning and the end wait.** [`Sender::send`] and [`Receiver::take`] return at once, and
//! [wakers](std::task::Waker) signal further work. Credits bound the memory: each channel's credit limits the bytes
//! that are in flight or held by the receiver, and dropping a message gives its credit back.
//!
//! **All begin together, and all end together.** [`Ranks::agree`] returns when every rank has announced the same
//! fingerprint. [`Ranks::fail`] aborts all ranks with one message; the death of a rank and a protocol violation do,
//! too. [`Ranks::leave`] returns when all have called it.
//!
//! Ranks are threads of one process ([`Ranks::threads`]), or processes under MPI (`Ranks::mpi`, with the feature
//! `mpi`), or a single one ([`Ranks::alone`]), which needs nothing of either.
//!
//! ```
//! use std::thread;
//! use millstream_exchange::{ChannelId, ExchangeError, Fingerprint, Ranks};
//!
//! const WORDS: ChannelId = ChannelId { source: 1, target: 2 };
//! const CREDIT: u64 = 1 << 20;
//!
//! fn run(ranks: Ranks) -> Result<(), ExchangeError> {
//!     // Make the channels first, so that no rank sends to a channel that does not exist yet.
//!     let other = 1 - ranks.rank();
//!     let mut sender = ranks.sender(other, WORDS, CREDIT);
//!     let mut receiver = ranks.receiver(other, WORDS, CREDIT);
//!     ranks.agree(Fingerprint { program: "example 1".into(), ..Fingerprint::default() }, 42)?;
//!
//!     sender.send(format!("hello from rank {}", ranks.rank())).expect("there is room");
//!     let message = loop {
//!         match receiver.take()? {
//!             Some(message) => break message,
//!             None => thread::yield_now(), // or sleep, until the receiver's waker is woken
//!         }
//!     };
//!     assert_eq!(*message, *format!("hello from rank {other}").as_bytes());
//!     ranks.leave()
//! }
//!
//! let ranks = Ranks::threads(2);
//! let threads: Vec<_> = ranks.into_iter().map(|ranks| thread::spawn(move || run(ranks))).collect();
//! for thread in threads {
//!     thread.join().unwrap()?;
//! }
//! # Ok::<(), ExchangeError>(())
//! ```

mod credit;
mod endpoint;
mod environment;
mod error;
mod fate;
mod fingerprint;
#[cfg(any(test, feature = "mpi"))]
mod frame;
mod gathering;
#[cfg(feature = "mpi")]
mod mpi;
mod parcel;
mod ranks;
mod receiver;
mod sender;
mod threads;

pub use crate::credit::{MESSAGE_BYTES_MAX, MESSAGE_OVERHEAD_BYTES};
pub use crate::environment::cpus_of_task;
pub use crate::error::{ExchangeError, SendError};
pub use crate::fingerprint::{DESCRIPTION_BYTES_MAX, Fingerprint, PROGRAM_BYTES_MAX};
pub use crate::parcel::ChannelId;
pub use crate::ranks::{ChannelCount, Counters, Ranks};
pub use crate::receiver::{Message, Receiver};
pub use crate::sender::Sender;
