//! Elements with a lifetime beside plain maps with times, through checkpoints, crashes and restores, with a clock that is
//! moved by hand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use millstream_base::{Clock, KeyRange, Timestamp};

use super::{change, place};
use crate::state::logged::LoggedState;
use crate::state::ordered::{OrderedState, ReadLevel};
use crate::state::ordered_maps::OrderedMaps;
use crate::state::partial::StateReader;
use crate::state::value_table::LifetimeSpec;
use crate::state::values::{Layout, Place, VALUES, Values};
use crate::windows::Key;

#[derive(Default)]
struct HandClock(AtomicI64);

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

/// The lifetime in milliseconds, of the first run.
const LIFETIME: i64 = 100;

const KEYS: u64 = 6;

fn place_for(clock: &Arc<HandClock>, partitions: usize, lifetime: i64) -> Place {
    place_of(clock, partitions, Duration::from_millis(lifetime as u64))
}

fn place_of(clock: &Arc<HandClock>, partitions: usize, lifetime: Duration) -> Place {
    let clock = Arc::clone(clock) as Arc<dyn Clock>;
    Place {
        lifetime: Some(LifetimeSpec::new(&clock, lifetime)),
        ..place(0, 1, partitions)
    }
}

/// A plain map with times.
#[derive(Clone)]
struct Plain {
    /// By key: the value, and the time of the last change.
    entries: BTreeMap<u64, (u64, i64)>,
    lifetime: i64,
}

impl Default for Plain {
    fn default() -> Self {
        Plain {
            entries: BTreeMap::new(),
            lifetime: LIFETIME,
        }
    }
}

impl Plain {
    fn insert(&mut self, key: u64, entry: (u64, i64)) {
        self.entries.insert(key, entry);
    }

    fn remove(&mut self, key: &u64) {
        self.entries.remove(key);
    }

    fn alive(&self, now: i64) -> BTreeMap<u64, u64> {
        let entries = self.entries.iter();
        let alive = entries.filter(|(_, (_, at))| now - at < self.lifetime);
        alive.map(|(key, (value, _))| (*key, *value)).collect()
    }

    /// The lifetime of the entries that have not ended is another one from now on.
    fn resume(&mut self, now: i64, lifetime: i64) {
        let former = std::mem::replace(&mut self.lifetime, lifetime);
        self.entries.retain(|_, (_, at)| now - *at < former);
    }
}

/// By key: the value, and when it ends.
type Changelog = BTreeMap<Vec<u8>, (Vec<u8>, Option<i64>)>;

/// A checkpoint.
#[derive(Clone, Default)]
struct Cut {
    number: u64,
    changelog: Changelog,
    plain: Plain,
    head: Option<Vec<u8>>,
    passed: Option<i64>,
    time: i64,
}

/// A kind of element with a number for each of some keys.
trait Subject {
    type Key: Key;

    fn element(place: &Place) -> Self;
    fn values(&self) -> &Values<Self::Key, u64>;

    /// Makes a random change of a key of both, and compares their contents before.
    fn change(&self, key: u64, plain: &mut Plain, now: i64, rng: &mut Rng);
    fn number_of(text: &str) -> u64;
    fn all(&self) -> BTreeMap<u64, u64>;
}

impl Subject for Values<u64, u64> {
    type Key = u64;

    fn element(place: &Place) -> Self {
        Values::new(Layout::of_keys(VALUES), place)
    }

    fn values(&self) -> &Values<u64, u64> {
        self
    }

    fn change(&self, key: u64, plain: &mut Plain, now: i64, rng: &mut Rng) {
        let expected = plain.alive(now).get(&key).copied();
        let next = match rng.u8(..4) {
            0 => None,
            1 => expected,
            _ => Some(rng.u64(..100)),
        };
        let found = change(self, key, |value| std::mem::replace(value, next));
        assert_eq!(found, expected);
        match next {
            Some(value) => plain.insert(key, (value, now)),
            None => plain.remove(&key),
        };
    }

    fn number_of(text: &str) -> u64 {
        text.parse().unwrap()
    }

    fn all(&self) -> BTreeMap<u64, u64> {
        let keys = 0..KEYS;
        keys.filter_map(|key| Some((key, self.get(&key)?)))
            .collect()
    }
}

/// The map of key 7 has the numbers.
impl Subject for OrderedMaps<u64, u64, u64> {
    type Key = (u64, u64);

    fn element(place: &Place) -> Self {
        OrderedMaps::new(place)
    }

    fn values(&self) -> &Values<(u64, u64), u64> {
        &self.maps.values
    }

