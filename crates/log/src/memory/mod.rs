//! Memory: the pool that holds stream data, and the budget for decompressed records.

pub mod buddy;
pub mod decompression;
pub mod pinned;
pub mod pool;
