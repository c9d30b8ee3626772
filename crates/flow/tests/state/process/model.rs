//! Random commands, checkpoints and resumes beside a plain model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fastrand::Rng;
use millstream_base::KeyRange;
use millstream_exchange::Ranks;
use millstream_flow::{FlowSettings, ReadLevel, Resume, Running};

use super::{CHAINED, CLOCK, Command, Count, EVENT, Firing, TimeDomain, WallClock, World, chained};
use crate::changelogs::log::{LogStore, Scan};
use crate::changelogs::settings_of;
use crate::support::wait_until;

const KEYS: u64 = 12;

/// Times of timers are below; few, so that they meet.
const TIMES: i64 = 1_000;

/// The timers as a plain set, which is searched.
#[derive(Default)]
struct Model {
    timers: BTreeSet<(TimeDomain, i64, u64, u64)>,
    counts: BTreeMap<u64, Count>,
    watermark: i64,
    now: i64,
    fired: Vec<Firing>,
}

impl Model {
    fn obey(&mut self, key: u64, command: Command) {
        self.counts.entry(key).or_default().0 += 1;
        match command {
            Command::Tick(time) => self.watermark = self.watermark.max(time),
            Command::Set(domain, time, tag) => drop(self.timers.insert((domain, time, key, tag))),
            Command::Cancel(domain, time, tag) => {
                self.timers.remove(&(domain, time, key, tag));
            }
        }
    }

    /// Fires all timers that are due.
    fn fire(&mut self) {
        let (watermark, now) = (self.watermark, self.now);
        let is_due = |(domain, time, ..): &&(TimeDomain, i64, u64, u64)| match domain {
            TimeDomain::Event => *time <= watermark,
            TimeDomain::Clock => *time <= now,
        };
        while let Some(timer) = self.timers.iter().find(is_due).copied() {
            let (domain, time, key, tag) = timer;
            self.timers.remove(&timer);
            self.fired.push((key, domain, time, tag));
            self.counts.entry(key).or_default().1 += 1;
            let next = chained(time, tag).map(|(time, tag)| (domain, time, key, tag));
            self.timers.extend(next);
        }
    }
}

/// The firings of each key in each domain, in their order.
fn by_key(fired: &[Firing]) -> BTreeMap<(u64, TimeDomain), Vec<(i64, u64)>> {
    let mut by_key: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (key, domain, time, tag) in fired {
        by_key
            .entry((*key, *domain))
            .or_default()
            .push((*time, *tag));
    }
    by_key
}

/// Reads an element as the last checkpoint has it, as texts of keys and values.
fn committed(running: &Running, element: &str) -> BTreeMap<String, String> {
    let state = running.state(element).unwrap();
    let ordered = state.ordered().unwrap();
    let page = ordered.scan(&KeyRange::all(), 100_000, ReadLevel::Committed);
    let entries = page.entries.into_iter();
    entries
        .map(|entry| (entry.key, entry.value.to_string()))
        .collect()
}

impl World {
    fn wait_until_committed(&self, model: &Model) {
        let counts = model.counts.iter();
        let counts =
            counts.map(|(key, (items, fired))| (key.to_string(), format!("[{items},{fired}]")));
        let counts: BTreeMap<_, _> = counts.collect();
        let timers = model.timers.iter().map(|(domain, time, key, tag)| {
            let domain = if *domain == EVENT { "event" } else { "clock" };
            (
                format!("[\"{domain}\",{time},{key},{tag}]"),
                "true".to_owned(),
            )
        });
        let timers: BTreeMap<_, _> = timers.collect();
        wait_until("all is in a checkpoint", || {
            committed(&self.running, "counts") == counts
                && committed(&self.running, "timers") == timers
        });
    }
}

fn random_command(rng: &mut Rng, model: &Model, key: u64) -> Command {
    let domain = if rng.bool() { EVENT } else { CLOCK };
    let set = model.timers.iter().filter(|(_, _, of, _)| *of == key);
    let set: Vec<_> = set.collect();
    match rng.u32(..4) {
        0 if !set.is_empty() => {
            let (domain, time, _, tag) = set[rng.usize(..set.len())];
            match rng.u32(..3) {
                // One that is set already.
                0 => Command::Set(*domain, *time, *tag),
                _ => Command::Cancel(*domain, *time, *tag),
            }
        }
        _ => Command::Set(
            domain,
            rng.i64(0..TIMES),
            rng.u64(..2) * CHAINED * 3 + rng.u64(..20),
        ),
    }
}

/// Runs random commands on this many workers.
fn run(seed: u64, workers: usize, scan: Scan) {
    let mut rng = Rng::with_seed(seed);
    let store = Arc::new(LogStore::default());
    store.scan(scan);
    let clock = Arc::new(WallClock::default());
    let settings = || FlowSettings {
        clock: Arc::clone(&clock) as _,
        workers: workers.try_into().unwrap(),
        ..settings_of(&store, Resume::IfAny, &Ranks::alone())
    };
    let mut world = World::start(settings()).unwrap();
    let mut model = Model {
        watermark: -1,
        ..Model::default()
    };
    let mut given = 0;
    for round in 0..60 {
        let mut keys: Vec<u64> = (0..KEYS).filter(|_| rng.bool()).collect();
        rng.shuffle(&mut keys);
        // One command for a key at once: it is unknown when timers of the past fire in between.
        let commands: Vec<_> = keys
            .into_iter()
            .map(|key| (key, random_command(&mut rng, &model, key)))
            .collect();
        for (key, command) in &commands {
            model.obey(*key, *command);
        }
        given += commands.len() as u64;
        world.give(commands);
        let wait = |world: &World, model: &Model, given: u64| {
            let items = || (0..KEYS).map(|key| world.items(key)).sum::<u64>();
            wait_until("commands are obeyed", || items() == given);
            wait_until("timers fire", || {
                world.fired.lock().unwrap().len() >= model.fired.len()
            });
            assert_eq!(by_key(&world.fired()), by_key(&model.fired), "seed {seed}");
        };
        model.fire();
        wait(&world, &model, given);
        // Both clocks go on, and a wall clock may go back.
        match rng.u32(..3) {
            0 => model.now = (model.now + rng.i64(-20..60)).max(0),
            _ => model.watermark += rng.i64(0..40),
        }
        clock.set(model.now);
        let tick = (rng.u64(..KEYS), Command::Tick(model.watermark));
        model.obey(tick.0, tick.1);
        given += 1;
        world.give([tick]);
        model.fire();
        wait(&world, &model, given);
        if round % 8 == 7 && rng.bool() {
            world.wait_until_committed(&model);
            drop(world);
            world = World::start(settings()).unwrap();
            model.fired.clear();
        }
    }
    world.hand.end();
    model.watermark = i64::MAX;
    // Timers of the wall clock do not fire at the end.
    model.now = i64::MIN;
    model.fire();
    world.running.join().unwrap();
    assert_eq!(by_key(&world.fired()), by_key(&model.fired));
    assert_eq!(world.timers.len(), model.timers.len());
    assert!(model.timers.iter().all(|(domain, ..)| *domain == CLOCK));
    for (key, count) in &model.counts {
        assert_eq!(world.counts.get(key), Some(*count));
    }
}

#[test]
fn timers_fire_as_in_a_plain_model_through_checkpoints_and_resumes() {
    for (seed, workers, scan) in [
        (1, 1, Scan::AtOnce),
        (2, 2, Scan::Slow),
        (3, 3, Scan::Held),
        (4, 2, Scan::Held),
        (5, 4, Scan::AtOnce),
    ] {
        run(seed, workers, scan);
    }
}
