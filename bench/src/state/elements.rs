//! Updates of each kind of state element, beside a loop over plain collections.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::thread;

use anyhow::{Result, anyhow, ensure};
use hashbrown::HashMap;
use millstream_flow::sources::Generator;
use millstream_flow::{
    Counters, Element, Emit, Flow, FlowSettings, Lists, Maps, Matrices, OrderedMaps, Resume, Sets,
    Tops, Values, Vectors,
};
use millstream_log::{Log, LogConfig};

use super::counting::{FLOW, INSTANCES, INTERVAL, SPREAD, checkpoints};
use crate::folder::Folder;
use crate::measure::{Bench, Took, cpu_median, ended, time};
use crate::report::{Better, Case};

pub const ELEMENTS: &str = "elements";

/// Of updates per second, beside the plain collection.
const TARGET: f64 = 0.5;

/// Of updates per second, beside the same element with evenly spread keys.
const HOT_TARGET: f64 = 0.7;

/// The keys, unless one has all events, and the fields of each.
const KEYS: u64 = 10_000;
const FIELDS: u64 = 16;

/// The most items of a list or of a top list.
const ITEMS_MAX: usize = 8;

/// An event: which field of which key it changes.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
struct Event {
    key: u64,
    field: u64,
}

/// The events of a run.
#[derive(Debug, Clone, Copy)]
struct Load {
    keys: u64,
    /// Of all instances together.
    events: u64,
}

impl Load {
    fn event(&self, number: u64) -> Event {
        let scattered = number.wrapping_mul(SPREAD);
        Event {
            key: (scattered >> 32) % self.keys,
            field: (scattered >> 20) % FIELDS,
        }
    }

    /// The events of one instance of the source, or of one thread.
    fn of_instance(&self, instance: u64) -> impl Iterator<Item = Event> {
        let load = *self;
        let numbers = 0..self.events / INSTANCES;
        numbers.map(move |number| load.event(number * INSTANCES + instance))
    }
}

/// A kind of element, and the plain collection beside it.
trait Kind: 'static {
    const NAME: &'static str;
    type State: Element<u64>;
    /// The plain content of a key.
    type Plain: Default + Send;

    fn state(flow: &Flow) -> Self::State;
    fn change(content: <Self::State as Element<u64>>::Content<'_>, field: u64);
    fn change_plain(content: &mut Self::Plain, field: u64);
    /// Returns a figure of a key's content, to be compared: its count, or the number of its items.
    fn figure(state: &Self::State, key: u64) -> u64;
    fn plain_figure(content: &Self::Plain) -> u64;
}

/// Runs a flow over the element, with its state in a new log.
fn run<K: Kind>(bench: &Bench, folder: &Folder, load: Load) -> Result<(Took, u64)> {
    folder.empty()?;
    let log = Log::open(LogConfig::new(folder.path().join("log")))?;
    bench.settle_disk();
    let mut figure = 0;
    let took = time(|| {
        let settings = FlowSettings {
            workers: NonZeroUsize::new(INSTANCES as usize).expect("there are instances"),
            checkpoints: Some(checkpoints(&log, INTERVAL, Resume::Never)),
            ..FlowSettings::default()
        };
        let flow = Flow::with_settings(FLOW, settings);
        let state = K::state(&flow);
        let source = |instance| {
            let make = move |number| load.event(number * INSTANCES + instance);
            Generator::new(make).limit(load.events / INSTANCES)
        };
        flow.sources("events", (0..INSTANCES).map(source).collect::<Vec<_>>())
            .key_by(|event| event.key)
            .update(
                "change",
                &state,
                |_, content, event, _: &mut Emit<'_, ()>| {
                    K::change(content, event.field);
                },
            )
            .fold_local(&flow.partial::<u64>("nothing"), |_, ()| ());
        let running = flow.run()?;
        ended(&running)?;
        let stored = running.checkpoints().unwrap_or_default();
        ensure!(
            stored.failed == 0,
            "a checkpoint failed: {:?}",
            stored.error
        );
        figure = (0..load.keys).map(|key| K::figure(&state, key)).sum();
        Ok(())
    })?;
    log.close()?;
    Ok((took, figure))
}

/// Changes plain collections in as many threads, each with its own.
fn by_hand<K: Kind>(load: Load) -> Result<Took> {
    time(|| {
        thread::scope(|scope| {
            let threads = (0..INSTANCES).map(|instance| {
                scope.spawn(move || {
                    let mut contents = HashMap::<u64, K::Plain>::new();
                    for event in load.of_instance(instance) {
                        K::change_plain(contents.entry(event.key).or_default(), event.field);
                    }
                    black_box(contents);
                })
            });
            let threads: Vec<_> = threads.collect();
            let mut ended = threads.into_iter().map(|thread| thread.join());
            ended.try_for_each(|ended| ended.map_err(|_| anyhow!("a thread panicked")))
        })
    })
}

