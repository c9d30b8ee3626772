//! The client's consumer, which pulls or is pushed to.

use std::sync::Arc;

use anyhow::{Result, ensure};
use millstream_client::{
    Client, ClientConfig, Consumer, ConsumerConfig, DeliveryMode, DeliveryPath,
};
use tokio::runtime::{Builder, Runtime};

use super::{Feed, filter, places};
use crate::push::order::{BrokerAddress, Order};
use crate::push::work::Worker;

struct Asynchronous {
    runtime: Arc<Runtime>,
    consumer: Consumer,
    path: DeliveryPath,
}

/// A consumer for each source, to which records come on this path.
pub fn open(
    broker: &BrokerAddress,
    order: &Order,
    path: DeliveryPath,
) -> Result<Vec<Box<dyn Feed>>> {
    // Shared by all consumers of the process, as in a program that uses the client.
    let runtime = Arc::new(Builder::new_multi_thread().enable_all().build()?);
    let client = Client::new(ClientConfig::new(broker.address.to_string()));
    let config = ConsumerConfig {
        delivery: match path {
            DeliveryPath::Pulled => DeliveryMode::Pull,
            DeliveryPath::Pushed | DeliveryPath::Shared => DeliveryMode::Push,
        },
        filter: filter(order)?,
        ..ConsumerConfig::default()
    };
    let feed = |partitions: &Vec<u32>| -> Result<Box<dyn Feed>> {
        let places = places(order, partitions);
        let consumer = Consumer::assigned(&client, config.clone(), &places);
        Ok(Box::new(Asynchronous {
            consumer: runtime.block_on(consumer)?,
            runtime: Arc::clone(&runtime),
            path,
        }))
    };
    order.sources.iter().map(feed).collect()
}

impl Feed for Asynchronous {
    fn next(&mut self, worker: &mut Worker) -> Result<()> {
        let fetched = self.runtime.block_on(self.consumer.next())?;
        ensure!(
            fetched.path() == self.path,
            "records are {:?} that should be {:?}",
            fetched.path(),
            self.path
        );
        worker.take(&fetched)
    }
}
