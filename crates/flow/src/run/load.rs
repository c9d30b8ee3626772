//! The load of a flow: more workers for more work, and the periodic adjustment of schedulers and rings.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Wake;
use std::time::Duration;

use crate::run::scheduler::Stages;
use crate::run::workers::Workers;
use crate::stage::metrics::SLICE_NS;

/// The work for other workers at which a worker wakes one: enough to be worth waking a thread for.
const HELP_NS: f64 = 100_000.0;

/// The figures of the last adjustment.
pub(super) struct Adjusted {
    pub(super) at: Duration,
    /// By stage.
    pub(super) items_in: Vec<u64>,
}

impl Workers {
    /// Wakes or starts another worker if there is enough for it to do.
    pub(super) fn call_for_help(self: &Arc<Self>, rings: u64, now: Duration) {
        let has_sleepers = self.doorbell.has_sleepers();
        let count = self.count();
        let count_max = self.count_max.load(Ordering::Acquire);
        if !has_sleepers && count >= count_max {
            return;
        }
        let free = self.stages.iter().filter(|stage| stage.has_free_instance());
        let now_ns = now.as_nanos() as u64;
        let waiting_ns = free.map(|stage| stage.waiting_ns(rings, now_ns));
        // This worker takes a slice itself.
        if waiting_ns.sum::<f64>() < HELP_NS + SLICE_NS as f64 {
            return;
        }
        // More workers than slots are there since their code waits: then they lose their slots.
        let is_for_waiting = count_max > self.member.pool().slots().get();
        if !is_for_waiting && !self.member.has_room() {
            return;
        }
        if has_sleepers {
            self.doorbell.wake_by_ref();
        } else if self
            .count
            .compare_exchange(count, count + 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
            && self.spawn_new().is_err()
        {
            // The machine gives no more threads; the existing ones do the work.
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(super) fn adjust_if_due(&self, now: Duration) {
        self.doorbell.ring_if_due(now);
        let due_ns = self.adjust_at_ns.load(Ordering::Relaxed);
        let next_ns = (now + self.interval).as_nanos() as u64;
        if now.as_nanos() as u64 >= due_ns
            && self
                .adjust_at_ns
                .compare_exchange(due_ns, next_ns, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.adjust(now);
        }
    }

    /// Something has happened. Looking for work is nothing: workers that wake each other to look would
    /// never settle.
    pub(super) fn unsettle(&self) {
        if self.settled.load(Ordering::Relaxed) {
            self.settled.store(false, Ordering::Relaxed);
        }
    }

    /// Measures throughput, gives back the memory of idle rings, and lets the scheduler adjust.
    fn adjust(&self, now: Duration) {
        let mut adjusted = self.adjusted.lock();
        let seconds = now.saturating_sub(adjusted.at).as_secs_f64();
        adjusted.at = now;
        // Anything that happens from here on unsettles again.
        self.settled.store(true, Ordering::Relaxed);
        let mut is_settled = true;
        for (stage, before) in self.stages.iter().zip(&mut adjusted.items_in) {
            let counters = stage.counters();
            let items_in = counters.items_in();
            let items = items_in - std::mem::replace(before, items_in);
            counters.throughput.set(items as f64 / seconds.max(1e-9));
            is_settled &= items == 0;
            if let (0, Some(channel)) = (items, stage.input()) {
                for ring in &channel.rings {
                    is_settled &= !ring.shrink();
                }
            }
        }
        drop(adjusted);
        let rings = self.doorbell.rings();
        self.scheduler.adjust(&Stages {
            stages: &self.stages,
            tried: &vec![false; self.stages.len()],
            rings,
            turn: 0,
        });
        if !is_settled {
            self.unsettle();
        }
    }
}
