//! Joins of two streams by key, without windows.

pub mod change_item;
pub mod interval;
pub mod late;
pub mod row_pairs;
pub mod versions;
