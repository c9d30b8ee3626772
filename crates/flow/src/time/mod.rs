//! Event time: the watermarks of sources, the control events that carry them, and the alignment of sources.
//!
//! - A watermark never goes back.
//! - A reader observes a control event after all items that its writer wrote before it.
//! - The source that is furthest behind is never held back, so no source waits for ever.
//!
//! This folder does not know windows: they observe the watermark and close by it.

pub mod alignment;
pub mod control_event;
pub mod gauge;
pub mod partitions;
pub mod stage_time;
pub mod watermarks;
