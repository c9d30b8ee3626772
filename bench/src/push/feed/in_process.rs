//! Push in process: the log's own subscriptions.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

use anyhow::{Result, bail};
use millstream_base::Offset;
use millstream_log::{Log, Next, Subscription};

use super::{Feed, filter};
use crate::push::order::Order;
use crate::push::work::{InPlace, Worker};

struct InProcess {
    /// In the order in which they were subscribed to.
    partitions: Vec<u32>,
    subscription: Subscription,
}

/// The most that is handed out at once.
const HANDED_BYTES: usize = 1 << 20;

/// A feed for each source, in the process that has the log.
pub fn of_log(log: &Log, order: &Order) -> Result<Vec<Box<dyn Feed>>> {
    let stream = log.stream(&order.stream)?;
    let feed = |partitions: &Vec<u32>| -> Result<Box<dyn Feed>> {
        let lanes = partitions
            .iter()
            .map(|partition| Ok((stream.partition(*partition)?, Offset(0))));
        let mut subscription = Subscription::of_partitions(lanes.collect::<Result<Vec<_>>>()?);
        if let Some(filter) = filter(order)? {
            subscription.set_filter(filter);
        }
        Ok(Box::new(InProcess {
            partitions: partitions.clone(),
            subscription,
        }))
    };
    order.sources.iter().map(feed).collect()
}

/// Wakes a thread that has nothing to do.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Feed for InProcess {
    fn next(&mut self, worker: &mut Worker) -> Result<()> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut listening = None;
        loop {
            match self.subscription.next(HANDED_BYTES)? {
                Next::Handed(handed) => {
                    return worker.take(&InPlace {
                        bytes: &handed.chunks.bytes,
                        from: handed.from.0,
                        partition: self.partitions[handed.place as usize],
                    });
                }
                Next::End => bail!("the subscription has ended"),
                Next::Busy | Next::Nothing => {
                    while self
                        .subscription
                        .poll_more(&mut listening, &waker)
                        .is_pending()
                    {
                        thread::park();
                    }
                }
            }
        }
    }
}
