//! Runs random steps with any number of open slices, and compares the ring with a plain queue.
#![cfg(not(loom))]

mod common;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use common::ring_between;
use millstream_ring::{ReadSlice, Ring, WriteSlice};
use proptest::prelude::*;

/// A step on the ring. Its `usize` in first place counts items, or chooses among the open slices.
#[derive(Debug, Clone)]
enum Step {
    Write(usize),
    Push(usize, usize),
    Commit(usize),
    DropWrite(usize),
    Read(usize),
    Done(usize),
    DropRead(usize),
    Grow,
    Shrink,
}

fn step() -> impl Strategy<Value = Step> {
    let count = 1..9usize;
    let which = any::<usize>();
    prop_oneof![
        4 => count.clone().prop_map(Step::Write),
        6 => (which, count.clone()).prop_map(|(which, count)| Step::Push(which, count)),
        3 => which.prop_map(Step::Commit),
        1 => which.prop_map(Step::DropWrite),
        4 => count.prop_map(Step::Read),
        3 => which.prop_map(Step::Done),
        1 => which.prop_map(Step::DropRead),
        1 => Just(Step::Grow),
        1 => Just(Step::Shrink),
    ]
}

/// The number of the item's write slice and its index there, which is the order of reading. It is on the
/// heap, so that a doubled item shows.
type Item = Box<(usize, usize)>;

/// The expected content of the ring.
#[derive(Default)]
struct Model {
    /// By slice: the number of its items, and whether it is committed.
    written: Vec<(usize, bool)>,
    /// By slice: its room, in items.
    rooms: Vec<usize>,
    /// The number of readable slices, from the first one on.
    published: usize,
    /// The items that are readable or were handed back; in an unordered ring perhaps more.
    available: BTreeSet<(usize, usize)>,
    finished: u64,
}

impl Model {
    fn commit(&mut self, slice: usize, is_ordered: bool) {
        self.written[slice].1 = true;
        if !is_ordered {
            let count = self.written[slice].0;
            self.available
                .extend((0..count).map(|index| (slice, index)));
            return;
        }
        while let Some((count, true)) = self.written.get(self.published) {
            let items = (0..*count).map(|index| (self.published, index));
            self.available.extend(items);
            self.published += 1;
        }
    }

    /// Checks the items that a reader got, and removes them. Handed-back items are the earliest ones, so an
    /// ordered ring always gives the first of `available`.
    fn read(
        &mut self,
        items: &[(usize, usize)],
        asked: usize,
        is_ordered: bool,
    ) -> Result<(), TestCaseError> {
        // The ring does not split a slice with overflow, so a reader may get more than it asked for.
        let slices: BTreeSet<usize> = items.iter().map(|(slice, _)| *slice).collect();
        let beyond = |slice: &usize| self.written[*slice].0.saturating_sub(self.rooms[*slice]);
        let beyond: usize = slices.iter().map(beyond).sum();
        prop_assert!((1..=asked + beyond).contains(&items.len()));
        for item in items {
            match is_ordered {
                true => prop_assert_eq!(self.available.pop_first(), Some(*item)),
                false => prop_assert!(self.available.remove(item)),
            }
        }
        Ok(())
    }
}

fn items(slice: &ReadSlice<Item>) -> Vec<(usize, usize)> {
    let items = slice.parts().into_iter().flatten();
    items.map(|item| **item).collect()
}

fn pick<S>(slices: &mut VecDeque<S>, which: usize) -> Option<S> {
    let count = slices.len();
    (count > 0).then(|| slices.remove(which % count))?
}

