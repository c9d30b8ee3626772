//! The memory of a log: the pool of stream data, and the budget for decompressed records.
//!
//! All bytes of streams lie in the [`pool`], in one file that consumers on the same machine can map. Each block is a
//! [`buffer`] with one writer. Slices that live long are [`pinned`] only while that leaves enough of the pool to others, and
//! copied otherwise. All that is decompressed or rebuilt
//! lies in a lease of the [`decompression`] budget.
//!
//! Memory knows blocks, and neither lanes nor files.

pub mod buddy;
pub mod buffer;
pub mod decompression;
pub mod pinned;
pub mod pool;
