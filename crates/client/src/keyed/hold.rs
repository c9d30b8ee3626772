//! Holds: a keyed stream as it was at a moment.

use std::time::Duration;

use millstream_base::{Offset, Timestamp};
use millstream_wire::native::{ChangeHoldRequest, ListHoldsRequest, ListedHold};

use super::{ALTER, DESCRIBE, KeyVersion, KeyedStream, LookUp, text};
use crate::error::ClientError;

/// A hold of a keyed stream: of each key, compaction keeps the version that it had when the hold was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Its name.
    pub name: String,
    /// The user that made it, as `User:name`.
    pub owner: String,
    /// When it was made.
    pub created: Timestamp,
    /// When it ends.
    pub until: Timestamp,
    /// Whether all is there that it had. Retention and deletions of records remove also held versions.
    pub is_whole: bool,
    /// For each partition that the stream had, the offset behind the versions that it holds.
    pub ends: Vec<Offset>,
}

impl KeyedStream {
    /// Makes a hold: until it ends, [`get_at_hold`](Self::get_at_hold) finds each key as it is now. It stays for 7 days, or as
    /// long as `life` says, 366 days at most. A stream has at most 16 holds. Returns when the hold is durable.
    ///
    /// ```no_run
    /// # async fn example(client: millstream_client::Client) -> Result<(), millstream_client::ClientError> {
    /// let prices = client.keyed("prices");
    /// prices.create_hold("before", None).await?;
    /// prices.put("tea", "4.50").await?;
    /// let price = prices.get_at_hold("tea", "before").await?;
    /// prices.delete_hold("before").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the stream does not exist or is not keyed, a hold has the name
    /// ([`ResponseError::DuplicateResource`](crate::ResponseError::DuplicateResource)), or the stream has too many.
    pub async fn create_hold(
        &self,
        name: &str,
        life: Option<Duration>,
    ) -> Result<Hold, ClientError> {
        let life_ms = life.map(|life| i64::try_from(life.as_millis()).unwrap_or(i64::MAX));
        let hold = self.change_hold(name, false, life_ms).await?;
        let hold = hold.map(Hold::from);
        hold.ok_or_else(|| self.violation("a new hold is not in the answer".to_owned()))
    }

    /// Ends a hold. A later compaction removes the versions that only this hold retained.
    ///
    /// # Errors
    /// When stream or hold do not exist, or the server does not answer.
    pub async fn delete_hold(&self, name: &str) -> Result<(), ClientError> {
        self.change_hold(name, true, None).await.map(drop)
    }

    async fn change_hold(
        &self,
        name: &str,
        ends: bool,
        life_ms: Option<i64>,
    ) -> Result<Option<ListedHold>, ClientError> {
        let request = ChangeHoldRequest {
            stream: text(&self.name),
            name: text(name),
            ends,
            life_ms,
        };
        let answer = self.ask(request).await?;
        self.check(ALTER, answer.error_code, answer.error_message.as_deref())?;
        Ok(answer.hold)
    }

    /// Returns the holds of the stream, by name.
    ///
    /// # Errors
    /// When the stream does not exist, or the server does not answer.
    pub async fn holds(&self) -> Result<Vec<Hold>, ClientError> {
        let request = ListHoldsRequest {
            stream: text(&self.name),
        };
        let answer = self.ask(request).await?;
        self.check(DESCRIBE, answer.error_code, answer.error_message.as_deref())?;
        Ok(answer.holds.into_iter().map(Hold::from).collect())
    }

    /// Returns the version that a key had when a hold was made; `None` if it was absent, or its value has ended since.
    ///
    /// # Errors
    /// As [`get_many_at_hold`](Self::get_many_at_hold).
    pub async fn get_at_hold(
        &self,
        key: impl AsRef<[u8]>,
        hold: &str,
    ) -> Result<Option<KeyVersion>, ClientError> {
        let found = self.get_many_at_hold(&[key], hold).await?;
        Ok(found.into_iter().next().flatten())
    }

    /// Returns the versions that keys had when a hold was made, in their order; `None` for keys that were absent.
    ///
    /// # Errors
    /// As [`get_many`](Self::get_many), when the hold does not exist
    /// ([`ResponseError::ResourceNotFound`](crate::ResponseError::ResourceNotFound)), and when retention has removed
    /// records since ([`ResponseError::OffsetOutOfRange`](crate::ResponseError::OffsetOutOfRange)).
    pub async fn get_many_at_hold<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        hold: &str,
    ) -> Result<Vec<Option<KeyVersion>>, ClientError> {
        let look_up = LookUp {
            hold: Some(hold),
            ..LookUp::default()
        };
        self.get_versions(keys, look_up).await
    }
}

impl From<ListedHold> for Hold {
    fn from(hold: ListedHold) -> Hold {
        Hold {
            name: hold.name.to_string(),
            owner: hold.owner.to_string(),
            created: hold.created,
            until: hold.until,
            is_whole: hold.is_whole,
            ends: hold.ends,
        }
    }
}
