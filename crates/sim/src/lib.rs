//! A simulated machine for tests. Its disk loses, tears and refuses the same writes as a real one, its
//! clock stands still until a test advances it, and its randomness comes from a seed.
//!
//! A test runs code on a [`SimDisk`], crashes the machine at some operation, and lets the code
//! recover from the disk that [`SimDisk::crash`] returns:
//!
//! ```
//! use std::path::Path;
//! use millstream_base::disk::{Access, Disk};
//! use millstream_sim::{Rng, SimDisk};
//!
//! let disk = SimDisk::new(1);
//! let file = disk.open(Path::new("/kept"), Access::Create)?;
//! file.write_at(b"every byte", 0)?;
//! file.sync()?;
//! disk.sync_dir(Path::new("/"))?;
//! disk.open(Path::new("/unnamed"), Access::Create)?.sync()?;
//!
//! let mut rng = Rng::with_seed(2);
//! let left = disk.crash(&mut rng);
//! assert_eq!(left.read_file("/kept")?, b"every byte");
//! # Ok::<(), std::io::Error>(())
//! ```

mod clock;
mod disk;
mod file;
mod image;
mod notes;
mod random;
mod seeds;
mod trace;

/// The seeded generator of all random choices; [`Rng::fork`] makes further generators from it.
pub use fastrand::Rng;

pub use clock::SimClock;
pub use disk::{CrashImage, FILE_BYTES_MAX, SimDisk};
pub use file::SECTOR_BYTES;
pub use notes::Notes;
pub use random::SimRandom;
pub use seeds::for_each_seed;
pub use trace::{Operation, OperationKind};
