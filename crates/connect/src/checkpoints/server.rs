//! Checkpoints as objects of a server.

use std::sync::Arc;

use bytes::Bytes;
use millstream_client::{Client, ClientConfig, ClientError};
use millstream_flow::{
    BoxError, Changelog, CheckpointRecords, Checkpoints, ShardKey, StoreLock, WatchedChangelog,
};
use parking_lot::Mutex;

use super::objects::{is_of, prefix, shard_of};
use super::server_changelog::ServerChangelog;
use super::server_records::ServerRun;
use super::server_watch::ServerWatched;
use super::{changelog, check_len, record_stream, server_records, shard_name};
use crate::flow_name::check_flow_name;
use crate::network::Network;
use crate::outage;

/// Bytes that are sent or asked for at once.
const PIECE_BYTES: usize = 1 << 20;

/// Keeps the checkpoints of a flow on a server: the shards as objects, `<flow>.checkpoint.<number>.<rank>.<run>`, and in the
/// keyed stream `<flow>.checkpoints` the record that names the shards of the last complete checkpoint. The changes of state
/// elements are in the keyed streams `<flow>.state.<element>`. The transactional ids of all of them begin with `flow/` and
/// the name of the flow: a run fences an earlier one that still goes on, which then ends with an error that names it.
pub struct ServerCheckpoints {
    client: Client,
    /// The thread on which the client works.
    network: Arc<Network>,
    flow: String,
    prefix: String,
    run: Arc<Mutex<Option<ServerRun>>>,
}

/// Forgets the run that has begun.
struct Lock(Arc<Mutex<Option<ServerRun>>>);

impl Drop for Lock {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

impl ServerCheckpoints {
    /// Returns the checkpoints of the flow of this name.
    ///
    /// # Errors
    /// When the thread for the network cannot be started.
    pub fn new(server: &ClientConfig, flow: &str) -> Result<ServerCheckpoints, BoxError> {
        Ok(ServerCheckpoints {
            client: Client::new(server.clone()),
            network: Arc::new(Network::start("millstream-checkpoints")?),
            flow: flow.to_owned(),
            prefix: prefix(flow),
            run: Arc::default(),
        })
    }

    fn name(&self, key: ShardKey) -> String {
        format!("{}{}", self.prefix, shard_name(key))
    }

    async fn upload(&self, name: &str, shard: &[u8]) -> Result<(), ClientError> {
        let mut upload = self.client.put_object(name).await?;
        for piece in shard.chunks(PIECE_BYTES) {
            upload.part(Bytes::copy_from_slice(piece)).await?;
        }
        upload.finish().await.map(drop)
    }

    async fn download(&self, name: &str) -> Result<Vec<u8>, BoxError> {
        let mut shard = Vec::new();
        loop {
            let start = shard.len() as u64;
            let got = self
                .client
                .get_object(name, start, PIECE_BYTES as u32)
                .await?;
            let (object, pieces) = got;
            check_len(&format!("object {name}"), object.bytes.0)?;
            pieces
                .iter()
                .for_each(|piece| shard.extend_from_slice(piece));
            let len = shard.len() as u64;
            if len >= object.bytes.0 {
                return Ok(shard);
            }
            if len == start {
                return Err(format!("object {name} ends at byte {len}").into());
            }
        }
    }
}

impl Checkpoints for ServerCheckpoints {
    fn lock(&self) -> Result<Option<StoreLock>, BoxError> {
        check_flow_name(&self.flow)?;
        let mut run = self.run.lock();
        if run.is_some() {
            return Err(format!(
                "the checkpoints {}* are in use by another run in this process; wait for its end or stop it, or give this flow another name",
                self.prefix
            )
            .into());
        }
        let begun = self
            .network
            .wait(ServerRun::begin(&self.client, &self.flow));
        *run = Some(begun?);
        Ok(Some(Box::new(Lock(Arc::clone(&self.run)))))
    }

    fn records(&self) -> Option<&dyn CheckpointRecords> {
        Some(self)
    }

    fn put(&self, key: ShardKey, shard: &[u8]) -> Result<(), BoxError> {
        check_len("it", shard.len() as u64)?;
        let name = self.name(key);
        let stored = self.network.wait(async {
            let objects = self.client.objects(&name).await?;
            let found = objects.iter().find(|object| *object.name == *name);
            // An earlier attempt may have come to its end after all. Its object is not removed: a record may name it.
            if !found.is_some_and(|object| is_of(shard, object.bytes.0, object.crc32c)) {
                if found.is_some() {
                    let _ = self.client.delete_object(&name).await;
                }
                self.upload(&name, shard).await?;
            }
            Ok(())
        });
        stored.map_err(|error: ClientError| {
            outage::of_write(self.client.config(), &error, error.clone().into())
        })
    }

    fn get(&self, key: ShardKey) -> Result<Vec<u8>, BoxError> {
        self.network.wait(self.download(&self.name(key)))
    }

    fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
        let objects = self.network.wait(self.client.objects(&self.prefix))?;
        objects
            .iter()
            .map(|object| shard_of(&self.prefix, &object.name))
            .collect()
    }

    fn remove(&self, key: ShardKey) -> Result<(), BoxError> {
        let name = self.name(key);
        Ok(self.network.wait(self.client.delete_object(&name))?)
    }

    fn changelog(&self, flow: &str, element: &str) -> Result<Option<Box<dyn Changelog>>, BoxError> {
        let changelog = ServerChangelog::open(self.client.config(), flow, element)?;
        Ok(Some(Box::new(changelog)))
    }

    fn watched_changelog(&self, flow: &str, element: &str) -> Option<Arc<dyn WatchedChangelog>> {
        let stream = changelog::stream_name(flow, element);
        Some(Arc::new(ServerWatched::new(
            &self.client,
            &self.network,
            stream,
        )))
    }

    fn describe(&self, key: ShardKey) -> String {
        format!("object {}", self.name(key))
    }
}

impl CheckpointRecords for ServerCheckpoints {
    fn last(&self) -> Result<Option<Vec<u8>>, BoxError> {
        self.network
            .wait(server_records::last(&self.client, &self.flow))
    }

    fn append(&self, record: &[u8]) -> Result<(), BoxError> {
        let mut run = self.run.lock();
        let run = run.as_mut().ok_or("the run has not locked the store")?;
        self.network
            .wait(run.append(&self.client, &self.flow, record))
    }

    fn describe(&self) -> String {
        format!("in stream {}", record_stream::stream_name(&self.flow))
    }
}
