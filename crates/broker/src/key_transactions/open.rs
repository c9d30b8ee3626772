//! The open transactions of the broker, which hold back records of their partitions.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use millstream_base::Offset;
use millstream_log::{LaneId, StreamPartition};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The partitions that open transactions of the broker change.
#[derive(Default)]
pub struct Open {
    /// The number of transactions, so that most writes find out without the lock that there is none.
    count: AtomicUsize,
    transactions: Mutex<Transactions>,
    ended: Notify,
}

#[derive(Default)]
struct Transactions {
    /// How many have begun. This is also the number of the next one.
    begun: u64,
    /// The numbers of those that are open, by the partitions that they change.
    open: HashMap<LaneId, BTreeSet<u64>>,
}

/// An open transaction, until it is dropped.
pub struct OpenTransaction<'a> {
    open: &'a Open,
    number: u64,
    lanes: Vec<LaneId>,
}

impl Open {
    /// Takes note of a transaction before it has its first record.
    pub fn begin(&self, lanes: Vec<LaneId>) -> OpenTransaction<'_> {
        let mut transactions = self.transactions.lock();
        let number = transactions.begun;
        transactions.begun += 1;
        for lane in &lanes {
            transactions.open.entry(*lane).or_default().insert(number);
        }
        self.count.fetch_add(1, Ordering::SeqCst);
        OpenTransaction {
            open: self,
            number,
            lanes,
        }
    }

    /// Whether there is an open transaction.
    pub fn has_some(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Waits until no transaction holds back the records before an offset, which are appended.
    pub async fn wait(&self, partition: &StreamPartition, until: Offset) {
        if !self.has_some() {
            return;
        }
        // A transaction that holds the records back has begun before its first record was appended. The records of a transaction
        // that begins from now on come behind them.
        let begun = self.transactions.lock().begun;
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            let is_open = self.is_open(partition.id(), begun);
            if !is_open || partition.last_stable_offset() >= until {
                return;
            }
            ended.await;
        }
    }

    /// Whether one of the first transactions, of which `begun` had begun, is open in a partition.
    fn is_open(&self, lane: LaneId, begun: u64) -> bool {
        let transactions = self.transactions.lock();
        let first = transactions.open.get(&lane).and_then(BTreeSet::first);
        first.is_some_and(|first| *first < begun)
    }
}

impl Drop for OpenTransaction<'_> {
    fn drop(&mut self) {
        let mut transactions = self.open.transactions.lock();
        for lane in &self.lanes {
            if let Entry::Occupied(mut numbers) = transactions.open.entry(*lane) {
                numbers.get_mut().remove(&self.number);
                if numbers.get().is_empty() {
                    numbers.remove();
                }
            }
        }
        drop(transactions);
        self.open.count.fetch_sub(1, Ordering::SeqCst);
        self.open.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millstream_base::{ByteSize, ProducerEpoch, ProducerId, Sequence, Timestamp};
    use millstream_log::{Log, LogConfig, StreamConfig};
    use millstream_record::{ChunkBuilder, Compression, Producer};
    use tokio::time::timeout;

    use super::*;

    /// The longest wait for anything.
    const TIME_MAX: Duration = Duration::from_secs(60);

    /// A wait that does not end by itself is tried for this time.
    const SILENCE: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn a_write_waits_only_for_transactions_that_began_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let config = LogConfig::with_pool(dir.path(), ByteSize(8 << 20));
        let log = Log::open(config).unwrap();
        let stream = log.create_stream("t", StreamConfig::default()).unwrap();
        let partition = stream.partition(0).unwrap();
        let open = Open::default();
        let first = open.begin(vec![partition.id()]);
        // The last stable offset stays before this record.
        let mut builder = ChunkBuilder::new(Compression::None);
        builder.set_transactional(true);
        builder.push(Timestamp(0), Some(b"k"), None, &[]).unwrap();
        let producer = Producer {
            id: ProducerId(1),
            epoch: ProducerEpoch(0),
            sequence: Sequence(0),
        };
        let chunk = builder.finish(Some(producer)).unwrap();
        let until = partition.append(chunk).unwrap().next_offset;
        let mut write = pin!(open.wait(&partition, until));
        assert!(timeout(SILENCE, &mut write).await.is_err());
        let later = open.begin(vec![partition.id()]);
        drop(first);
        timeout(TIME_MAX, write).await.unwrap();

        let mut write = pin!(open.wait(&partition, until));
        assert!(timeout(SILENCE, &mut write).await.is_err());
        drop(later);
        timeout(TIME_MAX, write).await.unwrap();
        assert!(!open.has_some());
    }
}