/// The figure that the element must have in the end.
fn expected<K: Kind>(load: Load) -> u64 {
    let mut contents = HashMap::<u64, K::Plain>::new();
    for event in (0..INSTANCES).flat_map(|instance| load.of_instance(instance)) {
        K::change_plain(contents.entry(event.key).or_default(), event.field);
    }
    contents.values().map(K::plain_figure).sum()
}

/// Evenly spread keys beside a loop by hand, and one hot key beside them.
fn measure<K: Kind>(bench: &Bench, folder: &Folder, cases: &mut Vec<Case>) -> Result<()> {
    let even = Load {
        keys: bench.size(KEYS, 100),
        events: bench.size(20_000_000, 20_000),
    };
    let hot = Load { keys: 1, ..even };
    let expected = [even, hot].map(expected::<K>);
    let rounds = bench.turns(3, |place| {
        let (load, expected) = match place {
            0 => (even, expected[0]),
            1 => (hot, expected[1]),
            _ => return by_hand::<K>(even),
        };
        let (took, figure) = run::<K>(bench, folder, load)?;
        ensure!(
            figure == expected,
            "{} has the figure {figure}, not {expected}",
            K::NAME
        );
        Ok(took)
    })?;
    let rates = |place: usize| {
        let rate = |took: &Took| even.events as f64 / 1e6 / took.seconds;
        rounds[place].iter().map(rate).collect::<Vec<f64>>()
    };
    let ns = |place: usize| cpu_median(&rounds[place]) * 1e9 / even.events as f64;
    let name = format!("{ELEMENTS}/{}", K::NAME);
    let unit = "M updates/s";
    let case = Case::new(name, unit, Better::Higher, rates(0))
        .by_hand(rates(2))
        .target(TARGET)
        .detail("cpu_ns_per_update", ns(0))
        .detail("cpu_ns_per_update_by_hand", ns(2));
    cases.push(case);
    let name = format!("{ELEMENTS}/{}-hot-key", K::NAME);
    let case = Case::new(name, unit, Better::Higher, rates(1)).target(HOT_TARGET);
    cases.push(case.by_hand(rates(0)).detail("cpu_ns_per_update", ns(1)));
    Ok(())
}

pub fn elements(bench: &Bench) -> Result<Vec<Case>> {
    let folder = bench.folder(ELEMENTS, 2 << 30)?;
    let mut cases = Vec::new();
    measure::<ValueKind>(bench, &folder, &mut cases)?;
    measure::<CounterKind>(bench, &folder, &mut cases)?;
    measure::<MapKind>(bench, &folder, &mut cases)?;
    measure::<OrderedMapKind>(bench, &folder, &mut cases)?;
    measure::<SetKind>(bench, &folder, &mut cases)?;
    measure::<MatrixKind>(bench, &folder, &mut cases)?;
    measure::<ListKind>(bench, &folder, &mut cases)?;
    measure::<VectorKind>(bench, &folder, &mut cases)?;
    measure::<TopKind>(bench, &folder, &mut cases)?;
    Ok(cases)
}

type Content<'a, K> = <<K as Kind>::State as Element<u64>>::Content<'a>;

struct ValueKind;

impl Kind for ValueKind {
    const NAME: &'static str = "value";
    type State = Values<u64, u64>;
    type Plain = u64;

    fn state(flow: &Flow) -> Self::State {
        flow.values("state")
    }

    fn change(content: Content<'_, Self>, _: u64) {
        *content.get_or_insert_default() += 1;
    }

    fn change_plain(content: &mut u64, _: u64) {
        *content += 1;
    }

    fn figure(state: &Self::State, key: u64) -> u64 {
        state.get(&key).unwrap_or_default()
    }

    fn plain_figure(content: &u64) -> u64 {
        *content
    }
}

struct CounterKind;

impl Kind for CounterKind {
    const NAME: &'static str = "counter";
    type State = Counters<u64>;
    type Plain = i64;

    fn state(flow: &Flow) -> Self::State {
        flow.counters("state")
    }

    fn change(mut content: Content<'_, Self>, _: u64) {
        content.add(1);
    }

    fn change_plain(content: &mut i64, _: u64) {
        *content += 1;
    }

    fn figure(state: &Self::State, key: u64) -> u64 {
        state.get(&key) as u64
    }

    fn plain_figure(content: &i64) -> u64 {
        *content as u64
    }
}

struct MapKind;

impl Kind for MapKind {
    const NAME: &'static str = "map";
    type State = Maps<u64, u64, u64>;
    type Plain = HashMap<u64, u64>;

    fn state(flow: &Flow) -> Self::State {
        flow.maps("state")
    }

    fn change(mut content: Content<'_, Self>, field: u64) {
        *content.or_default(&field) += 1;
    }

    fn change_plain(content: &mut Self::Plain, field: u64) {
        *content.entry(field).or_default() += 1;
    }

    fn figure(state: &Self::State, key: u64) -> u64 {
        state.entries(&key).iter().map(|(_, count)| count).sum()
    }

    fn plain_figure(content: &Self::Plain) -> u64 {
        content.values().sum()
    }
}

struct OrderedMapKind;

impl Kind for OrderedMapKind {
    const NAME: &'static str = "ordered-map";
    type State = OrderedMaps<u64, u64, u64>;
    type Plain = BTreeMap<u64, u64>;