    fn change(&self, key: u64, plain: &mut Plain, now: i64, rng: &mut Rng) {
        let alive = plain.alive(now);
        let expected = alive.get(&key).copied();
        change(self, 7, |mut map| {
            assert!(
                map.iter()
                    .map(|(key, value)| (*key, *value))
                    .eq(alive.clone())
            );
            assert_eq!(map.len(), alive.len());
            assert_eq!(map.first().map(|it| *it.0), alive.keys().next().copied());
            match rng.u8(..7) {
                0 => {
                    assert_eq!(map.remove(&key), expected);
                    plain.remove(&key);
                }
                1 => match map.get_mut(&key) {
                    Some(value) => {
                        assert_eq!(Some(*value), expected);
                        *value += 1;
                        plain.insert(key, (*value, now));
                    }
                    None => assert_eq!(expected, None),
                },
                2 => {
                    let value = map.or_insert_with(&key, || 5);
                    assert_eq!(*value, expected.unwrap_or(5));
                    plain.insert(key, (*value, now));
                }
                // Reads change nothing.
                3 => assert_eq!(map.get(&key).copied(), expected),
                4 => {
                    let first = map.pop_first();
                    assert_eq!(first, alive.into_iter().next());
                    if let Some((key, _)) = first {
                        plain.remove(&key);
                    }
                }
                _ => {
                    assert_eq!(map.insert(&key, now as u64), expected);
                    plain.insert(key, (now as u64, now));
                }
            }
        });
    }

    fn number_of(text: &str) -> u64 {
        let (_, field): (u64, u64) = serde_json::from_str(text).unwrap();
        field
    }

    fn all(&self) -> BTreeMap<u64, u64> {
        self.entries(&7).into_iter().collect()
    }
}

struct Run<S> {
    element: S,
    clock: Arc<HandClock>,
    plain: Plain,
    checkpoint: u64,
    committed: Cut,
    written: Vec<Cut>,
}

impl<S: Subject> Run<S> {
    fn begin(clock: &Arc<HandClock>, mut committed: Cut, partitions: usize, lifetime: i64) -> Self {
        committed.plain.resume(committed.time, lifetime);
        let element = S::element(&place_for(clock, partitions, lifetime));
        let values = element.values();
        values.note_changes();
        if let Some(head) = &committed.head {
            values.restore_head(head).unwrap();
        }
        for (key, (value, _)) in &committed.changelog {
            values.restore_change(key, Some(value)).unwrap();
        }
        let number = committed.number;
        Run {
            element,
            clock: Arc::clone(clock),
            plain: committed.plain.clone(),
            checkpoint: number,
            // Readers know no checkpoint of this run.
            committed: Cut {
                number: 0,
                ..committed
            },
            written: Vec::new(),
        }
    }

    fn change(&mut self, now: i64, rng: &mut Rng) {
        self.element
            .change(rng.u64(..KEYS), &mut self.plain, now, rng);
    }

    /// Writes a checkpoint, while the element goes on to change.
    fn write(&mut self, now: i64, rng: &mut Rng) {
        self.checkpoint += 1;
        let values = self.element.values();
        let head = values.head(self.checkpoint).unwrap().unwrap();
        values.cut(self.checkpoint);
        let before = self.written.last().unwrap_or(&self.committed);
        let mut cut = Cut {
            number: self.checkpoint,
            changelog: before.changelog.clone(),
            plain: self.plain.clone(),
            head: Some(head.bytes),
            passed: head.passed,
            time: now,
        };
        values.sweep();
        let (element, plain) = (&self.element, &mut self.plain);
        let written = values.write(self.checkpoint, &mut |changes| {
            for change in changes {
                let change = change?;
                match change.value {
                    Some(value) => drop(cut.changelog.insert(change.key, (value, change.expires))),
                    None => drop(cut.changelog.remove(&change.key)),
                }
                if rng.u8(..4) == 0 {
                    element.change(rng.u64(..KEYS), plain, now, rng);
                }
            }
            Ok(())
        });
        written.unwrap();
        values.written(self.checkpoint);
        self.written.push(cut);
    }

    fn commit(&mut self) {
        if self.written.is_empty() {
            return;
        }
        let values = self.element.values();
        self.committed = self.written.remove(0);
        values.complete(self.committed.number);
        // The changelog drops entries that have ended.
        let passed = self.committed.passed.unwrap();
        assert!(passed <= self.committed.time);
        let is_needed = |(_, end): &(Vec<u8>, Option<i64>)| end.unwrap() > passed;
        self.committed
            .changelog
            .retain(|_, change| is_needed(change));
        for cut in &mut self.written {
            cut.changelog.retain(|_, change| is_needed(change));
        }
    }

    fn scan(&self, level: ReadLevel) -> BTreeMap<u64, u64> {
        let page = self.element.values().scan(&KeyRange::all(), 100, level);
        let entries = page.entries.into_iter();
        entries
            .map(|entry| (S::number_of(&entry.key), entry.value.as_u64().unwrap()))
            .collect()
    }

