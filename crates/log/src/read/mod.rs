//! Reading.

pub mod catch_up;
pub mod damage_reports;
pub mod fetch;
pub mod reader;
pub mod timestamps;
