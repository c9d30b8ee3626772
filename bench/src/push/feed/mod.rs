//! Feeds: where consumers get chunks from.

mod client;
mod in_process;
mod local;

use anyhow::{Result, bail};
use millstream_client::{DeliveryPath, Start, TopicPartition};
use millstream_record::Filter;

pub use self::in_process::of_log;
use super::order::{BrokerAddress, Delivery, Order};
use super::work::Worker;

/// The records of one source. One thread makes it, and another uses it.
pub trait Feed: Send {
    /// Waits for chunks, and gives them to the worker.
    fn next(&mut self, worker: &mut Worker) -> Result<()>;
}

/// A feed for each source, of another process than the broker's.
pub fn open(
    broker: &BrokerAddress,
    delivery: Delivery,
    order: &Order,
) -> Result<Vec<Box<dyn Feed>>> {
    match delivery {
        Delivery::Pull => client::open(broker, order, DeliveryPath::Pulled),
        Delivery::Tcp => client::open(broker, order, DeliveryPath::Pushed),
        Delivery::Task => client::open(broker, order, DeliveryPath::Shared),
        Delivery::Thread => local::open(broker, order),
        Delivery::InProcess => bail!("only the broker's process consumes in its process"),
    }
}

/// Works until `found` is found.
pub fn drain(feed: &mut dyn Feed, found: u64, worker: &mut Worker) -> Result<()> {
    while worker.found() < found {
        feed.next(worker)?;
    }
    Ok(())
}

/// Returns the partitions of a source, and where to start, in the client's types.
fn places(order: &Order, partitions: &[u32]) -> Vec<(TopicPartition, Start)> {
    let place = |partition: &u32| {
        let place = TopicPartition {
            topic: order.stream.as_str().into(),
            partition: *partition as i32,
        };
        (place, Start::Earliest)
    };
    partitions.iter().map(place).collect()
}

/// The filter that travels.
fn filter(order: &Order) -> Result<Option<Filter>> {
    let filter = order.filter.as_deref();
    Ok(filter.map(Filter::parse).transpose()?)
}
