//! The controller with the schedule in simulated time: requests beside best-effort work that slows them down.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::f64::consts::PI;

use super::*;
use crate::admission::Admission;
use crate::class::Class;
use crate::objective::{Latencies, Objective};
use crate::schedule::{Offered, Schedule, SeatId};

const SLOTS: usize = 2;
const OBJECTIVE: Objective = Objective {
    percentile: 99.9,
    within: Duration::from_millis(30),
};

/// The time of a request if nothing runs beside it.
const REQUEST: Duration = Duration::from_micros(200);

/// The time of a piece of best-effort work.
const PIECE: Duration = Duration::from_micros(50);

const REQUESTS: u64 = 0;
const ANALYTICS: u64 = 1;

/// The course of a run.
#[derive(Debug, Default)]
struct Outcome {
    admitted: u64,
    late: u64,
    refused: u64,
    /// By second: the time of slots that requests had, and that analytics had.
    seconds: Vec<[Duration; 2]>,
    /// The decisions.
    decisions: Vec<(Duration, Level, Reason)>,
}

/// A request: when it was sent, and the latency that was predicted when it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Arrival {
    sent_at: Duration,
    predicted: Duration,
}

struct World {
    schedule: Schedule,
    controller: Controller,
    latencies: Latencies,
    admission: Admission,
    queue: VecDeque<Arrival>,
    /// Pieces of work under way: when they end, the seat, and the request.
    pieces: BinaryHeap<Reverse<(Duration, SeatId, Option<Arrival>)>>,
    /// The seats of requests that sleep.
    idle: Vec<SeatId>,
    /// How much slower a request is for each slot that analytics has beside it.
    interference: f64,
    /// How long a request is on its way for each slot that analytics has then: the network's threads compete with it.
    delay: Duration,
    /// Three times in a second the machine does something else for this long.
    stall: Duration,
    is_controlled: bool,
    outcome: Outcome,
}

/// The seat of requests that are on their way.
const NETWORK: SeatId = SeatId::MAX;

impl World {
    fn new(interference: f64) -> World {
        let mut schedule = Schedule::new(SLOTS);
        schedule.join(REQUESTS, Class::Critical, 1);
        schedule.join(ANALYTICS, Class::BestEffort, 1);
        World {
            schedule,
            controller: Controller::default(),
            latencies: Latencies::default(),
            admission: Admission::default(),
            queue: VecDeque::new(),
            pieces: BinaryHeap::new(),
            idle: (0..SLOTS as SeatId).collect(),
            interference,
            delay: Duration::ZERO,
            stall: Duration::ZERO,
            is_controlled: true,
            outcome: Outcome::default(),
        }
    }

    fn is_request(seat: SeatId) -> bool {
        seat < SLOTS as SeatId
    }

    /// A seat with a slot begins its next piece of work, or sleeps.
    fn begin(&mut self, seat: SeatId, now: Duration) {
        if !Self::is_request(seat) {
            self.pieces.push(Reverse((now + PIECE, seat, None)));
            return;
        }
        match self.queue.pop_front() {
            Some(request) => {
                let slower = 1.0 + self.interference * self.beside() as f64;
                let ends_at = self.behind_stall(now) + REQUEST.mul_f64(slower);
                self.pieces.push(Reverse((ends_at, seat, Some(request))));
            }
            None => {
                self.idle.push(seat);
                let next = self.schedule.give_back(seat, now);
                next.into_iter().for_each(|next| self.begin(next, now));
            }
        }
    }

    /// Returns when work goes on.
    fn behind_stall(&self, now: Duration) -> Duration {
        let since = Duration::from_nanos(now.as_nanos() as u64 % 333_000_000);
        now + self.stall.saturating_sub(since)
    }

    /// Returns how many slots analytics has.
    fn beside(&self) -> usize {
        let analytics = self.schedule.holding().filter(|it| !Self::is_request(*it));
        analytics.count()
    }

    /// A request is sent.
    fn send(&mut self, now: Duration) {
        let there_at = now + self.delay * self.beside() as u32;
        let request = Arrival {
            sent_at: now,
            predicted: Duration::ZERO,
        };
        self.pieces
            .push(Reverse((there_at, NETWORK, Some(request))));
    }

