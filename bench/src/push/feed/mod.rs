//! Where consumers get chunks from.

mod client;
mod in_process;
mod local;

use anyhow::{Result, bail};
use millstream_client::{DeliveryPath, Start, TopicPartition};
use millstream_record::Filter;

pub use self::in_process::of_log;
use super::order::{Delivery, LaneEnd, Lanes, Order, Place};
use super::work::Worker;

/// What one source reads. Made by one thread, and used by another.
pub trait Feed: Send {
    /// Waits for chunks, gives them to the worker, and notes how far the lanes are.
    fn next(&mut self, worker: &mut Worker, lanes: &mut Lanes) -> Result<()>;
}

/// A feed for each source, of another process than the broker's.
pub fn open(place: &Place, delivery: Delivery, order: &Order) -> Result<Vec<Box<dyn Feed>>> {
    match delivery {
        Delivery::Pull => client::open(place, order, DeliveryPath::Pulled),
        Delivery::Tcp => client::open(place, order, DeliveryPath::Pushed),
        Delivery::Task => client::open(place, order, DeliveryPath::Shared),
        Delivery::Thread => local::open(place, order),
        Delivery::InProcess => bail!("only the broker's process consumes in its process"),
    }
}

/// Works until all lanes are at their ends.
pub fn drain(feed: &mut dyn Feed, ends: &[LaneEnd], worker: &mut Worker) -> Result<()> {
    let mut lanes = Lanes::new(ends);
    while !lanes.are_done() {
        feed.next(worker, &mut lanes)?;
    }
    Ok(())
}

/// What a source reads, as the client wants to be told.
fn places(order: &Order, lanes: &[LaneEnd]) -> Vec<(TopicPartition, Start)> {
    let place = |lane: &LaneEnd| {
        let place = TopicPartition {
            topic: order.stream.as_str().into(),
            partition: lane.partition as i32,
        };
        (place, Start::Earliest)
    };
    lanes.iter().map(place).collect()
}

/// The filter that travels.
fn filter(order: &Order) -> Result<Option<Filter>> {
    let filter = order.filter.as_deref();
    Ok(filter.map(Filter::parse).transpose()?)
}
