//! A stage with several instances that adds up, and one with several partitions that releases.

use std::collections::VecDeque;

use millstream_base::Timestamp;
use millstream_flow::windows::{
    Aggregate, Arrival, LocalPanes, Partial, Trigger, WindowResult, WindowStore, Windows, fold,
};

use crate::model::{self, Expected, Item, Spec};

pub type Values = Vec<i64>;

/// All values of a window, so that no item can be lost or counted twice unnoticed.
pub fn collect() -> impl Aggregate<i64, State = Values, Out = Values> {
    fold(
        Vec::new,
        |values: &mut Values, value: &i64| values.push(*value),
        |values: &mut Values, other: &Values| values.extend(other),
    )
}

pub fn windows(spec: Spec, lateness: i64) -> Windows {
    let windows = match spec {
        Spec::Tumbling { size } => Windows::tumbling(size),
        Spec::Sliding { size, slide } => Windows::sliding(size, slide),
        Spec::Session { gap } => Windows::session(gap),
        Spec::Every {
            period,
            purges: false,
        } => Windows::global(Trigger::every_ms(period)),
        Spec::Every { period, .. } => Windows::global(Trigger::every_ms(period).purging()),
    };
    windows.allowed_lateness(lateness)
}

pub fn as_expected(result: &WindowResult<u8, Values>) -> Expected {
    let mut values = result.value.clone();
    values.sort_unstable();
    assert_eq!(values.len() as u64, result.events);
    Expected {
        end: result.end.0,
        start: result.start.0,
        key: result.key,
        values,
        time_max: result.time_max.0,
    }
}

/// The messages on the way from an instance to a partition.
enum Message {
    Partial(Partial<u8, Values>),
    Watermark(i64),
}

struct Instance {
    panes: LocalPanes<u8, Values>,
    /// Largest time read.
    newest: i64,
    watermark: i64,
    /// The last watermark that it emitted to all partitions.
    said: i64,
}

struct Partition {
    store: WindowStore<u8, Values>,
    /// By instance: the messages on the way, and the last watermark that arrived.
    inbox: Vec<(VecDeque<Message>, i64)>,
}

/// All instances and partitions, and their results.
pub struct Plant {
    bound_ms: i64,
    instances: Vec<Instance>,
    partitions: Vec<Partition>,
    pub items: Vec<Item>,
    pub late: Vec<bool>,
    lateness: i64,
    /// In the order in which they came, and whether they are updates.
    given: Vec<(Expected, bool)>,
}

impl Plant {
    pub fn new(
        (spec, lateness): (Spec, i64),
        bound_ms: i64,
        instances: usize,
        partitions: usize,
    ) -> Self {
        let windows = windows(spec, lateness);
        let instance = || Instance {
            panes: LocalPanes::new(windows),
            newest: i64::MIN,
            watermark: i64::MIN,
            said: i64::MIN,
        };
        let partition = || Partition {
            store: WindowStore::new(windows, 3),
            inbox: (0..instances)
                .map(|_| (VecDeque::new(), i64::MIN))
                .collect(),
        };
        Self {
            bound_ms,
            instances: (0..instances).map(|_| instance()).collect(),
            partitions: (0..partitions).map(|_| partition()).collect(),
            items: Vec::new(),
            late: Vec::new(),
            lateness,
            given: Vec::new(),
        }
    }

    pub fn read(&mut self, instance: usize, key: u8, time: i64) {
        let count = self.instances.len();
        let source = &mut self.instances[instance % count];
        let value = self.items.len() as i64;
        let (at, watermark) = (Timestamp(time), Timestamp(source.watermark));
        let arrival = source.panes.add(&collect(), key, at, watermark, &value);
        self.late.push(arrival == Arrival::Late);
        self.items.push(Item {
            key,
            time,
            value,
            watermark: source.watermark,
        });
        source.newest = source.newest.max(time);
        source.watermark = source.newest.saturating_sub(self.bound_ms);
    }

    /// Sends the partial results that must go before the instance's watermark, or everything.
    pub fn flush(&mut self, instance: usize, everything: bool) {
        let index = instance % self.instances.len();
        let source = &mut self.instances[index];
        let before = source.panes.len();
        let mut given = Vec::new();
        if everything {
            source.panes.flush_all(&mut |partial| given.push(partial));
            assert!(source.panes.is_empty());
        } else {
            let watermark = Timestamp(source.watermark);
            source
                .panes
                .flush(watermark, &mut |partial| given.push(partial));
        }
        assert_eq!(before, source.panes.len() + given.len());
        let count = self.partitions.len();
        for partial in given {
            let inbox = &mut self.partitions[usize::from(partial.key) % count].inbox[index].0;
            inbox.push_back(Message::Partial(through_bytes(&partial)));
        }
    }

