//! State and timers by key, driven by commands.

mod clocks;
mod model;
mod ranks;
mod release;
mod resumes;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_base::{Clock, SystemClock, Timestamp};
use millstream_flow::{
    Emit, Fired, Flow, FlowError, FlowSettings, Running, TimeDomain, Timers, TimersOf, Values,
    Watermarks,
};
use serde::{Deserialize, Serialize};

use crate::support::{Collect, Hand, wait_until};

/// A wall clock that is moved by hand; all else goes on by itself.
#[derive(Default)]
pub struct WallClock(AtomicI64, SystemClock);

impl WallClock {
    pub fn set(&self, now: i64) {
        self.0.store(now, Ordering::SeqCst);
    }
}

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        self.1.monotonic()
    }
}

/// An item of a key.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Command {
    /// The watermark comes to this time.
    Tick(i64),
    Set(TimeDomain, i64, u64),
    Cancel(TimeDomain, i64, u64),
}

/// A timer that has fired: its key, domain, time and tag.
type Firing = (u64, TimeDomain, i64, u64);

/// A timer with this tag or a larger one sets another one when it fires.
const CHAINED: u64 = 100;

/// Returns the timer that one sets when it fires: before it, behind it, or at the same time.
fn chained(time: i64, tag: u64) -> Option<(i64, u64)> {
    let by = (tag % 7) as i64 - 3;
    (tag >= CHAINED).then(|| (time.saturating_add(10 * by), tag - CHAINED))
}

/// The numbers of items and of timers of a key so far.
type Count = (u64, u64);

/// A flow that obeys commands.
struct World {
    running: Running,
    hand: Hand,
    commands: Arc<Mutex<Vec<(u64, Command)>>>,
    fired: Arc<Mutex<Vec<Firing>>>,
    counts: Values<u64, Count>,
    timers: Timers<u64, u64>,
}

fn obey(
    _: &u64,
    count: &mut Option<Count>,
    timers: &mut TimersOf<'_, u64, u64>,
    (_, command): &(u64, Command),
    _: &mut Emit<'_, Firing>,
) {
    count.get_or_insert_default().0 += 1;
    match *command {
        Command::Tick(_) => {}
        Command::Set(TimeDomain::Event, time, tag) => {
            timers.set_event(Timestamp(time), &tag);
        }
        Command::Set(TimeDomain::Clock, time, tag) => {
            timers.set_clock(Timestamp(time), &tag);
        }
        Command::Cancel(TimeDomain::Event, time, tag) => {
            timers.cancel_event(Timestamp(time), &tag);
        }
        Command::Cancel(TimeDomain::Clock, time, tag) => {
            timers.cancel_clock(Timestamp(time), &tag);
        }
    }
}

fn fire(
    key: &u64,
    count: &mut Option<Count>,
    timers: &mut TimersOf<'_, u64, u64>,
    fired: &Fired<u64>,
    emit: &mut Emit<'_, Firing>,
) {
    count.get_or_insert_default().1 += 1;
    emit(&(*key, fired.domain, fired.time.0, fired.tag));
    let next = chained(fired.time.0, fired.tag);
    match fired.domain {
        TimeDomain::Event => {
            assert!(fired.time <= timers.watermark());
            next.map(|(time, tag)| timers.set_event(Timestamp(time), &tag));
        }
        TimeDomain::Clock => {
            assert!(fired.time <= timers.now());
            next.map(|(time, tag)| timers.set_clock(Timestamp(time), &tag));
        }
    }
}

impl World {
    fn start(settings: FlowSettings) -> Result<World, FlowError> {
        let flow = Flow::with_settings("timers", settings);
        let counts = flow.values::<u64, Count>("counts");
        let timers = flow.timers::<u64, u64>("timers");
        let (sink, fired) = Collect::new();
        let hand = Hand::default();
        let commands = Arc::new(Mutex::new(Vec::new()));
        let given: Arc<Mutex<Vec<(u64, Command)>>> = Arc::clone(&commands);
        let time = |(_, command): &(u64, Command)| match command {
            Command::Tick(time) => Timestamp(*time),
            _ => Timestamp(i64::MIN),
        };
        flow.source("commands", hand.clone())
            .map(move |index| given.lock().unwrap()[*index as usize])
            .watermarks(time, Watermarks::bounded(Duration::ZERO).ahead_max(None))
            .key_by(|(key, _)| *key)
            .process("obey", &counts, &timers, obey, fire)
            .sink("fired", sink);
        Ok(World {
            running: flow.run()?,
            hand,
            commands,
            fired,
            counts,
            timers,
        })
    }

    fn give(&self, commands: impl IntoIterator<Item = (u64, Command)>) {
        let mut given = self.commands.lock().unwrap();
        let before = given.len() as u64;
        given.extend(commands);
        let end = given.len() as u64;
        drop(given);
        self.hand.give(before..end);
    }

    fn fired(&self) -> Vec<Firing> {
        self.fired.lock().unwrap().clone()
    }

    #[track_caller]
    fn wait_until_fired(&self, expected: &[Firing]) {
        wait_until("timers fire", || {
            self.fired.lock().unwrap().len() >= expected.len()
        });
        assert_eq!(self.fired(), expected);
    }

    fn items(&self, key: u64) -> u64 {
        self.counts.get(&key).unwrap_or_default().0
    }

    /// Gives commands of key 0, and waits until all are obeyed.
    fn give_and_wait(&self, commands: impl IntoIterator<Item = Command>) {
        let before = self.items(0);
        let commands: Vec<_> = commands.into_iter().map(|command| (0, command)).collect();
        let count = commands.len() as u64;
        self.give(commands);
        wait_until("commands are obeyed", || self.items(0) == before + count);
    }
}

const EVENT: TimeDomain = TimeDomain::Event;
const CLOCK: TimeDomain = TimeDomain::Clock;
