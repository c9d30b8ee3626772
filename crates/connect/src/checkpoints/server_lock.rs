//! The lock of a flow's checkpoints on a server: the run that took it last has it.
//!
//! It is a transactional id without transactions: a run that begins as its producer fences the run before. So a run that
//! has died holds no later run up, and one that still goes on finds at its next checkpoint that it has lost the lock.
//!
//! A shard counts only if its run has the lock *after* it was stored: then a later run, which takes the lock before it
//! lists the shards, finds this one. Otherwise it could resume from an older checkpoint than the last one whose results
//! were committed. And a run has the lock before it removes anything that is in the way of its shard.

use bytes::Bytes;
use millstream_client::{Client, ClientError, TransactionIdentity};
use millstream_flow::{BoxError, FinalError};

/// Bytes of the object that names the holder, at most.
const HOLDER_BYTES_MAX: u32 = 1000;

/// Where Linux keeps the name of the machine.
const MACHINE: &str = "/proc/sys/kernel/hostname";

/// Takes the lock of a flow for this run, whose identity it returns.
pub async fn take(client: &Client, flow: &str) -> Result<TransactionIdentity, ClientError> {
    // First: a run that finds the lock lost finds the name.
    name_holder(client, flow).await?;
    client.fence_producers(&id(flow)).await
}

async fn name_holder(client: &Client, flow: &str) -> Result<(), ClientError> {
    let name = holder_object(flow);
    let objects = client.objects(&name).await?;
    if objects.iter().any(|object| *object.name == *name) {
        // Another run may have removed it, and takes the lock at this moment.
        let _ = client.delete_object(&name).await;
    }
    let mut upload = client.put_object(&name).await?;
    upload.part(Bytes::from(this_run())).await?;
    upload.finish().await.map(drop)
}

/// Returns the identity of the run that has the lock, if the server knows it.
pub async fn holder(
    client: &Client,
    flow: &str,
) -> Result<Option<TransactionIdentity>, ClientError> {
    let found = client.transaction(&id(flow)).await?;
    Ok(found.map(|found| found.identity))
}

/// Fails if another run has taken the lock since.
pub async fn check(client: &Client, flow: &str, held: TransactionIdentity) -> Result<(), BoxError> {
    match holder(client, flow).await? {
        Some(found) if found != held => Err(lost(client, flow).await.into()),
        // Servers forget ids that were not used for long.
        _ => Ok(()),
    }
}

/// Returns the error of a run that another one has fenced.
pub async fn lost(client: &Client, flow: &str) -> FinalError {
    let holder = client
        .get_object(&holder_object(flow), 0, HOLDER_BYTES_MAX)
        .await;
    let holder = match holder {
        Ok((_, pieces)) => format!(", {}", String::from_utf8_lossy(&pieces.concat())),
        Err(_) => String::new(),
    };
    FinalError(format!(
        "another run of flow \"{flow}\"{holder} has begun since and continues in the place of this one; \
         let one of them run, or give this flow another name"
    ))
}

/// Other ids of a flow have more parts.
fn id(flow: &str) -> String {
    format!("flow/{}", crate::flow_transactions::escape(flow))
}

/// Names the object that describes the holder.
fn holder_object(flow: &str) -> String {
    format!("{flow}.run")
}

/// Describes this run for others.
fn this_run() -> String {
    let process = std::process::id();
    match std::fs::read_to_string(MACHINE) {
        Ok(machine) => format!("process {process} on {}", machine.trim()),
        Err(_) => format!("process {process}"),
    }
}
