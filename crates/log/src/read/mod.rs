//! Reading.

pub mod catch_up;
pub mod context;
pub mod damage_reports;
pub mod fetch;
pub mod group;
pub mod index_cache;
pub mod readers;
pub mod seek;
pub mod timestamps;
