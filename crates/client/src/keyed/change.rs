//! Changes of keys: puts, deletions and additions, perhaps with conditions.

use std::time::Duration;

use bytes::Bytes;
use millstream_base::Offset;
use millstream_wire::ResponseError;
use millstream_wire::native::{KeyCondition, KeyToPut, PutKeysRequest, SecondaryKey, StoredKey};

use super::{KeyedStream, StoredVersion, WRITE, batch};
use crate::client::text;
use crate::error::ClientError;

/// A change of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyChange {
    /// The key.
    pub key: Bytes,
    /// The condition; `None` changes the key in any case.
    pub expected: Option<Expected>,
    /// The new value.
    pub change: NewValue,
    /// How long the new value lives, at least 1 ms; `None` for as long as the stream's setting `millstream.keyed.ttl.ms` says. The
    /// value that a number is added to keeps its end. A deletion has none.
    pub ttl: Option<Duration>,
    /// The secondary keys of the new version, at most 64: names, and keys of at most 4 KiB. They take the place of the older
    /// version's. A deletion has none.
    pub secondary: Vec<(String, Bytes)>,
}

/// The version that a key must have when it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The key has no value.
    Absent,
    /// The newest version is this one, and has a value.
    Version(Offset),
    /// The key has a value.
    Present,
}

/// The new value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewValue {
    /// This value.
    Put(Bytes),
    /// None.
    Delete,
    /// The sum of this number and the value, which is a whole number as decimal text, such as `42` or `-7`. An absent key
    /// counts as 0.
    Add(i64),
}

/// A key that was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangedKey {
    /// The place of the new version.
    pub stored: StoredVersion,
    /// The new value, if it is a sum.
    pub sum: Option<i64>,
}

impl KeyedStream {
    /// Stores a value, if the key has the expected version. Of two clients that expect the same version, one gets an error.
    ///
    /// ```no_run
    /// # async fn example(client: millstream_client::Client) -> Result<(), millstream_client::ClientError> {
    /// use millstream_client::{ClientError, Expected};
    ///
    /// let seats = client.keyed("seats");
    /// match seats.put_if("12C", "ann", Expected::Absent).await {
    ///     Ok(stored) => println!("booked in version {}", stored.version),
    ///     Err(ClientError::OtherVersion { .. }) => println!("taken"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::OtherVersion`] with the newest version if the key has another one; as [`put`](Self::put); and while a
    /// record of the key is in an open transaction.
    pub async fn put_if(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        expected: Expected,
    ) -> Result<StoredVersion, ClientError> {
        let value = NewValue::Put(Bytes::copy_from_slice(value.as_ref()));
        let changed = self
            .change(key.as_ref(), Some(expected), value, None)
            .await?;
        Ok(changed.stored)
    }

    /// Stores a value that ends after a time: from then on the key is absent. The time is rounded up to milliseconds.
    ///
    /// # Errors
    /// When the time is 0; as [`put`](Self::put).
    pub async fn put_for(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<StoredVersion, ClientError> {
        let value = NewValue::Put(Bytes::copy_from_slice(value.as_ref()));
        let changed = self.change(key.as_ref(), None, value, Some(ttl)).await?;
        Ok(changed.stored)
    }

    /// Stores a value with secondary keys, each with the name of its index: [`find`](Self::find) finds the key by them, if the
    /// stream's setting `millstream.keyed.secondary` has the name. [`KeyChange`] has secondary keys, too.
    ///
    /// # Errors
    /// When there are more than 64, one has more than 4 KiB, or a name is none; as [`put`](Self::put).
    pub async fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        secondary: &[(&str, &[u8])],
    ) -> Result<StoredVersion, ClientError> {
        let secondary = secondary.iter();
        let secondary =
            secondary.map(|(name, key)| (String::from(*name), Bytes::copy_from_slice(key)));
        let change = KeyChange {
            key: Bytes::copy_from_slice(key.as_ref()),
            expected: None,
            change: NewValue::Put(Bytes::copy_from_slice(value.as_ref())),
            ttl: None,
            secondary: secondary.collect(),
        };
        let outcomes = self.change_many(&[change]).await?;
        let outcome = outcomes.into_iter().next();
        Ok(outcome.unwrap_or(Err(ClientError::Closed))?.stored)
    }

