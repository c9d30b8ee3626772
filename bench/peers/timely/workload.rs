//! The events of the application, from its own source.

#[path = "../../../apps/ads/src/workload/mod.rs"]
pub mod workload;