fn check(steps: Vec<Step>, lanes: usize) -> Result<(), TestCaseError> {
    let is_ordered = lanes == 1;
    let ring: Arc<Ring<Item>> = ring_between(4, 32, lanes);
    let mut model = Model::default();
    let mut writes: VecDeque<(usize, WriteSlice<Item>)> = VecDeque::new();
    let mut reads: VecDeque<ReadSlice<Item>> = VecDeque::new();
    let mut is_resizing = false;
    for step in steps {
        // A handed-back slice holds up a resize, so the resize is over only if the ring is empty, too.
        is_resizing &= !(writes.is_empty() && reads.is_empty() && ring.is_empty());
        match step {
            Step::Write(count) => {
                let room = ring.room();
                match ring.try_write(count) {
                    Some(slice) => {
                        prop_assert!((1..=count.min(room)).contains(&slice.room()));
                        model.rooms.push(slice.room());
                        writes.push_back((model.written.len(), slice));
                        model.written.push((0, false));
                    }
                    None => prop_assert!(is_resizing || room == 0),
                }
            }
            Step::Push(which, count) => {
                if let Some((slice, mut write)) = pick(&mut writes, which) {
                    let pushed = &mut model.written[slice].0;
                    for index in *pushed..*pushed + count {
                        write.push(Box::new((slice, index)));
                    }
                    *pushed += count;
                    writes.push_back((slice, write));
                }
            }
            Step::Commit(which) => {
                if let Some((slice, write)) = pick(&mut writes, which) {
                    prop_assert_eq!(write.len(), model.written[slice].0);
                    write.commit();
                    model.commit(slice, is_ordered);
                }
            }
            Step::DropWrite(which) => {
                if let Some((slice, write)) = pick(&mut writes, which) {
                    drop(write);
                    model.written[slice].0 = 0;
                    model.commit(slice, is_ordered);
                }
            }
            Step::Read(count) => {
                let readable = ring.readable();
                match ring.try_read(count) {
                    Some(slice) => {
                        prop_assert!(readable > 0);
                        model.read(&items(&slice), count, is_ordered)?;
                        reads.push_back(slice);
                    }
                    None if is_ordered => prop_assert!(is_resizing || model.available.is_empty()),
                    None => {}
                }
            }
            Step::Done(which) => {
                if let Some(slice) = pick(&mut reads, which) {
                    model.finished += slice.len() as u64;
                    slice.done();
                }
            }
            Step::DropRead(which) => {
                if let Some(slice) = pick(&mut reads, which) {
                    model.available.extend(items(&slice));
                }
            }
            Step::Grow => is_resizing |= ring.grow(),
            Step::Shrink => is_resizing |= ring.shrink(),
        }
        prop_assert!(reads.is_empty() && writes.is_empty() || !ring.is_empty());
    }
    // Commit all open write slices, hand back all read slices, and read the rest.
    for (slice, write) in writes {
        write.commit();
        model.commit(slice, is_ordered);
    }
    for slice in reads {
        model.available.extend(items(&slice));
    }
    while let Some(slice) = ring.try_read(5) {
        model.read(&items(&slice), 5, is_ordered)?;
        model.finished += slice.len() as u64;
        slice.done();
    }
    prop_assert!(model.available.is_empty(), "{:?}", model.available);
    prop_assert!(ring.is_empty());
    prop_assert_eq!(ring.readable(), 0);
    prop_assert_eq!(ring.room(), ring.capacity());
    prop_assert_eq!(
        (ring.written(), ring.read()),
        (model.finished, model.finished)
    );
    Ok(())
}

/// Miri is a thousand times slower.
const STEPS: usize = if cfg!(miri) { 40 } else { 150 };

fn config() -> ProptestConfig {
    match cfg!(miri) {
        true => ProptestConfig {
            cases: 3,
            failure_persistence: None,
            ..ProptestConfig::default()
        },
        false => ProptestConfig::default(),
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn an_ordered_ring_is_a_queue(steps in prop::collection::vec(step(), 0..STEPS)) {
        check(steps, 1)?;
    }

    #[test]
    fn an_unordered_ring_is_a_bag(steps in prop::collection::vec(step(), 0..STEPS)) {
        check(steps, 3)?;
    }
}