    /// A request has come.
    fn request(&mut self, sent_at: Duration, now: Duration) {
        let waiting = self.queue.len() + SLOTS - self.idle.len();
        if self.admission.excess(&OBJECTIVE, waiting).is_some() {
            self.outcome.refused += 1;
            return;
        }
        let predicted = now - sent_at + self.admission.time_behind(waiting);
        if waiting == 0 {
            self.admission.begin(now);
        }
        self.outcome.admitted += 1;
        self.queue.push_back(Arrival { sent_at, predicted });
        if let Some(seat) = self.idle.pop()
            && self.schedule.ask(seat, REQUESTS, now)
        {
            self.begin(seat, now);
        }
    }

    /// A piece of work ends.
    fn end(&mut self, seat: SeatId, request: Option<Arrival>, now: Duration) {
        if seat == NETWORK {
            return self.request(request.expect("it was sent").sent_at, now);
        }
        if let Some(Arrival { sent_at, predicted }) = request {
            let latency = now - sent_at;
            self.outcome.late += u64::from(latency > OBJECTIVE.within);
            self.latencies.record(latency, now);
            let others_wait = self.queue.len() + SLOTS - self.idle.len() > 1;
            self.admission
                .answered(predicted, latency, others_wait, now);
        }
        match self.schedule.offer(seat, now) {
            Offered::Keeps => self.begin(seat, now),
            Offered::Waits(next) => next.into_iter().for_each(|next| self.begin(next, now)),
        }
    }

    fn tick(&mut self, has_requests: bool, now: Duration) {
        let within = OBJECTIVE.within.as_secs_f64();
        let oldest = self.queue.front().map_or(0.0, |request| {
            (now - request.sent_at).as_secs_f64() / within
        });
        self.admission.look(&OBJECTIVE, now);
        let latency = self.latencies.at(OBJECTIVE.percentile, now);
        let standing = Standing {
            latency: latency.map(|latency| latency.as_secs_f64() / within),
            oldest,
        };
        let decision = self
            .controller
            .observe(has_requests.then_some(standing), now);
        if let Some((level, reason)) = decision.filter(|_| self.is_controlled) {
            self.outcome.decisions.push((now, level, reason));
            self.schedule.limit(level, now);
            self.latencies.clear(now);
        }
    }

    /// Runs for some seconds, with requests at a rate per second that `rate` gives for each moment.
    fn run(mut self, seconds: u64, rate: impl Fn(f64) -> f64) -> Outcome {
        let step = Duration::from_micros(100);
        let (mut due, mut has_requests) = (0.0, false);
        let mut before = [Duration::ZERO; 2];
        for seat in 0..SLOTS as SeatId {
            let seat = seat + SLOTS as SeatId;
            if self.schedule.ask(seat, ANALYTICS, Duration::ZERO) {
                self.begin(seat, Duration::ZERO);
            }
        }
        for number in 1..=seconds * 10_000 {
            let now = step * number as u32;
            while let Some(Reverse((at, seat, request))) = self.pieces.pop() {
                if at > now {
                    self.pieces.push(Reverse((at, seat, request)));
                    break;
                }
                self.end(seat, request, at);
            }
            due += rate(now.as_secs_f64()) * step.as_secs_f64();
            while due >= 1.0 {
                due -= 1.0;
                has_requests = true;
                self.send(now);
            }
            // The watcher of the pool comes when a free slot may be filled.
            for seat in self.schedule.fill(now) {
                self.begin(seat, now);
            }
            if number % 100 == 0 {
                let was_busy = has_requests || !self.queue.is_empty();
                self.tick(was_busy, now);
                has_requests = false;
            }
            if number % 10_000 == 0 {
                let had = [REQUESTS, ANALYTICS].map(|member| self.schedule.part(member, now).taken);
                self.outcome
                    .seconds
                    .push([0, 1].map(|member| had[member] - before[member]));
                before = had;
            }
        }
        self.outcome
    }
}

impl Outcome {
    /// The share of the time that requests left which analytics had.
    fn analytics(&self) -> f64 {
        let sum = |member: usize| -> f64 {
            let seconds = self
                .seconds
                .iter()
                .map(|second| second[member].as_secs_f64());
            seconds.sum()
        };
        sum(1) / ((SLOTS * self.seconds.len()) as f64 - sum(0))
    }

    fn late_share(&self) -> f64 {
        self.late as f64 / self.admitted as f64
    }

    /// The number of times that analytics was withheld.
    fn withheld(&self) -> usize {
        let zero = self.decisions.iter().filter(|(_, level, _)| *level == 0);
        zero.count()
    }
}