    fn check(&self, now: i64) {
        let live = self.plain.alive(now);
        assert_eq!(self.element.all(), live);
        assert_eq!(self.scan(ReadLevel::Live), live);
        assert_eq!(self.element.values().keys(100).len(), live.len());
        let committed = self.committed.plain.alive(now);
        assert_eq!(self.scan(ReadLevel::Committed), committed);
    }

    fn save_and_restore(&self, now: i64) {
        let saved = self.element.values().save().unwrap();
        let other = S::element(&place_for(&self.clock, 2, self.plain.lifetime));
        other.values().restore(&saved).unwrap();
        assert_eq!(other.all(), self.plain.alive(now));
        self.clock.0.fetch_add(LIFETIME / 2, Ordering::Relaxed);
        let now = now.max(self.clock.now().0);
        assert_eq!(other.all(), self.plain.alive(now));
    }
}

fn check_random_runs<S: Subject>() {
    for seed in 0..60 {
        let mut rng = Rng::with_seed(seed);
        let clock = Arc::new(HandClock(AtomicI64::new(1_000)));
        let mut run = Run::<S>::begin(&clock, Cut::default(), 3, LIFETIME);
        let mut now = 1_000;
        for _ in 0..400 {
            match rng.u32(..44) {
                0 => {
                    now = run.committed.time;
                    let committed = run.committed;
                    let lifetime = match rng.u8(..3) {
                        0 => rng.i64(1..3 * LIFETIME),
                        _ => committed.plain.lifetime,
                    };
                    run = Run::begin(&clock, committed, rng.usize(1..5), lifetime);
                }
                // Beyond some, the oldest ones cannot be read any more.
                1..=3 if run.written.len() < 5 => run.write(now, &mut rng),
                1..=5 => run.commit(),
                6 => run.element.values().sweep(),
                7 => run.save_and_restore(now),
                8..=15 => drop(
                    clock
                        .0
                        .fetch_add(rng.i64(0..LIFETIME / 2), Ordering::Relaxed),
                ),
                16 => drop(clock.0.fetch_sub(rng.i64(0..LIFETIME), Ordering::Relaxed)),
                _ => run.change(now.max(clock.now().0), &mut rng),
            }
            now = now.max(clock.now().0);
            run.check(now);
        }
    }
}

#[test]
fn values_end_as_in_a_plain_map_with_times() {
    check_random_runs::<Values<u64, u64>>();
}

#[test]
fn entries_of_maps_end_one_by_one() {
    check_random_runs::<OrderedMaps<u64, u64, u64>>();
}

#[test]
fn entries_that_nothing_touches_leave_memory_by_sweeps_and_by_calls_for_other_keys() {
    for notes_changes in [false, true] {
        let clock = Arc::new(HandClock::default());
        let place = place_of(&clock, 1, Duration::from_millis(10));
        let values = Values::<u64, u64>::element(&place);
        if notes_changes {
            values.note_changes();
        }
        let entries = || values.tables()[0].lock().len();
        for key in 0..1_000 {
            change(&values, key, |value| *value = Some(key));
        }
        clock.0.store(10, Ordering::Relaxed);
        assert_eq!(entries(), 1_000);
        values.sweep();
        if notes_changes {
            // Their removal is a change, which the last complete checkpoint does not have.
            values.cut(1);
            assert_eq!(values.changed_keys(), 0);
            values.written(1);
            values.complete(1);
            values.cut(2);
            values.sweep();
        }
        assert_eq!(entries(), 0);
        if !notes_changes {
            for key in 0..1_000 {
                change(&values, key, |value| *value = Some(key));
            }
            clock.0.store(20, Ordering::Relaxed);
            // Each looks at two others.
            for _ in 0..1_000 {
                change(&values, 1_000, |value| *value = Some(1));
            }
            assert_eq!(entries(), 1);
        }
    }
}

#[test]
fn the_longest_lifetime_is_for_ever_and_the_shortest_is_a_millisecond() {
    let clock = Arc::new(HandClock(AtomicI64::new(i64::MAX - 1)));
    for (lifetime, expires) in [
        (Duration::MAX, None),
        (Duration::from_millis(i64::MAX as u64), None),
        (Duration::from_nanos(1), Some(i64::MAX)),
    ] {
        let values = Values::<u64, u64>::element(&place_of(&clock, 1, lifetime));
        values.note_changes();
        change(&values, 1, |value| *value = Some(1));
        values.cut(1);
        let written = values.write(1, &mut |changes| {
            assert_eq!(changes.next().unwrap()?.expires, expires);
            Ok(())
        });
        written.unwrap();
        assert_eq!(values.get(&1), Some(1));
        clock.0.store(i64::MAX, Ordering::Relaxed);
        assert_eq!(values.get(&1), expires.is_none().then_some(1));
        clock.0.store(i64::MAX - 1, Ordering::Relaxed);
    }
}