    /// Deletes a key, if this is its newest version.
    ///
    /// # Errors
    /// As [`put_if`](Self::put_if).
    pub async fn delete_if(
        &self,
        key: impl AsRef<[u8]>,
        version: Offset,
    ) -> Result<StoredVersion, ClientError> {
        let expected = Some(Expected::Version(version));
        let changed = self.change(key.as_ref(), expected, NewValue::Delete, None);
        Ok(changed.await?.stored)
    }

    /// Adds to the value of a key, which is a whole number as decimal text; an absent key counts as 0. Returns the place of the
    /// new version, and the sum. After a lost connection, the number may have been added or not.
    ///
    /// # Errors
    /// When the value is not a whole number, or the sum does not fit 64 bits; and as [`put`](Self::put).
    pub async fn add(
        &self,
        key: impl AsRef<[u8]>,
        number: i64,
    ) -> Result<(StoredVersion, i64), ClientError> {
        let changed = self.change(key.as_ref(), None, NewValue::Add(number), None);
        let ChangedKey { stored, sum } = changed.await?;
        let sum = sum.ok_or_else(|| self.violation("it returns no sum".to_owned()))?;
        Ok((stored, sum))
    }

    async fn change(
        &self,
        key: &[u8],
        expected: Option<Expected>,
        change: NewValue,
        ttl: Option<Duration>,
    ) -> Result<ChangedKey, ClientError> {
        let change = KeyChange {
            key: Bytes::copy_from_slice(key),
            expected,
            change,
            ttl,
            secondary: Vec::new(),
        };
        let outcomes = self.change_many(std::slice::from_ref(&change)).await?;
        let outcome = outcomes.into_iter().next();
        outcome.unwrap_or(Err(ClientError::Closed))
    }

    /// Changes keys of any partitions together: all of them, or none if the condition of one does not hold. They are of
    /// different keys, at most 1,024; those of one partition fit into one chunk (the stream's setting
    /// `max.message.bytes`). Returns when look-ups see all of them and all are durable, even if the stream's setting
    /// requires less. A reader may meanwhile see the keys of one partition change before those of another.
    ///
    /// ```no_run
    /// # async fn example(client: millstream_client::Client) -> Result<(), millstream_client::ClientError> {
    /// use millstream_client::{KeyChange, NewValue};
    ///
    /// let accounts = client.keyed("accounts");
    /// let add = |key: &'static str, amount| KeyChange {
    ///     key: key.into(),
    ///     expected: None,
    ///     change: NewValue::Add(amount),
    ///     ttl: None,
    ///     secondary: Vec::new(),
    /// };
    /// accounts.change_together(&[add("ann", -5), add("bob", 5)]).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ClientError::NotTogether`] if a change is refused: none is made then. After other errors, all changes may be made, or none.
    pub async fn change_together(
        &self,
        changes: &[KeyChange],
    ) -> Result<Vec<ChangedKey>, ClientError> {
        let request = PutKeysRequest {
            stream: text(&self.name),
            entries: changes.iter().map(entry).collect(),
            all_or_none: true,
        };
        let answer = self.ask(request).await?;
        self.check(WRITE, answer.error_code, answer.error_message.as_deref())?;
        self.check_count(answer.entries.len(), changes.len()..=changes.len())?;
        let not_attempted = ResponseError::OperationNotAttempted.code();
        let mut outcomes = answer.entries.iter().enumerate();
        let refused = outcomes.find(|(_, stored)| ![0, not_attempted].contains(&stored.error_code));
        if let Some((number, stored)) = refused
            && let Err(why) = self.outcome(stored)
        {
            return Err(ClientError::NotTogether {
                key: changes[number].key.clone(),
                why: Box::new(why),
            });
        }
        let outcomes = answer.entries.iter().map(|stored| self.outcome(stored));
        outcomes.collect()
    }

