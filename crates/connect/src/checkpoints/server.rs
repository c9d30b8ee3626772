//! Checkpoints as objects of a server.

use std::sync::Arc;

use bytes::Bytes;
use millstream_client::{Client, ClientConfig, ClientError, TransactionIdentity};
use millstream_flow::{BoxError, Changelog, Checkpoints, ShardKey, StoreLock};
use parking_lot::Mutex;

use super::objects::{is_of, prefix, shard_of};
use super::server_changelog::ServerChangelog;
use super::{check_len, server_lock, shard_name};
use crate::network::Network;

/// Bytes that are sent or asked for at once.
const PIECE_BYTES: usize = 1 << 20;

/// Keeps the checkpoints of a flow as objects of a server: `<flow>.checkpoint.<number>.<rank>`; and the changes of its
/// state elements in keyed streams: `<flow>.state.<element>`. Their transactional ids begin with `flow/` and the name of the
/// flow, as does that of the lock: a run fences an earlier one that still goes on, which then ends with an error. The object
/// `<flow>.run` names the process that has the lock.
pub struct ServerCheckpoints {
    client: Client,
    /// The thread on which the client works.
    network: Network,
    flow: String,
    prefix: String,
    held: Arc<Mutex<Option<TransactionIdentity>>>,
}

/// Forgets the lock that a run has: the next one takes it from it.
struct Lock(Arc<Mutex<Option<TransactionIdentity>>>);

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
            network: Network::start("millstream-checkpoints")?,
            flow: flow.to_owned(),
            prefix: prefix(flow),
            held: Arc::default(),
        })
    }

    fn name(&self, key: ShardKey) -> String {
        format!("{}{}", self.prefix, shard_name(key))
    }

    /// Fails if another run has taken the lock from this one.
    async fn check_lock(&self) -> Result<(), BoxError> {
        let held = *self.held.lock();
        match held {
            Some(held) => server_lock::check(&self.client, &self.flow, held).await,
            None => Ok(()),
        }
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
        let mut held = self.held.lock();
        if held.is_some() {
            return Err(format!(
                "the checkpoints {}* are in use by another run in this process; wait for its end or stop it, or give this flow another name",
                self.prefix
            )
            .into());
        }
        let taken = self
            .network
            .wait(server_lock::take(&self.client, &self.flow));
        *held = Some(taken?);
        Ok(Some(Box::new(Lock(Arc::clone(&self.held)))))
    }

    fn join(&self) -> Result<Option<StoreLock>, BoxError> {
        let mut held = self.held.lock();
        if held.is_some() {
            // Rank 0 is in this process, too.
            return Ok(None);
        }
        *held = self
            .network
            .wait(server_lock::holder(&self.client, &self.flow))?;
        Ok(Some(Box::new(Lock(Arc::clone(&self.held)))))
    }

    fn put(&self, key: ShardKey, shard: &[u8]) -> Result<(), BoxError> {
        check_len("it", shard.len() as u64)?;
        let name = self.name(key);
        self.network.wait(async {
            let objects = self.client.objects(&name).await?;
            self.check_lock().await?;
            let found = objects.iter().find(|object| *object.name == *name);
            // An earlier attempt may have come to its end after all. Its object is not removed: this may be the only
            // checkpoint by now.
            if !found.is_some_and(|object| is_of(shard, object.bytes.0, object.crc32c)) {
                if found.is_some() {
                    let _ = self.client.delete_object(&name).await;
                }
                self.upload(&name, shard).await?;
            }
            self.check_lock().await
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
        self.network.wait(async {
            self.check_lock().await?;
            Ok(self.client.delete_object(&name).await?)
        })
    }

    fn changelog(&self, flow: &str, element: &str) -> Result<Option<Box<dyn Changelog>>, BoxError> {
        let changelog = ServerChangelog::open(self.client.config(), flow, element)?;
        Ok(Some(Box::new(changelog)))
    }

    fn describe(&self, key: ShardKey) -> String {
        format!("object {}", self.name(key))
    }
}
