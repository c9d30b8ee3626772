//! The client's subscribers, which wait on their own threads.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use millstream_client::{Client, ClientConfig, LocalConfig, LocalSource, LocalSubscriber};
use tokio::runtime::{Builder, Runtime};

use super::{Feed, filter, places};
use crate::push::order::{BrokerAddress, Order};
use crate::push::work::Worker;

/// A subscriber that waits longer than this fails.
const WAIT_MAX: Duration = Duration::from_secs(120);

struct Local {
    subscriber: LocalSubscriber,
    /// Of the connection, whose end would be the subscription's.
    _runtime: Arc<Runtime>,
}

/// A subscriber for each source.
pub fn open(broker: &BrokerAddress, order: &Order) -> Result<Vec<Box<dyn Feed>>> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let client = Client::new(ClientConfig::new(broker.address.to_string()));
    let config = LocalConfig {
        filter: filter(order)?,
        ..LocalConfig::default()
    };
    let sources = order.sources.iter();
    let sources: Vec<_> = sources
        .map(|partitions| LocalSource::Partitions(places(order, partitions)))
        .collect();
    let subscribers = runtime.block_on(client.subscribe_local(&config, &sources))?;
    let runtime = Arc::new(runtime);
    let feed = |subscriber| -> Box<dyn Feed> {
        Box::new(Local {
            subscriber,
            _runtime: Arc::clone(&runtime),
        })
    };
    Ok(subscribers.into_iter().map(feed).collect())
}

impl Feed for Local {
    fn next(&mut self, worker: &mut Worker) -> Result<()> {
        let pushed = self.subscriber.take(WAIT_MAX)?;
        worker.take(&pushed.context("nothing more is pushed")?)
    }
}
