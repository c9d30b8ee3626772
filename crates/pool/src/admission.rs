//! The choice of requests that are admitted: those that would be answered within the objective.

use std::time::Duration;

use crate::objective::{Latencies, Objective};

/// A request is admitted if its predicted latency and the usual error of predictions lie within the second one of these shares
/// of the objective, since the pace may fall meanwhile. In any case it is if the prediction lies within the first one: bursts need
/// some room.
const ADMITTED_BELOW: [f64; 2] = [0.5, 0.9];

/// Predicts latencies, and learns from the real ones how far predictions are off. Without a clock, so that tests run it in simulated
/// time.
#[derive(Default)]
pub struct Admission {
    pace: Pace,
    /// By how much the last requests took longer than predicted.
    errors: Latencies,
    /// These errors at the objective's percentile.
    margin: Duration,
}

impl Admission {
    /// Returns by how much a request that came now would be answered too late, behind `waiting` others; `None` if it would not be.
    /// The first few requests show the pace.
    pub fn excess(&self, objective: &Objective, waiting: usize) -> Option<Duration> {
        let behind = self.time_behind(waiting);
        let [least, most] = ADMITTED_BELOW.map(|share| objective.within.mul_f64(share));
        let limit = most.saturating_sub(self.margin).max(least);
        (behind > limit && waiting > 0).then(|| behind - limit)
    }

    /// Returns when a request would be answered that came now, behind `waiting` others; 0 before the first answer.
    pub fn time_behind(&self, waiting: usize) -> Duration {
        self.pace.time_behind(waiting)
    }

    /// A request has come while no other one waits.
    pub fn begin(&mut self, now: Duration) {
        self.pace.begin(now);
    }

    /// A request was answered, and others wait or not.
    pub fn answered(
        &mut self,
        predicted: Duration,
        latency: Duration,
        others_wait: bool,
        now: Duration,
    ) {
        self.pace.answered(others_wait, now);
        self.errors.record(latency.saturating_sub(predicted), now);
    }

    /// A request was taken back, and others wait or not.
    pub fn taken_back(&mut self, others_wait: bool) {
        self.pace.taken_back(others_wait);
    }

    /// Looks at the errors of the last predictions, some times per second.
    pub fn look(&mut self, objective: &Objective, now: Duration) {
        let error = self.errors.at(objective.percentile, now);
        self.margin = error.unwrap_or_default();
    }
}

/// Predicts how long a request would take that came now, from the pace at which others are answered.
#[derive(Default)]
struct Pace {
    /// The last answers, and the time in which they were given: that for which requests waited.
    answers: u32,
    busy: Duration,
    /// Up to when that time is counted, while requests wait.
    counted: Option<Duration>,
}

/// Of more answers than these the pace counts half.
const ANSWERS_MAX: u32 = 256;

impl Pace {
    /// A request has come while no other one waits.
    fn begin(&mut self, now: Duration) {
        self.counted = Some(now);
    }

    /// A request was answered, and others wait or not.
    fn answered(&mut self, others_wait: bool, now: Duration) {
        let since = self.counted.unwrap_or(now);
        self.busy += now.saturating_sub(since);
        self.answers += 1;
        self.counted = others_wait.then_some(now);
        if self.answers == ANSWERS_MAX {
            self.answers /= 2;
            self.busy /= 2;
        }
    }

    /// A request was taken back, and others wait or not.
    fn taken_back(&mut self, others_wait: bool) {
        if !others_wait {
            self.counted = None;
        }
    }

    /// Returns when a request would be answered behind `waiting` others; 0 before the first answer.
    fn time_behind(&self, waiting: usize) -> Duration {
        let answered = u32::try_from(waiting + 1).unwrap_or(u32::MAX);
        self.busy.saturating_mul(answered) / self.answers.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_pace_is_that_of_the_time_in_which_requests_wait() {
        let mut pace = Pace::default();
        assert_eq!(pace.time_behind(10), ms(0));
        // Ten are answered together.
        pace.begin(ms(1_000));
        for number in 0..10 {
            pace.answered(number < 9, ms(1_050));
        }
        assert_eq!(pace.time_behind(3), ms(20));
        // Nor does the time of a request that is taken back.
        pace.begin(ms(2_000));
        pace.taken_back(false);
        pace.answered(false, ms(3_000));
        assert_eq!(pace.time_behind(10), ms(50));
        // A silence does not count, and older answers count less and less.
        let mut now = ms(60_000);
        pace.begin(now);
        for _ in 0..2_000 {
            now += ms(1);
            pace.answered(true, now);
        }
        assert_eq!(pace.time_behind(99).as_millis(), 100);
    }

    #[test]
    fn the_bound_leaves_room_for_the_usual_error() {
        let objective = Objective::p99(ms(100));
        // The number of requests that may wait, at a pace of one in each millisecond.
        let admitted = |error: u64| {
            let mut admission = Admission::default();
            admission.begin(ms(0));
            for number in 1..=500 {
                admission.answered(ms(5), ms(5 + error), true, ms(number));
            }
            admission.look(&objective, ms(500));
            let mut waiting = 1..200;
            waiting.find(|waiting| admission.excess(&objective, *waiting).is_some())
        };
        assert_eq!(admitted(0), Some(90));
        assert!(admitted(30).is_some_and(|waiting| (58..=60).contains(&waiting)));
        // A long stall that has nothing to do with the queue leaves room for bursts.
        assert_eq!(admitted(500), Some(50));
    }
}
