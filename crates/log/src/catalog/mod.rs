//! Catalog.

pub mod data_notes;
pub mod table;
