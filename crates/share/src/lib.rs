//! Memory that the broker shares with consumers of the same user on the same machine: they read chunks in place in the
//! broker's pool, and receive their positions through rings.
//!
//! A subscription has one shared file, made by its [`Publisher`] and opened by its [`Subscription`]: a ring of
//! [`Descriptor`]s for each source of the consumer. A descriptor holds the position of chunks in the pool; these stay
//! there until the consumer's progress shows that it has finished the descriptor. Waiters sleep on a futex and take no
//! processor time. [`layout`] describes the layout, for other languages too.
//!
//! Trust goes one way. The broker reads back from the file only the progress of each source, which it checks, and the
//! words of the bells. A consumer that writes wrong values into a bell loses only its own wake-ups. The consumer checks
//! each descriptor before it touches memory.
//!
//! ```
//! use std::time::Duration;
//! use millstream_share::{
//!     Announced, Descriptor, Kind, Mapping, Publisher, SharedFile, Subscription, Taken,
//! };
//!
//! // The broker's side.
//! let pool = SharedFile::create("pool", 4096)?;
//! let mut publisher = Publisher::create(1, 16, 42)?;
//! let descriptor = Descriptor { bytes: 100, next: 7, end: 7, ..Descriptor::new(Kind::Chunks) };
//! publisher.push(0, &descriptor)?;
//! publisher.flush(0);
//!
//! // The consumer's side, in another process.
//! let announced = Announced { identity: 42, pool_bytes: 4096, places: &[1] };
//! let (subscription, mut rings) = Subscription::open(&publisher.path(), announced)?;
//! let pool = Mapping::read_only(&pool.path(), 4096)?;
//! let Taken::Descriptor(descriptor, hold) = rings[0].take(Duration::from_secs(1))? else {
//!     panic!("nothing was handed out");
//! };
//! let chunks = pool.slice(descriptor.position, descriptor.bytes).unwrap();
//! assert_eq!(&*chunks, [0; 100]);
//! assert!(hold.is_live(), "the bytes were not reused while they were read");
//! drop(hold);
//!
//! assert_eq!(publisher.progress(0)?, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(not(all(
    target_os = "linux",
    target_endian = "little",
    target_pointer_width = "64"
)))]
compile_error!("shared memory is laid out for Linux on 64-bit little-endian machines");

mod bell;
mod descriptor;
mod file;
pub mod layout;
#[cfg_attr(loom, path = "memory_model.rs")]
mod memory;
mod publisher;
mod state;
mod subscription;
mod sync;
mod window;

pub use crate::bell::Rings;
pub use crate::descriptor::{BadDescriptor, Cursor, Descriptor, Kind};
pub use crate::file::{Mapping, OpenError, SharedFile, Slice};
pub use crate::publisher::{BadProgress, Doorbell, Full, Publisher, Rung, WAIT_MAX};
pub use crate::state::State;
pub use crate::subscription::{Announced, Broken, Hold, SourceRing, Subscription, Taken};
