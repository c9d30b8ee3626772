//! The events of the application, from its own source: it stands on nothing else.

#[path = "../../../apps/ads/src/workload/mod.rs"]
pub mod workload;
