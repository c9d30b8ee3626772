//! A contender: a program that counts events in windows.

use anyhow::Result;
use millstream_ads::benchmark::{Order, Outcome};

/// Instances of the generator, worker threads, threads by hand, slots.
pub const INSTANCES: u32 = 2;

pub trait Contender {
    /// Counts as the order demands, to its end.
    fn run(&mut self, order: &Order) -> Result<Counted>;

    /// Returns whether it can run again: a process may have ended.
    fn is_alive(&mut self) -> bool {
        true
    }
}

/// A run that is over.
#[derive(Debug, Clone)]
pub struct Counted {
    pub outcome: Outcome,
    /// Of all threads, in the whole run.
    pub cpu_seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ads::by_hand::ByHand;
    use millstream_ads::benchmark::{App, Latency, Released, probe};

    fn run(app: App) -> (Order, Outcome) {
        let order = Order::of_window(100, 400_000, INSTANCES);
        let outcome = ByHand::new(app).run(&order).unwrap().outcome;
        (order, outcome)
    }

    #[test]
    fn loops_by_hand_count_all_events() {
        for app in [App::Swa, App::Ysb, App::YsbStar] {
            let (order, outcome) = run(app);
            let probe = probe(app, &order, &outcome);
            assert_eq!(probe.missing, 0, "{app:?}");
            assert!(probe.latency.p99 >= probe.latency.p50, "{probe:?}");
        }
    }

    #[test]
    fn missing_wrong_duplicate_and_unexpected_results_are_found() {
        let app = App::YsbStar;
        let (order, outcome) = run(app);
        let missing = |change: &dyn Fn(&mut Vec<Released>)| {
            let mut changed = outcome.clone();
            change(&mut changed.released);
            probe(app, &order, &changed).missing
        };
        assert_eq!(missing(&|_| {}), 0);
        assert_eq!(
            missing(&|released| {
                released.remove(0);
            }),
            1
        );
        assert_eq!(missing(&|released| released[0].clicks -= 1), 1);
        assert_eq!(missing(&|released| released[0].ratio *= 1.1), 1);
        assert_eq!(missing(&|released| released.push(released[0])), 1);
        // One key is gone, and another is not known.
        assert_eq!(missing(&|released| released[0].key = 100), 2);
    }

    #[test]
    fn a_contender_with_too_few_events_is_late() {
        let (mut order, outcome) = run(App::Swa);
        // The rate that the generator reached, on a machine that others use as well.
        let made: u64 = outcome.made.iter().flatten().map(|made| made.events).sum();
        order.rate = made * 1000 / order.duration_ms;
        assert!(probe(App::Swa, &order, &outcome).is_on_time);
        order.rate = order.rate * 103 / 100;
        assert!(!probe(App::Swa, &order, &outcome).is_on_time);
    }

    #[test]
    fn latencies_are_summed_up() {
        let latency = Latency::of((1..=200).map(f64::from).rev().collect());
        assert_eq!(
            (latency.mean, latency.p50, latency.p99),
            (100.5, 100.0, 198.0)
        );
    }
}
