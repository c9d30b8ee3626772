//! Removes the oldest records of streams.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use millstream_base::Offset;
use millstream_wire::ResponseError;
use millstream_wire::messages::DeleteRecordsRequest;
use millstream_wire::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};

use crate::client::{Client, topic_name};
use crate::error::ClientError;
use crate::offsets::TopicPartition;

/// The reason why a server refuses to delete records, and the remedy.
const COMPACTED: &str = "its cleanup.policy is compact, so its oldest records may be the newest ones of their keys; delete keys, or set the policy to compact,delete";

impl Client {
    /// Removes the records of each partition before its offset, for all readers. Returns the new first offsets.
    ///
    /// # Errors
    /// When an offset is beyond the end of its partition, the stream is compacted alone, or the user may not delete
    /// records. Other partitions may have lost their records already.
    pub async fn delete_records(
        &self,
        offsets: &BTreeMap<TopicPartition, Offset>,
    ) -> Result<BTreeMap<TopicPartition, Offset>, ClientError> {
        let mut by_leader: HashMap<i32, BTreeMap<&Arc<str>, Vec<DeleteRecordsPartition>>> =
            HashMap::new();
        for (place, Offset(offset)) in offsets {
            let topics = by_leader.entry(self.leader_of(place).await?).or_default();
            topics.entry(&place.topic).or_default().push(
                DeleteRecordsPartition::default()
                    .with_partition_index(place.partition)
                    .with_offset(i64::try_from(*offset).unwrap_or(i64::MAX)),
            );
        }
        let timeout = self.config().request_timeout.as_millis();
        let mut firsts = BTreeMap::new();
        for (leader, topics) in by_leader {
            let topics = topics.into_iter().map(|(name, partitions)| {
                DeleteRecordsTopic::default()
                    .with_name(topic_name(name))
                    .with_partitions(partitions)
            });
            let request = DeleteRecordsRequest::default()
                .with_topics(topics.collect())
                .with_timeout_ms(i32::try_from(timeout).unwrap_or(i32::MAX));
            for topic in self.server(leader).await?.ask(request).await?.topics {
                let name: Arc<str> = topic.name.as_str().into();
                for deleted in topic.partitions {
                    let partition = deleted.partition_index;
                    let what = format!("deleting records of partition {partition} of {name}");
                    let is_compacted = deleted.error_code == ResponseError::PolicyViolation.code();
                    ClientError::check(
                        deleted.error_code,
                        is_compacted.then_some(COMPACTED),
                        what,
                    )?;
                    let topic = Arc::clone(&name);
                    let first = Offset(u64::try_from(deleted.low_watermark).unwrap_or_default());
                    firsts.insert(TopicPartition { topic, partition }, first);
                }
            }
        }
        Ok(firsts)
    }
}
