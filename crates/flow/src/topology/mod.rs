//! The stages of a flow, joined by channels: the stages that lead to another one, cycles, and watermarks.
//!
//! This folder knows stages only by their contract.

pub mod cycles;
pub mod upstream;
pub mod watermark;