    fn state(flow: &Flow) -> Self::State {
        flow.ordered_maps("state")
    }

    fn change(mut content: Content<'_, Self>, field: u64) {
        *content.or_default(&field) += 1;
    }

    fn change_plain(content: &mut Self::Plain, field: u64) {
        *content.entry(field).or_default() += 1;
    }

    fn figure(state: &Self::State, key: u64) -> u64 {
        state.entries(&key).iter().map(|(_, count)| count).sum()
    }

    fn plain_figure(content: &Self::Plain) -> u64 {
        content.values().sum()
    }
}

struct SetKind;

impl Kind for SetKind {
    const NAME: &'static str = "set";
    type State = Sets<u64, u64>;
    type Plain = HashSet<u64>;

    fn state(flow: &Flow) -> Self::State {
        flow.sets("state")
    }

    /// Inserts an element that is not there, and removes one that is: each update is a change.
    fn change(mut content: Content<'_, Self>, field: u64) {
        if !content.insert(&field) {
            content.remove(&field);
        }
    }

    fn change_plain(content: &mut Self::Plain, field: u64) {
        if !content.insert(field) {
            content.remove(&field);
        }
    }

    fn figure(state: &Self::State, key: u64) -> u64 {
        state.elements(&key).len() as u64
    }

    fn plain_figure(content: &Self::Plain) -> u64 {
        content.len() as u64
    }
}

struct MatrixKind;

impl Kind for MatrixKind {
    const NAME: &'static str = "matrix";
    type State = Matrices<u64, u64>;
    type Plain = HashMap<u64, f64>;

    fn state(flow: &Flow) -> Self::State {
        flow.matrices("state")
    }

    fn change(mut content: Content<'_, Self>, field: u64) {
        content.add(&field, 1.0);
    }

    fn change_plain(content: &mut Self::Plain, field: u64) {
        *content.entry(field).or_default() += 1.0;
    }

    fn figure(state: &Self::State, key: u64) -> u64 {
        state
            .row(&key)
            .iter()
            .map(|(_, number)| *number as u64)
            .sum()
    }

    fn plain_figure(content: &Self::Plain) -> u64 {
        content.values().map(|number| *number as u64).sum()
    }
}

struct ListKind;

impl Kind for ListKind {
    const NAME: &'static str = "list";
    type State = Lists<u64, u64>;
    type Plain = VecDeque<u64>;

    fn state(flow: &Flow) -> Self::State {
        flow.lists("state")
    }

    /// Keeps the last items.
    fn change(mut content: Content<'_, Self>, field: u64) {
        content.push_back(field);
        if content.len() > ITEMS_MAX {
            content.pop_front();
        }
    }

    fn change_plain(content: &mut Self::Plain, field: u64) {
        content.push_back(field);
        if content.len() > ITEMS_MAX {
            content.pop_front();
        }
    }

    fn figure(state: &Self::State, key: u64) -> u64 {
        state.items(&key).len() as u64
    }

    fn plain_figure(content: &Self::Plain) -> u64 {
        content.len() as u64
    }
}

struct VectorKind;

impl Kind for VectorKind {
    const NAME: &'static str = "vector";
    type State = Vectors<u64>;
    type Plain = Vec<f64>;

    fn state(flow: &Flow) -> Self::State {
        flow.vectors("state")
    }

    fn change(mut content: Content<'_, Self>, field: u64) {
        content.add(field as usize, 1.0);
    }

    fn change_plain(content: &mut Self::Plain, field: u64) {
        let index = field as usize;
        if content.len() <= index {
            content.resize(index + 1, 0.0);
        }
        content[index] += 1.0;
    }

    fn figure(state: &Self::State, key: u64) -> u64 {
        state.get(&key).iter().sum::<f64>() as u64
    }

    fn plain_figure(content: &Self::Plain) -> u64 {
        content.iter().sum::<f64>() as u64
    }
}

struct TopKind;

impl Kind for TopKind {
    const NAME: &'static str = "top";
    type State = Tops<u64, u64, u64>;
    type Plain = Vec<(u64, u64)>;

    fn state(flow: &Flow) -> Self::State {
        flow.tops("state", ITEMS_MAX)
    }

    /// Fields have scores in another order, and the highest stay.
    fn change(mut content: Content<'_, Self>, field: u64) {
        content.put(&(field * 7 % FIELDS), &field);
    }

    fn change_plain(content: &mut Self::Plain, field: u64) {
        let scored = (field * 7 % FIELDS, field);
        if content.iter().any(|(_, item)| *item == field) {
            return;
        }
        let place = content.partition_point(|other| other.0 > scored.0);
        if place < ITEMS_MAX {
            content.truncate(ITEMS_MAX - 1);
            content.insert(place, scored);
        }
    }

    fn figure(state: &Self::State, key: u64) -> u64 {
        state.get(&key).iter().map(|(score, _)| score).sum()
    }

    fn plain_figure(content: &Self::Plain) -> u64 {
        content.iter().map(|(score, _)| score).sum()
    }
}
