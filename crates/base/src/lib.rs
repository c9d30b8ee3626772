//! The base of every other crate of Millstream: ids, units, checksums, and the traits through which all code reaches
//! clock, disk, network and randomness, so that the same code runs in production and under a simulator.

mod bucket;
pub mod checksum;
pub mod clock;
mod credentials;
mod direct;
pub mod disk;
pub mod energy;
mod error_debug;
pub mod ids;
pub mod key;
mod key_event;
mod key_range;
mod key_snapshot;
mod line_limit;
pub mod machine;
mod murmur;
mod nearest;
pub mod network;
pub mod random;
pub mod text;
pub mod units;
mod watch_positions;

pub use bucket::Bucket;
pub use checksum::crc32c;
pub use clock::{Clock, SystemClock};
pub use credentials::Credentials;
pub use disk::{Disk, DiskFile, SystemDisk};
pub use energy::EnergyMeter;
pub use ids::{
    Cursor, GroupId, LaneIndex, Offset, Position, ProducerEpoch, ProducerId, SegmentIndex,
    Sequence, StreamId, StreamletIndex, Timestamp,
};
pub use key_event::{KeyEvent, KeyedVersion, WatchFrom};
pub use key_range::KeyRange;
pub use key_snapshot::KeySnapshot;
pub use line_limit::LineLimit;
pub use murmur::{murmur2, partition_of_key};
pub use nearest::nearest;
pub use network::{Accepted, Listener, Network, TcpNetwork, is_loopback};
pub use random::{Random, SystemRandom};
pub use text::Text;
pub use units::ByteSize;
pub use watch_positions::{NoWatchPositions, WatchPosition, WatchPositions};
