//! The tables at the begin of a circuit, and the end of its results.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

use dbsp::operator::TransactionGenerator;
use dbsp::trace::BatchReader as _;
use dbsp::typed_batch::IndexedZSetReader;
use dbsp::utils::Tup2;
use dbsp::{Circuit as _, DBData, OrdIndexedZSet, OrdZSet, RootCircuit, Stream, ZWeight};

use crate::events::{Event, Share};

pub type Table<K, V> = Stream<RootCircuit, OrdIndexedZSet<K, V>>;
pub type Set<K> = Stream<RootCircuit, OrdZSet<K>>;

/// The events of one worker.
pub struct Input<'c> {
    pub circuit: &'c RootCircuit,
    pub share: Share,
    /// The worker reads at least this number of events in a step, in whole blocks.
    pub step_events: usize,
    /// Counts the workers that have read all.
    pub ended: Arc<AtomicUsize>,
}

/// Inserts of a step.
type Inserts<K, V> = Vec<Tup2<Tup2<K, V>, ZWeight>>;

impl Input<'_> {
    /// Returns a table with the rows that `rows` makes of each event.
    ///
    /// dbsp sorts the rows behind each of its operators. So the first operators of a query, which look at one event at a
    /// time, are part of its source.
    pub fn set<K: DBData, I: IntoIterator<Item = K>>(
        self,
        rows: impl Fn(&Event<'_>) -> I + 'static,
    ) -> Set<K> {
        let (circuit, mut reader) = (self.circuit, self.reader());
        circuit.add_source(TransactionGenerator::new(move |is_new| {
            let mut inserts = Vec::new();
            if is_new {
                let row = |key| insert((key, ()));
                reader(&mut |event| inserts.extend(rows(event).into_iter().map(row)));
            }
            OrdZSet::from_tuples((), inserts)
        }))
    }

    /// Returns the same table with keys.
    pub fn table<K: DBData, V: DBData, I: IntoIterator<Item = (K, V)>>(
        self,
        rows: impl Fn(&Event<'_>) -> I + 'static,
    ) -> Table<K, V> {
        let (circuit, mut reader) = (self.circuit, self.reader());
        source(circuit, move || {
            let mut inserts = Vec::new();
            reader(&mut |event| inserts.extend(rows(event).into_iter().map(insert)));
            inserts
        })
    }

    /// Returns two of them.
    pub fn tables<K1, V1, I1, K2, V2, I2>(
        self,
        first_rows: impl Fn(&Event<'_>) -> I1 + 'static,
        second_rows: impl Fn(&Event<'_>) -> I2 + 'static,
    ) -> (Table<K1, V1>, Table<K2, V2>)
    where
        K1: DBData,
        V1: DBData,
        I1: IntoIterator<Item = (K1, V1)>,
        K2: DBData,
        V2: DBData,
        I2: IntoIterator<Item = (K2, V2)>,
    {
        let (circuit, mut reader) = (self.circuit, self.reader());
        // A step asks both sources, in any order: the first one reads for both.
        let unread: (Option<Inserts<K1, V1>>, Option<Inserts<K2, V2>>) = (None, None);
        let step = Rc::new(RefCell::new((unread, move || {
            let (mut first, mut second) = (Vec::new(), Vec::new());
            reader(&mut |event| {
                first.extend(first_rows(event).into_iter().map(insert));
                second.extend(second_rows(event).into_iter().map(insert));
            });
            (Some(first), Some(second))
        })));
        let step_too = step.clone();
        let first = source(circuit, move || {
            let (unread, read) = &mut *step.borrow_mut();
            if unread.0.is_none() {
                *unread = read();
            }
            unread.0.take().unwrap_or_default()
        });
        let second = source(circuit, move || {
            let (unread, read) = &mut *step_too.borrow_mut();
            if unread.1.is_none() {
                *unread = read();
            }
            unread.1.take().unwrap_or_default()
        });
        (first, second)
    }

    /// Returns a function that gives another one each event of the next step.
    fn reader(self) -> impl FnMut(&mut dyn FnMut(&Event<'_>)) + 'static {
        let Input {
            mut share,
            step_events,
            ended,
            ..
        } = self;
        let mut is_counted = false;
        move |each| {
            let read = share.read(step_events, each);
            read.unwrap_or_else(|error| crate::fail(&format!("cannot read events: {error}")));
            if share.has_ended() && !is_counted {
                is_counted = true;
                ended.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Returns a table with the inserts that `next` gives in each step.
fn source<K: DBData, V: DBData>(
    circuit: &RootCircuit,
    mut next: impl FnMut() -> Inserts<K, V> + 'static,
) -> Table<K, V> {
    // dbsp asks again, with `false`, until a step has ended.
    circuit.add_source(TransactionGenerator::new(move |is_new| {
        let inserts = if is_new { next() } else { Vec::new() };
        OrdIndexedZSet::from_tuples((), inserts)
    }))
}

fn insert<K, V>((key, value): (K, V)) -> Tup2<Tup2<K, V>, ZWeight> {
    Tup2(Tup2(key, value), 1)
}

/// The results of all workers, as changes.
#[derive(Clone, Default)]
pub struct Results {
    /// Whether rows are added up, too.
    pub checks: bool,
    pub changes: Arc<AtomicU64>,
    pub rows: Arc<AtomicI64>,
    /// The sum of the rows' hashes, modulo 2^64.
    pub hashes: Arc<AtomicU64>,
}

impl Results {
    /// Counts the changes, and drops them. A check adds up the rows that they leave, as `text` writes them.
    pub fn end<Z>(
        &self,
        results: &Stream<RootCircuit, Z>,
        text: impl Fn(&Z::Key, &Z::Val) -> String + 'static,
    ) where
        Z: IndexedZSetReader + Clone,
    {
        let sums = self.clone();
        results.inspect(move |batch| {
            let changes = batch.inner().len() as u64;
            sums.changes.fetch_add(changes, Ordering::Relaxed);
            if !sums.checks {
                return;
            }
            for (key, value, weight) in batch.iter() {
                let hashes = hash(&text(&key, &value)).wrapping_mul(weight as u64);
                sums.rows.fetch_add(weight, Ordering::Relaxed);
                sums.hashes.fetch_add(hashes, Ordering::Relaxed);
            }
        });
    }
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
