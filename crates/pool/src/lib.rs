//! The processors of a process, shared by its flows and its background work.
//!
//! A [`Pool`] has as many *slots* as there are processors. A thread that computes takes a slot first, and offers it to
//! others between two short pieces of work. So no more threads run than there are processors, and the pool decides which
//! ones: latency-critical work first, and within a [`Class`] by the shares of the members (after the slots and queues of
//! in-memory web objects, section 3.3). Threads stay where they are; only the right to run moves. A thread that sleeps
//! gives its slot back, so an idle pool takes no processor time.
//!
//! A thread that holds a slot and has not offered it for [`STALL`] is taken for blocked, by a disk or by code of the user: its
//! slot goes to another thread, and it waits for a new one afterwards. So no member can hold up the others, and
//! threads that wait for each other with slots in hand go on.
//!
//! ```
//! use std::num::NonZeroUsize;
//! use std::thread;
//!
//! use millstream_pool::{Class, Pool};
//!
//! let pool = Pool::new(NonZeroUsize::MIN);
//! let member = pool.join("sums", Class::BestEffort, NonZeroUsize::MIN);
//! let mut seat = member.seat();
//! let worker = thread::spawn(move || {
//!     seat.take();
//!     let mut sum = 0;
//!     for number in 0..1000_u64 {
//!         sum += number;
//!         seat.offer();
//!     }
//!     sum
//! });
//! assert_eq!(worker.join().unwrap(), 499_500);
//! assert_eq!(pool.view()[0].holding, 0);
//! ```

mod admission;
mod class;
mod controller;
mod objective;
mod pool;
mod schedule;
mod seat;
mod supervisor;

pub use self::class::Class;
pub use self::controller::{COMES_BACK_BELOW, FULL, Level, Reason};
pub use self::objective::Objective;
pub use self::pool::{Member, MemberView, Pool, PoolView};
pub use self::schedule::{SLICE, STARVING};
pub use self::seat::{STALL, Seat};
pub use self::supervisor::{ACTIVATION_MAX, Decision, Measured, Meter, ObjectiveView};