    /// Changes keys, each if its condition holds. Changes of one partition take effect in their order. Returns the
    /// outcome of each change; some may be made although others are refused, unlike with
    /// [`change_together`](Self::change_together).
    ///
    /// # Errors
    /// When the stream does not exist or is not keyed, or the server does not answer. Changes may be made even so.
    pub async fn change_many(
        &self,
        changes: &[KeyChange],
    ) -> Result<Vec<Result<ChangedKey, ClientError>>, ClientError> {
        let size = |place: usize| {
            let change = &changes[place];
            let secondary = change.secondary.iter();
            let secondary = secondary.map(|(name, key)| name.len() + key.len());
            change.key.len() + bytes_of(&change.change) + secondary.sum::<usize>()
        };
        let entry = |place: usize| entry(&changes[place]);
        self.put_entries(changes.len(), size, entry).await
    }

    /// Sends entries, in requests of bounded size.
    pub(super) async fn put_entries(
        &self,
        count: usize,
        size: impl Fn(usize) -> usize,
        entry: impl Fn(usize) -> KeyToPut,
    ) -> Result<Vec<Result<ChangedKey, ClientError>>, ClientError> {
        let mut outcomes = Vec::with_capacity(count);
        while outcomes.len() < count {
            let first = outcomes.len();
            let sent = batch((first..count).map(&size));
            let request = PutKeysRequest {
                stream: text(&self.name),
                entries: (first..first + sent).map(&entry).collect(),
                all_or_none: false,
            };
            let answer = self.ask(request).await?;
            self.check(WRITE, answer.error_code, answer.error_message.as_deref())?;
            self.check_count(answer.entries.len(), sent..=sent)?;
            let stored = answer.entries.into_iter();
            outcomes.extend(stored.map(|stored| self.outcome(&stored)));
        }
        Ok(outcomes)
    }

    fn outcome(&self, entry: &StoredKey) -> Result<ChangedKey, ClientError> {
        if entry.error_code == ResponseError::InvalidUpdateVersion.code() {
            return Err(ClientError::OtherVersion {
                stream: self.name.to_string(),
                newest: entry.newest,
            });
        }
        self.check(WRITE, entry.error_code, entry.error_message.as_deref())?;
        Ok(ChangedKey {
            stored: StoredVersion {
                partition: entry.partition,
                version: entry.version,
            },
            sum: entry.sum,
        })
    }
}

fn bytes_of(change: &NewValue) -> usize {
    match change {
        NewValue::Put(value) => value.len(),
        NewValue::Delete | NewValue::Add(_) => 0,
    }
}

fn entry(change: &KeyChange) -> KeyToPut {
    let (condition, version) = match change.expected {
        None => (KeyCondition::None, Offset(0)),
        Some(Expected::Absent) => (KeyCondition::Absent, Offset(0)),
        Some(Expected::Version(version)) => (KeyCondition::Version, version),
        Some(Expected::Present) => (KeyCondition::Present, Offset(0)),
    };
    let (value, add) = match &change.change {
        NewValue::Put(value) => (Some(value.clone()), None),
        NewValue::Delete => (None, None),
        NewValue::Add(number) => (None, Some(*number)),
    };
    let secondary = change.secondary.iter().map(|(name, key)| SecondaryKey {
        name: text(name),
        key: key.clone(),
    });
    KeyToPut {
        key: change.key.clone(),
        value,
        add,
        condition,
        version,
        ttl_ms: change.ttl.map(milliseconds),
        secondary: secondary.collect(),
    }
}

/// Rounds a time up to milliseconds.
fn milliseconds(time: Duration) -> i64 {
    let ms = time.as_nanos().div_ceil(1_000_000);
    i64::try_from(ms).unwrap_or(i64::MAX)
}