    pub fn say_watermark(&mut self, instance: usize) {
        self.flush(instance, false);
        let index = instance % self.instances.len();
        let source = &mut self.instances[index];
        source.said = source.watermark;
        for partition in &mut self.partitions {
            partition.inbox[index]
                .0
                .push_back(Message::Watermark(source.said));
        }
    }

    /// A partition takes up to `count` messages of an instance.
    pub fn deliver(&mut self, partition: usize, instance: usize, count: usize) {
        let partitions = self.partitions.len();
        let index = instance % self.instances.len();
        let partition = &mut self.partitions[partition % partitions];
        for _ in 0..count {
            match partition.inbox[index].0.pop_front() {
                None => return,
                Some(Message::Partial(partial)) => {
                    assert_eq!(partition.store.merge(&collect(), partial), Arrival::OnTime);
                }
                Some(Message::Watermark(time)) => {
                    partition.inbox[index].1 = time;
                    advance(partition, self.lateness, &mut self.given);
                }
            }
        }
    }

    /// All stores go through a snapshot to another number of partitions, which have not all come
    /// equally far.
    pub fn repartition(&mut self, count: usize) {
        let old = std::mem::take(&mut self.partitions);
        let mut parts: Vec<Option<WindowStore<u8, Values>>> = (0..count).map(|_| None).collect();
        let mut inbox: Vec<Vec<(VecDeque<Message>, i64)>> = Vec::new();
        for _ in 0..count {
            let least = |index: usize| old.iter().map(|part| part.inbox[index].1).min();
            let sources = 0..self.instances.len();
            inbox.push(
                sources
                    .map(|i| (VecDeque::new(), least(i).unwrap()))
                    .collect(),
            );
        }
        for partition in old {
            let mut store = through_bytes(&partition.store);
            for (number, part) in parts.iter_mut().enumerate() {
                let mine = store.split_off(|key| usize::from(*key) % count == number);
                match part {
                    Some(part) => part.absorb(mine),
                    None => *part = Some(mine),
                }
            }
            assert_eq!(store.totals().open_windows, 0);
            for (index, (messages, _)) in partition.inbox.into_iter().enumerate() {
                for message in messages {
                    if let Message::Partial(partial) = message {
                        let to = usize::from(partial.key) % count;
                        inbox[to][index].0.push_back(Message::Partial(partial));
                    }
                }
            }
        }
        for inbox in &mut inbox {
            for (source, (messages, _)) in self.instances.iter().zip(inbox) {
                messages.push_back(Message::Watermark(source.said));
            }
        }
        let parts = parts.into_iter().flatten().zip(inbox);
        self.partitions = parts
            .map(|(store, inbox)| Partition { store, inbox })
            .collect();
    }

    /// The end of bounded input; the last result of each window.
    pub fn finish(&mut self) -> Vec<Expected> {
        for instance in 0..self.instances.len() {
            self.flush(instance, true);
            for partition in 0..self.partitions.len() {
                self.deliver(partition, instance, usize::MAX);
            }
        }
        for partition in &mut self.partitions {
            let given = &mut self.given;
            let store = &mut partition.store;
            store.close();
            let mut out = |result: WindowResult<u8, Values>| {
                given.push((as_expected(&result), result.is_update));
            };
            while !store.advance_some(&collect(), Timestamp(i64::MAX), 3, &mut out) {}
            let totals = partition.store.totals();
            assert_eq!((totals.late_events, totals.kept_windows), (0, 0));
        }
        model::settle(std::mem::take(&mut self.given))
    }
}

/// In steps of few results, and from a snapshot after each other of them.
fn advance(partition: &mut Partition, lateness: i64, results: &mut Vec<(Expected, bool)>) {
    let least = partition.inbox.iter().map(|(_, time)| *time).min().unwrap();
    let before = partition.store.watermark().0;
    let mut last_end = i64::MIN;
    let mut limit = 1 + results.len() % 4;
    loop {
        let given = results.len();
        let store = &mut partition.store;
        let is_all = store.advance_some(&collect(), Timestamp(least), limit, &mut |result| {
            assert!(
                last_end <= result.end.0,
                "results are in the order of their ends"
            );
            assert!(
                before < result.end.0.saturating_add(lateness),
                "a result is given as soon as it can be"
            );
            assert!(
                result.end.0 <= least,
                "a result is not given before its end"
            );
            last_end = result.end.0;
            results.push((as_expected(&result), result.is_update));
        });
        assert!(results.len() - given <= limit);
        if is_all {
            return;
        }
        if limit.is_multiple_of(2) {
            *store = through_bytes(store);
        }
        limit += 1;
    }
}

fn through_bytes<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    serde_json::from_slice(&serde_json::to_vec(value).unwrap()).unwrap()
}
