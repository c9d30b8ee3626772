//! The transactions that hold back a lane's last stable offset.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use millstream_base::Offset;
use parking_lot::Mutex;

use crate::producers::transactions::EndedTransaction;

/// The transactions of a lane that hold back consumers of committed records: those that have not ended,
/// and those whose marker is not durable.
#[derive(Debug, Default)]
pub struct Unstable {
    /// The number of open transactions, so that a lane without any takes no lock. Stored under the lock.
    count: AtomicUsize,
    transactions: Mutex<UnstableTransactions>,
}

#[derive(Debug, Default)]
struct UnstableTransactions {
    /// The first offset of each transaction, and the offset of its marker, if there is one.
    by_first: BTreeMap<Offset, Option<Offset>>,
    /// Transactions with a marker, in the order of the markers: the marker's offset, and the transaction's first one.
    ended: VecDeque<(Offset, Offset)>,
    /// The ended transactions whose marker a crash may still lose, in the same order.
    revocable: VecDeque<(Offset, Offset)>,
}

impl Unstable {
    /// Takes over the transactions that are open after a start.
    pub fn new(open: impl Iterator<Item = Offset>) -> Unstable {
        let by_first: BTreeMap<Offset, Option<Offset>> = open.map(|first| (first, None)).collect();
        Unstable {
            count: AtomicUsize::new(by_first.len()),
            transactions: Mutex::new(UnstableTransactions {
                by_first,
                ended: VecDeque::new(),
                revocable: VecDeque::new(),
            }),
        }
    }

    /// A transaction begins with a chunk that is about to be made durable.
    pub fn begin(&self, first: Offset) {
        let mut transactions = self.transactions.lock();
        transactions.by_first.insert(first, None);
        self.count
            .store(transactions.by_first.len(), Ordering::Relaxed);
    }

    /// A transaction has a marker, which is about to be made durable.
    pub fn end(&self, ended: &EndedTransaction, durable: Offset) {
        let mut transactions = self.transactions.lock();
        let (first, marker) = (ended.first_offset, ended.last_offset);
        transactions.by_first.insert(first, Some(marker));
        transactions.ended.push_back((marker, first));
        transactions.revocable.push_back((marker, first));
        transactions.forget_irrevocable(durable);
        self.settle(&mut transactions, durable);
    }

    /// Returns the offset where the first of them begins, or `high_watermark` when all that begin before it have
    /// ended. The caller must have loaded the lane's high watermark before the call.
    pub fn first(&self, high_watermark: Offset) -> Offset {
        // A transaction is counted before its chunk is handed on, so a reader whose high watermark is behind the
        // chunk sees the count.
        if self.count.load(Ordering::Relaxed) == 0 {
            return high_watermark;
        }
        let mut transactions = self.transactions.lock();
        self.settle(&mut transactions, high_watermark);
        let first = transactions.by_first.keys().next();
        first.map_or(high_watermark, |first| high_watermark.min(*first))
    }

    /// Returns the first offset of the earliest transaction that has not ended, or whose end a crash may still lose;
    /// `durable` when there is none before it. The caller must have loaded the lane's durable offset before the call.
    pub fn first_for_good(&self, durable: Offset) -> Offset {
        let mut transactions = self.transactions.lock();
        self.settle(&mut transactions, durable);
        transactions.forget_irrevocable(durable);
        let open = transactions.by_first.keys();
        let revocable = transactions.revocable.iter().map(|(_, first)| first);
        let first = open.chain(revocable).min();
        first.map_or(durable, |first| durable.min(*first))
    }

    /// Forgets transactions whose markers may be read.
    fn settle(&self, transactions: &mut UnstableTransactions, high_watermark: Offset) {
        while let Some((marker, first)) = transactions.ended.front()
            && *marker < high_watermark
        {
            transactions.by_first.remove(first);
            transactions.ended.pop_front();
        }
        self.count
            .store(transactions.by_first.len(), Ordering::Relaxed);
    }
}

impl UnstableTransactions {
    fn forget_irrevocable(&mut self, durable: Offset) {
        while self
            .revocable
            .pop_front_if(|(marker, _)| *marker < durable)
            .is_some()
        {}
    }
}
