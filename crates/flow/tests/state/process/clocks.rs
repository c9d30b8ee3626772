//! Timers of the wall clock.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::{Clock, SystemClock, Timestamp};
use millstream_exchange::Ranks;
use millstream_flow::{FlowSettings, Resume, Running};

use super::{CHAINED, CLOCK, Command, WallClock, World};
use crate::changelogs::log::LogStore;
use crate::changelogs::settings_of;
use crate::support::{settings, wait_until};

fn set(time: i64, tag: u64) -> Command {
    Command::Set(CLOCK, time, tag)
}

fn start(clock: &Arc<WallClock>) -> World {
    let settings = FlowSettings {
        clock: Arc::clone(clock) as _,
        ..settings(2, 64)
    };
    World::start(settings).unwrap()
}

#[test]
fn a_wall_clock_that_jumps_fires_each_timer_once() {
    let clock = Arc::new(WallClock::default());
    clock.set(1_000);
    let world = start(&clock);
    world.give_and_wait([set(2_000, 1), set(3_000, 2), set(9_000, 3), set(500, 4)]);
    let mut expected = vec![(0, CLOCK, 500, 4)];
    world.wait_until_fired(&expected);
    // Forward: no item comes, and the workers look again after some seconds.
    clock.set(5_000);
    expected.extend([(0, CLOCK, 2_000, 1), (0, CLOCK, 3_000, 2)]);
    world.wait_until_fired(&expected);
    // Back: those that have fired do not fire again.
    clock.set(100);
    world.give_and_wait([set(2_500, 5), Command::Tick(0)]);
    clock.set(2_400);
    world.give_and_wait([Command::Tick(0)]);
    world.wait_until_fired(&expected);
    clock.set(i64::MAX - 1);
    world.give_and_wait([set(i64::MAX, 6), Command::Tick(0)]);
    expected.extend([(0, CLOCK, 2_500, 5), (0, CLOCK, 9_000, 3)]);
    world.wait_until_fired(&expected);
    // The end of the input does not wait for the rest.
    world.hand.end();
    world.running.join().unwrap();
    assert_eq!(world.fired(), expected);
    assert_eq!(world.timers.len(), 1);
}

#[test]
fn timers_at_the_ends_of_time_are_possible() {
    let clock = Arc::new(WallClock::default());
    let world = start(&clock);
    world.give_and_wait([set(i64::MIN, 1), set(i64::MAX, 2)]);
    let mut expected = vec![(0, CLOCK, i64::MIN, 1)];
    world.wait_until_fired(&expected);
    clock.set(i64::MAX);
    world.give_and_wait([Command::Tick(0)]);
    expected.push((0, CLOCK, i64::MAX, 2));
    world.wait_until_fired(&expected);
    world.hand.end();
    world.running.join().unwrap();
}

fn activations(running: &Running) -> u64 {
    let metrics = running.metrics();
    metrics.iter().map(|stage| stage.activations).sum()
}

/// Without its alarm a worker would look after five seconds.
#[test]
fn an_idle_flow_sleeps_until_its_next_timer() {
    let world = World::start(settings(2, 64)).unwrap();
    let now = SystemClock::default().now().0;
    world.give_and_wait([set(now + 3_600_000, 1)]);
    wait_until("the flow sleeps", || {
        let before = activations(&world.running);
        thread::sleep(Duration::from_millis(300));
        activations(&world.running) == before
    });
    let now = SystemClock::default().now().0;
    world.give_and_wait([set(now + 1_500, 2)]);
    let set_at = Instant::now();
    let expected = [(0, CLOCK, now + 1_500, 2)];
    world.wait_until_fired(&expected);
    let fired_after = set_at.elapsed();
    assert!(fired_after < Duration::from_secs(4), "{fired_after:?}");
    world.hand.end();
    let summary = world.running.join().unwrap();
    assert_eq!(summary.lost_wakeups, 0);
    assert_eq!(world.fired(), expected);
}

#[test]
fn timers_that_came_due_while_the_flow_was_stopped_fire_when_it_resumes() {
    let store = Arc::new(LogStore::default());
    let clock = Arc::new(WallClock::default());
    let start = || {
        let settings = FlowSettings {
            clock: Arc::clone(&clock) as _,
            ..settings_of(&store, Resume::IfAny, &Ranks::alone())
        };
        World::start(settings).unwrap()
    };
    let world = start();
    world.give_and_wait([set(50, 1), set(70, CHAINED + 6), set(1_000, 3)]);
    world.running.stop();
    world.running.join().unwrap();
    assert_eq!(world.fired(), []);
    clock.set(100);
    let world = start();
    // No item comes.
    let expected = [
        (0, CLOCK, 50, 1),
        (0, CLOCK, 70, CHAINED + 6),
        // The second one sets it, at a time before its own.
        (0, CLOCK, 50, 6),
    ];
    world.wait_until_fired(&expected);
    assert!(world.timers.is_set(CLOCK, Timestamp(1_000), &0, &3));
    world.hand.end();
    world.running.join().unwrap();
}