/// The requests per second that all slots can answer with nothing beside them.
const CAPACITY: f64 = SLOTS as f64 * 5_000.0;

/// The load of figure 5.10, with a period of 25 seconds, up to this part of the capacity.
fn sine(part: f64) -> impl Fn(f64) -> f64 {
    move |seconds| (PI * seconds / 12.5).sin().abs() * part * CAPACITY
}

/// Here latency-critical work has its slots first, which is enough.
#[test]
fn the_objective_holds_under_a_sine_load_while_analytics_has_the_rest() {
    let outcome = World::new(0.3).run(25, sine(0.9));
    assert!(outcome.late_share() < 0.001, "{outcome:?}");
    assert!(outcome.analytics() > 0.8, "{}", outcome.analytics());
    assert_eq!(outcome.refused, 0);
}

/// Here analytics slows requests down before they reach the pool: with half of the slots a little, with more of them beyond the
/// objective.
#[test]
fn analytics_gives_up_the_slots_that_cost_the_objective() {
    let run = |is_controlled| {
        let mut world = World::new(0.0);
        world.delay = Duration::from_millis(18);
        world.is_controlled = is_controlled;
        world.run(60, |_| 0.1 * CAPACITY)
    };
    assert!(run(false).late_share() > 0.5);
    let outcome = run(true);
    assert!(outcome.late_share() < 0.005, "{}", outcome.late_share());
    assert!(outcome.analytics() > 0.35, "{}", outcome.analytics());
    assert!(outcome.withheld() <= 8, "{:?}", outcome.decisions);
}

#[test]
fn admitted_requests_keep_the_objective_beyond_the_capacity() {
    for part in [1.5, 10.0] {
        let outcome = World::new(0.3).run(25, sine(part));
        assert!(outcome.late_share() < 0.001, "{outcome:?}");
        assert!(outcome.refused > outcome.admitted / 10);
        // All slots answer requests at the peak, and analytics has a little all the same.
        let busiest = outcome.seconds.iter().map(|second| second[0]).max();
        assert!(
            busiest.unwrap() > Duration::from_millis(1_900),
            "{busiest:?}"
        );
        let least = outcome.seconds.iter().map(|second| second[1]).min();
        assert!(least.unwrap() > Duration::from_millis(10), "{least:?}");
        // Two half waves: at each peak it is withheld, and tries to come back a few times.
        assert!(outcome.withheld() <= 2 * 4, "{:?}", outcome.decisions);
    }
}

/// Requests wait for long now and then, and the percentile is held: analytics yields for as long as the burst lasts.
#[test]
fn rare_bursts_cost_analytics_little() {
    let outcome = World::new(0.3).run(24, |seconds| match seconds % 4.0 {
        ..0.04 => 1.8 * CAPACITY,
        _ => 0.3 * CAPACITY,
    });
    assert!(outcome.late_share() < 0.001, "{}", outcome.late_share());
    assert!(outcome.withheld() >= 5, "{:?}", outcome.decisions);
    assert!(outcome.analytics() > 0.95, "{}", outcome.analytics());
}

/// The longer the stalls, the earlier requests are refused.
#[test]
fn admitted_requests_keep_the_objective_beside_stalls() {
    let run = |stall| {
        let mut world = World::new(0.3);
        world.stall = Duration::from_millis(stall);
        world.run(25, sine(1.5))
    };
    let outcomes = [2, 8].map(run);
    for outcome in &outcomes {
        assert!(outcome.late_share() < 0.001, "{}", outcome.late_share());
    }
}

#[test]
fn analytics_has_all_slots_in_a_silence() {
    let outcome = World::new(1.0).run(15, |seconds| match seconds {
        ..5.0 => 0.95 * CAPACITY,
        _ => 0.0,
    });
    let last: Vec<_> = outcome.seconds[7..].to_vec();
    assert!(
        last.iter()
            .all(|second| second[1] > Duration::from_millis(1_990)),
        "{last:?}"
    );
}

#[test]
fn a_burst_has_all_slots_at_once() {
    // For 20 ms in each second more requests than the slots can answer meanwhile, but not too many for the objective.
    let outcome = World::new(0.3).run(10, |seconds| match seconds.fract() {
        ..0.02 => 1.5 * CAPACITY,
        _ => 0.0,
    });
    assert!(outcome.late_share() < 0.001, "{outcome:?}");
    assert_eq!(outcome.refused, 0);
    assert!(outcome.analytics() > 0.9, "{}", outcome.analytics());
}
