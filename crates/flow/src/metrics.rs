//! What each stage has done so far.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::stage::Activation;

/// Written by the workers once per activation, read by anyone at any time.
#[derive(Default)]
pub struct Counters {
    items_in: AtomicU64,
    items_out: AtomicU64,
    activations: AtomicU64,
    blocked: AtomicU64,
    idle: AtomicU64,
}

/// The counts of one stage since the flow began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StageMetrics {
    /// The stage.
    pub stage: String,
    /// Items read.
    pub items_in: u64,
    /// Items passed on to a ring or a sink.
    pub items_out: u64,
    /// Times that a worker activated the stage.
    pub activations: u64,
    /// Activations that found no room downstream.
    pub blocked: u64,
    /// Activations that found nothing to read.
    pub idle: u64,
}

impl Counters {
    pub fn add_in(&self, count: usize) {
        self.items_in.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub fn add_out(&self, count: usize) {
        self.items_out.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub fn add_activation(&self, activation: Activation) {
        self.activations.fetch_add(1, Ordering::Relaxed);
        match activation {
            Activation::Blocked => self.blocked.fetch_add(1, Ordering::Relaxed),
            Activation::Idle => self.idle.fetch_add(1, Ordering::Relaxed),
            Activation::Done(_) | Activation::Ended => 0,
        };
    }

    pub fn read(&self, stage: &str) -> StageMetrics {
        StageMetrics {
            stage: stage.to_owned(),
            items_in: self.items_in.load(Ordering::Relaxed),
            items_out: self.items_out.load(Ordering::Relaxed),
            activations: self.activations.load(Ordering::Relaxed),
            blocked: self.blocked.load(Ordering::Relaxed),
            idle: self.idle.load(Ordering::Relaxed),
        }
    }
}
