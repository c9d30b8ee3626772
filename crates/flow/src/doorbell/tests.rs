//! The bell by itself, and a model of the argument why no wake-up is lost, with all orders of steps.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::thread;

use millstream_base::Timestamp;

use super::*;

/// A clock that moves only by hand, in seconds.
#[derive(Default)]
struct HandClock(AtomicU64);

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp(0)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}

#[derive(Clone, Copy)]
struct Workers {
    count: usize,
    could_work: bool,
}

impl Crew for Workers {
    fn count(&self) -> usize {
        self.count
    }

    fn could_work(&self) -> bool {
        self.could_work
    }

    fn retire(&self) -> bool {
        false
    }
}

/// Calls `then` while `count` workers sleep. They wake up afterwards.
fn while_asleep(bell: &Doorbell, count: usize, crew: Workers, then: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    bell.wait(bell.look(), &crew);
                }
            });
        }
        while bell.sleepers.load(Ordering::SeqCst) < count {
            thread::yield_now();
        }
        then();
        is_over.store(true, Ordering::SeqCst);
        bell.ring_all();
    });
}

#[test]
fn the_last_awake_worker_checks_for_work_after_another_fell_asleep() {
    let bell = Doorbell::new(Arc::new(HandClock::default()));
    let crew = Workers {
        count: 2,
        could_work: false,
    };
    let before = bell.look();
    while_asleep(&bell, 1, crew, || {
        let asleep = bell.look();
        assert_ne!(asleep, before);
        assert_eq!(bell.wait(before, &crew), Woken::Rung);
        assert_eq!(bell.look(), asleep, "it has not slept");
    });
}

#[test]
fn a_timer_that_wakes_workers_which_slept_beside_work_counts_as_a_lost_wakeup() {
    // How many workers there are, of which two sleep; whether there is work; and whether a timer wakes them.
    let cases = [
        (2, true, true, 1),
        (2, false, true, 0),
        (3, true, true, 0),
        (2, true, false, 0),
    ];
    for (count, could_work, is_timer, expected) in cases {
        let clock = Arc::new(HandClock::default());
        let bell = Doorbell::new(Arc::clone(&clock) as _);
        while_asleep(&bell, 2, Workers { count, could_work }, || {
            if is_timer {
                clock.0.store(1, Ordering::SeqCst);
                bell.ring_at(Duration::from_secs(1));
                while bell.alarm.lock().is_some() {
                    thread::yield_now();
                }
            }
        });
        let case = (count, could_work, is_timer);
        assert_eq!(bell.lost_wakeups(), expected, "{case:?}");
    }
}

/// The rules that the argument rests on.
#[derive(Debug, Clone, Copy)]
struct Rules {
    /// An activation that passes on results of former slices is `Done`.
    reports_progress: bool,
    /// The last worker that is awake looks again if another has gone to sleep since it began to look.
    last_looks_again: bool,
}

/// The stages of the model. All write to rings with room for one item.
///
/// ```text
/// HOLDER ──► first ──► MIDDLE ──► second ──► LAST
///                       SOURCE ──────┘
/// ```
const STAGES: usize = 4;
/// Holds results of former slices, as pre-aggregation does, and reads nothing.
const HOLDER: usize = 0;
const MIDDLE: usize = 1;
/// Reserves room before it finds that it has nothing to give.
const SOURCE: usize = 2;
const LAST: usize = 3;

