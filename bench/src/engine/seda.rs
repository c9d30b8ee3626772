//! SEDA's batching controller as a scheduler, for comparison (Welsh, Culler, Brewer, "SEDA", section 4.2; Ordo, section
//! 2.7.2).

use std::sync::Arc;
use std::time::Duration;

use millstream_flow::{FlowSettings, Pick, Scheduler, Stages};
use parking_lot::Mutex;

use super::ours::{self, WORKERS};

/// Items of a batch at most, and at first.
const BATCH_MAX: f64 = 1024.0;

/// How much a batch is made smaller while the stage keeps its output rate, and how little larger after it did not.
const SHRINK: f64 = 0.8;
const GROW: f64 = 1.1;

/// A loss of the output rate below the first bound counts as none; one above the second is a drop of the load, which
/// resets the batch to its first size.
const LOSS_MIN: f64 = 0.02;
const LOSS_MAX: f64 = 0.5;

/// The part of a new observation in the moving average of the output rate.
const WEIGHT: f64 = 0.3;

/// How often the controller observes: a phase of the benchmarks has dozens of it.
const INTERVAL: Duration = Duration::from_millis(20);

/// All stages in turn, as the operating system would give each stage's threads theirs; how many items a stage processes
/// in its turn is up to a controller of its own, which sees the stage's output rate and nothing else.
#[derive(Default)]
pub struct Seda {
    /// By stage.
    controllers: Mutex<Vec<Controller>>,
}

/// Looks for the smallest batch that keeps the output rate high.
#[derive(Debug, Clone, Copy)]
struct Controller {
    batch: f64,
    /// Results per second, averaged; 0 before the first.
    rate: f64,
}

impl Controller {
    const NEW: Controller = Controller {
        batch: BATCH_MAX,
        rate: 0.0,
    };

    fn observe(&mut self, observed: f64) {
        let before = self.rate;
        self.rate = match before == 0.0 {
            true => observed,
            false => before + WEIGHT * (observed - before),
        };
        let loss = 1.0 - observed / before;
        self.batch = match loss {
            _ if before == 0.0 => self.batch,
            loss if loss > LOSS_MAX => BATCH_MAX,
            loss if loss > LOSS_MIN => self.batch * GROW,
            _ => self.batch * SHRINK,
        }
        .clamp(1.0, BATCH_MAX);
    }
}

impl Scheduler for Seda {
    fn pick(&self, stages: &Stages<'_>) -> Option<Pick> {
        let count = stages.all().len();
        // The next in turn of those that have something to do.
        let place = |index: usize| (index + count - stages.turn() % count) % count;
        let next = stages.ready().min_by_key(|stage| place(stage.index()))?;
        let controllers = self.controllers.lock();
        let batch = controllers
            .get(next.index())
            .map_or(BATCH_MAX, |controller| controller.batch);
        Some(Pick {
            items: Some(batch.round() as usize),
            ..next.pick()
        })
    }

    fn adjust(&self, stages: &Stages<'_>) {
        let mut controllers = self.controllers.lock();
        controllers.resize(stages.all().len(), Controller::NEW);
        for (stage, controller) in stages.all().zip(controllers.iter_mut()) {
            // The flow does not count the results of the last stages: there, an item in is an item out.
            let results = match stage.downstream().next() {
                Some(_) => stage.selectivity(),
                None => 1.0,
            };
            controller.observe(stage.throughput() * results);
        }
    }
}

/// Returns the settings of a flow under SEDA's controller.
pub fn seda() -> FlowSettings {
    FlowSettings {
        scheduler: Arc::new(Seda::default()),
        interval: INTERVAL,
        ..ours::settings(WORKERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_shrinks_while_the_rate_holds_grows_a_little_when_it_falls_and_is_reset_by_a_drop() {
        let mut controller = Controller::NEW;
        for _ in 0..10 {
            controller.observe(1e6);
        }
        let small = controller.batch;
        assert!(small < BATCH_MAX / 4.0, "{small}");
        controller.observe(0.9e6);
        assert!(controller.batch > small && controller.batch < 1.2 * small);
        controller.observe(0.1e6);
        assert_eq!(controller.batch, BATCH_MAX);
        // Never below one item.
        for _ in 0..100 {
            controller.observe(1e6);
        }
        assert_eq!(controller.batch, 1.0);
    }
}
