//! Skips damage in the server's log, if the user asks for it.
//!
//! A server answers only that it cannot read from an offset on, not where readable records begin again. So the consumer
//! searches: it tries one offset further, two, four, and so on, and then bisects between the last damaged and the first
//! readable offset.

use std::time::Duration;

use millstream_base::Offset;
use millstream_record::{Chunks, Decompressor};
use millstream_wire::messages::fetch_request::{FetchPartition, FetchTopic};
use millstream_wire::messages::{BrokerId, FetchRequest};
use millstream_wire::{FetchedPartition, ResponseError};

use super::{Consumer, OnDamage, SkippedRecords};
use crate::client::topic_name;
use crate::error::ClientError;
use crate::offsets::{Start, TopicPartition};

/// The time that a server may take to answer a try, in addition to the client's `request_timeout`.
const TRY_WAIT: Duration = Duration::from_secs(1);

impl Consumer {
    /// Continues behind the damage that a server reported. Returns false if the error is another one, the user does not
    /// want to skip damage, or nothing behind it can be read.
    pub(super) async fn skip_damage(&mut self, error: &ClientError) -> Result<bool, ClientError> {
        let OnDamage::Skip(report) = self.config.on_damage.clone() else {
            return Ok(false);
        };
        let is_of_log = match error.response_error() {
            Some(ResponseError::CorruptMessage) => true,
            // The server cannot decode a chunk to apply the filter.
            Some(ResponseError::InvalidRecord) => false,
            _ => return Ok(false),
        };
        let mut has_skipped = false;
        for (place, from) in self.positions() {
            let next = match is_of_log {
                true => self.behind_damage(&place, from).await?,
                false => self.behind_bad_records(&place, from).await?,
            };
            let Some(next) = next else {
                continue;
            };
            self.positions.insert(place.clone(), next);
            has_skipped = true;
            report(&SkippedRecords {
                place,
                offsets: from..next,
                reason: error.to_string(),
            });
        }
        Ok(has_skipped)
    }

    /// Returns the first readable offset behind damage at `from`; `None` if there is no damage, or nothing behind it is
    /// readable.
    async fn behind_damage(
        &self,
        place: &TopicPartition,
        from: Offset,
    ) -> Result<Option<Offset>, ClientError> {
        if !self.is_damaged(place, from).await? {
            return Ok(None);
        }
        let latest = [(place.clone(), Start::Latest)];
        let ends = self.client.offsets(&latest, self.config.isolation).await?;
        let end = ends.get(place).copied().unwrap_or_default();
        let (mut damaged, mut step) = (from, 1_u64);
        let mut readable = loop {
            let next = Offset(from.0.saturating_add(step)).min(end);
            if next <= damaged {
                return Ok(None);
            }
            if !self.is_damaged(place, next).await? {
                break next;
            }
            damaged = next;
            step = step.saturating_mul(2);
        };
        while readable.0 - damaged.0 > 1 {
            let middle = Offset(damaged.0 + (readable.0 - damaged.0) / 2);
            match self.is_damaged(place, middle).await? {
                true => damaged = middle,
                false => readable = middle,
            }
        }
        Ok(Some(readable))
    }

    /// Returns the first offset behind the chunk at `from`, if its records contradict its header.
    async fn behind_bad_records(
        &self,
        place: &TopicPartition,
        from: Offset,
    ) -> Result<Option<Offset>, ClientError> {
        let Some(fetched) = self.first_chunk(place, from).await? else {
            return Ok(None);
        };
        let what = || format!("partition {} of {}", place.partition, place.topic);
        ClientError::check(fetched.error_code, None, what())?;
        let first = fetched.records.first();
        let chunk = first.and_then(|bytes| Chunks::new(bytes).next());
        let Some(Ok(chunk)) = chunk else {
            return Ok(None);
        };
        let mut decompressor = Decompressor::default();
        let records = chunk.records(&mut decompressor);
        let is_good = records.is_ok_and(|mut records| records.all(|record| record.is_ok()));
        Ok((!is_good).then(|| chunk.header().next_offset()))
    }

    /// Returns whether damage keeps the server from reading the record at an offset.
    async fn is_damaged(&self, place: &TopicPartition, at: Offset) -> Result<bool, ClientError> {
        let Some(fetched) = self.first_chunk(place, at).await? else {
            return Ok(false);
        };
        if fetched.error_code == ResponseError::CorruptMessage.code() {
            return Ok(true);
        }
        let what = || format!("partition {} of {}", place.partition, place.topic);
        ClientError::check(fetched.error_code, None, what())?;
        Ok(false)
    }

    /// Fetches one offset: returns the chunk with its record, or the server's error.
    async fn first_chunk(
        &self,
        place: &TopicPartition,
        at: Offset,
    ) -> Result<Option<FetchedPartition>, ClientError> {
        let partition = FetchPartition::default()
            .with_partition(place.partition)
            .with_fetch_offset(i64::try_from(at.0).unwrap_or(i64::MAX))
            .with_partition_max_bytes(1);
        let topic = FetchTopic::default()
            .with_topic(topic_name(&place.topic))
            .with_partitions(vec![partition]);
        let request = FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_wait_ms(0)
            .with_max_bytes(1)
            .with_isolation_level(self.config.isolation.level())
            .with_topics(vec![topic]);
        let server = self.client.leader_of(place).await?;
        let connection = self.client.server(server).await?;
        let wait = self.client.config().request_timeout + TRY_WAIT;
        let answer = connection.ask_within(request, wait).await?;
        ClientError::check(answer.error_code, None, "fetching")?;
        let mut partitions = answer.topics.into_iter().flat_map(|topic| topic.partitions);
        Ok(partitions.next())
    }
}