/// The rings: their items, and whether their room is reserved.
const RINGS: usize = 2;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Model {
    held: u8,
    items: [bool; RINGS],
    reserved: [bool; RINGS],
    is_locked: [bool; STAGES],
    sleeps: u8,
    workers: Vec<Worker>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Worker {
    tried: [bool; STAGES],
    /// The number of sleeps when it began to look.
    sleeps: u8,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Looks,
    /// It is in a stage, with the room that it has reserved, and perhaps an item.
    In(usize),
    Asleep,
}

/// The ring that a stage reads, and the one that it writes.
fn rings(stage: usize) -> (Option<usize>, Option<usize>) {
    match stage {
        HOLDER => (None, Some(0)),
        MIDDLE => (Some(0), Some(1)),
        SOURCE => (None, Some(1)),
        LAST => (Some(1), None),
        _ => unreachable!("there are {STAGES} stages"),
    }
}

impl Model {
    fn new(workers: usize) -> Model {
        let worker = Worker {
            tried: [false; STAGES],
            sleeps: 0,
            phase: Phase::Looks,
        };
        Model {
            held: 2,
            items: [false; RINGS],
            reserved: [false; RINGS],
            is_locked: [false; STAGES],
            sleeps: 0,
            workers: vec![worker; workers],
        }
    }

    fn has_input(&self, stage: usize) -> bool {
        match stage {
            HOLDER => self.held > 0,
            SOURCE => false,
            _ => rings(stage).0.is_some_and(|ring| self.items[ring]),
        }
    }

    fn has_room(&self, stage: usize) -> bool {
        let is_free = |ring: usize| !self.items[ring] && !self.reserved[ring];
        rings(stage).1.is_none_or(is_free)
    }

    /// Whether all workers sleep although a stage has input and room.
    fn is_lost(&self) -> bool {
        let mut stages = 0..STAGES;
        self.workers.iter().all(|it| it.phase == Phase::Asleep)
            && stages.any(|stage| self.has_input(stage) && self.has_room(stage))
    }

    fn look_again(&mut self, worker: usize) {
        self.workers[worker].tried = [false; STAGES];
        self.workers[worker].sleeps = self.sleeps;
    }

    /// The worker enters a stage. Those without input look for it behind their reservation, as stages do.
    fn enter(&mut self, worker: usize, stage: usize) {
        self.workers[worker].tried[stage] = true;
        let wants_room = stage == SOURCE || self.has_input(stage);
        if self.is_locked[stage] || !wants_room || !self.has_room(stage) {
            return;
        }
        self.is_locked[stage] = true;
        if let (_, Some(ring)) = rings(stage) {
            self.reserved[ring] = true;
        }
        self.workers[worker].phase = Phase::In(stage);
    }

    fn leave(&mut self, worker: usize, stage: usize, rules: Rules) {
        self.is_locked[stage] = false;
        self.workers[worker].phase = Phase::Looks;
        let (read, written) = rings(stage);
        if let Some(ring) = written {
            self.reserved[ring] = false;
            self.items[ring] = stage != SOURCE;
        }
        if let Some(ring) = read {
            self.items[ring] = false;
        }
        let is_done = match stage {
            SOURCE => false,
            HOLDER => {
                self.held -= 1;
                rules.reports_progress
            }
            _ => true,
        };
        if is_done {
            self.look_again(worker);
        }
    }

    fn sleep(&mut self, worker: usize, rules: Rules) {
        let mut others = self.workers.iter().enumerate();
        let is_last = others.all(|(other, it)| other == worker || it.phase == Phase::Asleep);
        if rules.last_looks_again && is_last && self.workers[worker].sleeps != self.sleeps {
            self.look_again(worker);
        } else {
            self.workers[worker].phase = Phase::Asleep;
            self.sleeps += 1;
        }
    }

    /// All states that one step of one worker leads to; a scheduler may pick any stage.
    fn next(&self, rules: Rules) -> Vec<Model> {
        let mut states = Vec::new();
        let mut step = |change: &dyn Fn(&mut Model)| {
            let mut state = self.clone();
            change(&mut state);
            states.push(state);
        };
        for (worker, it) in self.workers.iter().enumerate() {
            match it.phase {
                Phase::In(stage) => step(&|state| state.leave(worker, stage, rules)),
                Phase::Looks if it.tried == [true; STAGES] => {
                    step(&|state| state.sleep(worker, rules));
                }
                Phase::Looks => {
                    for stage in (0..STAGES).filter(|stage| !it.tried[*stage]) {
                        step(&|state| state.enter(worker, stage));
                    }
                }
                Phase::Asleep => {}
            }
        }
        states
    }
}

/// Whether some order of steps loses a wake-up.
fn loses(workers: usize, rules: Rules) -> bool {
    let first = Model::new(workers);
    let mut seen = HashSet::from([first.clone()]);
    let mut left = vec![first];
    while let Some(state) = left.pop() {
        if state.is_lost() {
            return true;
        }
        let next = state.next(rules).into_iter();
        left.extend(next.filter(|state| seen.insert(state.clone())));
    }
    false
}

#[test]
fn no_interleaving_of_steps_loses_a_wakeup() {
    let rules = Rules {
        reports_progress: true,
        last_looks_again: true,
    };
    for workers in 1..=2 {
        assert!(!loses(workers, rules), "{workers} workers");
    }
    let silent = Rules {
        reports_progress: false,
        ..rules
    };
    assert!(
        loses(1, silent),
        "without the rule the model loses a wakeup"
    );
    let hasty = Rules {
        last_looks_again: false,
        ..rules
    };
    assert!(!loses(1, hasty), "a worker alone has looked at all");
    assert!(loses(2, hasty), "without the rule the model loses a wakeup");
}
