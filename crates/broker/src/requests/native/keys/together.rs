//! Changes keys together, or not at all.

use std::sync::Arc;

use millstream_base::partition_of_key;
use millstream_log::Stream;
use millstream_record::secondary_key;
use millstream_wire::ResponseError;
use millstream_wire::native::{KeyToPut, PutKeysResponse, StoredKey};

use super::change::{check, condition, fill, ttl};
use crate::broker::Broker;
use crate::error::response_error;
use crate::key_transactions::{OwnedChange, TogetherError};
use crate::native::refused::Refused;
use crate::reply::Reply;

/// Changes all keys, or none. Later requests of the connection come after that.
pub fn put_together(broker: &Arc<Broker>, stream: Stream, entries: Vec<KeyToPut>) -> Reply {
    if let Err(refused) = check_all(&entries) {
        return refused.answer::<PutKeysResponse>().into();
    }
    let partitions = stream.partition_count() as usize;
    let stored = entries.iter().map(|entry| StoredKey {
        partition: partition_of_key(&entry.key, partitions) as u32,
        ..StoredKey::default()
    });
    let mut response = PutKeysResponse {
        entries: stored.collect(),
        ..PutKeysResponse::default()
    };
    let changes: Vec<OwnedChange> = entries.into_iter().map(of_entry).collect();
    let transactions = Arc::clone(broker.key_transactions());
    Reply::Alone(Box::pin(async move {
        match transactions.change(&stream, changes).await {
            Ok(outcomes) => {
                for (entry, outcome) in response.entries.iter_mut().zip(outcomes) {
                    fill(entry, outcome);
                }
                response.into()
            }
            Err(error) => refused(&error).answer::<PutKeysResponse>().into(),
        }
    }))
}

/// Checks the entries: one that is wrong refuses all, and the error names it.
fn check_all(entries: &[KeyToPut]) -> Result<(), Refused> {
    for (number, entry) in entries.iter().enumerate() {
        check(entry).map_err(|refused| {
            let why = refused.message().unwrap_or_default();
            let why = format!("entry {number}: {}", &*why);
            Refused::new(ResponseError::InvalidRequest, why)
        })?;
    }
    Ok(())
}

fn of_entry(entry: KeyToPut) -> OwnedChange {
    let secondary = entry.secondary.iter();
    let secondary = secondary.map(|key| (secondary_key(&key.name), key.key.clone()));
    OwnedChange {
        condition: condition(&entry),
        ttl: ttl(&entry),
        secondary: secondary.collect(),
        key: entry.key,
        value: entry.value,
        add: entry.add,
    }
}

fn refused(error: &TogetherError) -> Refused {
    let code = match error {
        TogetherError::Refused(error) => response_error(error),
        TogetherError::NoTransaction(_) => ResponseError::CoordinatorNotAvailable,
        TogetherError::Unknown(_) => ResponseError::RequestTimedOut,
    };
    Refused::new(code, error.to_string())
}
