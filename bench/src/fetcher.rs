//! A consumer that does as little as can be: it reads a partition as soon as something is there.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use millstream_record::{ChunkError, Chunks};
use millstream_wire::messages::fetch_request::{FetchPartition, FetchTopic};
use millstream_wire::messages::{FetchRequest, TopicName};
use millstream_wire::{ApiKey, Response, decode_response};

use crate::connection::{Connection, frame, text};

const FETCH_VERSION: i16 = 11;

/// Reads the first partition of a topic.
pub struct Fetcher {
    connection: Connection,
    topic: &'static str,
    next: i64,
}

impl Fetcher {
    /// Reads from the record with the offset `next` on.
    pub fn new(address: SocketAddr, topic: &'static str, next: i64) -> Result<Fetcher> {
        Ok(Fetcher {
            connection: Connection::to(address)?,
            topic,
            next,
        })
    }

    /// Waits for more, for half a second at most; returns the offset behind all records that it has read.
    pub fn fetch(&mut self) -> Result<i64> {
        let partition = FetchPartition::default()
            .with_partition(0)
            .with_fetch_offset(self.next)
            .with_partition_max_bytes(1 << 20);
        let topic = FetchTopic::default()
            .with_topic(TopicName(text(self.topic)))
            .with_partitions(vec![partition]);
        let request = FetchRequest::default()
            .with_max_wait_ms(500)
            .with_min_bytes(1)
            .with_max_bytes(16 << 20)
            .with_topics(vec![topic]);
        self.connection
            .send(&frame(FETCH_VERSION, request.into())?)?;
        let answer = self.connection.receive()?;
        self.take(answer)?;
        Ok(self.next)
    }

    fn take(&mut self, answer: Bytes) -> Result<()> {
        let Response::Fetch(response) = decode_response(ApiKey::Fetch, FETCH_VERSION, answer)?.1
        else {
            bail!("another answer than to Fetch");
        };
        let topic = response.topics.first().context("no topic in the answer")?;
        let partition = topic
            .partitions
            .first()
            .context("no partition in the answer")?;
        ensure!(
            partition.error_code == 0,
            "nothing is given: {}",
            partition.error_code
        );
        self.next = behind_whole_chunks(&partition.records, self.next)?;
        Ok(())
    }
}

/// The offset behind the chunks that are whole. Kafka cuts an answer at the size that is asked for, also within a batch.
fn behind_whole_chunks(records: &[Bytes], from: i64) -> Result<i64> {
    let mut next = from;
    for chunk in records.iter().flat_map(|piece| Chunks::new(piece)) {
        match chunk {
            Ok(chunk) => next = chunk.header().last_offset().0 as i64 + 1,
            Err(ChunkError::Truncated { .. }) if next > from => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use millstream_base::Timestamp;
    use millstream_record::{ChunkBuilder, Compression};

    use super::*;

    #[test]
    fn a_batch_that_an_answer_cuts_is_fetched_by_the_next_one() {
        let mut builder = ChunkBuilder::new(Compression::None);
        builder
            .push(Timestamp(0), None, Some(b"value"), &[])
            .unwrap();
        let chunk = Bytes::copy_from_slice(builder.finish(None).unwrap());
        let cut = [chunk.clone(), chunk.slice(..chunk.len() - 1)];
        assert_eq!(behind_whole_chunks(&cut, 0).unwrap(), 1);
        assert!(behind_whole_chunks(&cut[1..], 0).is_err());
    }
}
