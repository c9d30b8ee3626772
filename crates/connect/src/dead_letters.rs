//! Dead letters of flows, in streams.

use std::sync::Arc;

use millstream_base::{Clock, ProducerId};
use millstream_flow::{BoxError, DeadLetter, DeadLetters};
use millstream_log::{Log, LogError, StreamConfig};
use millstream_record::Header;
use parking_lot::Mutex;

use crate::producer::StreamProducer;

/// Keeps the dead letters of a flow in the stream `<flow>.dead_letters`.
///
/// Each becomes a record: the value is the item as text, the header `k.operator` (a secondary key)
/// says whose code it was, `error` what it said. They are durable before the flow goes on.
pub struct DeadLetterStream {
    /// The stream is made when there is something to put into it.
    log: Log,
    stream: String,
    producer: Mutex<Option<StreamProducer>>,
    clock: Arc<dyn Clock>,
}

impl DeadLetterStream {
    /// For the flow of this name.
    pub fn new(log: &Log, flow: &str) -> Self {
        DeadLetterStream {
            log: log.clone(),
            stream: format!("{flow}.dead_letters"),
            producer: Mutex::new(None),
            clock: Arc::clone(log.clock()),
        }
    }

    /// The stream's name.
    pub fn stream(&self) -> &str {
        &self.stream
    }

    fn open(&self) -> Result<StreamProducer, LogError> {
        let config = StreamConfig::default();
        let stream = self.log.stream_or_create(&self.stream, config)?;
        StreamProducer::new(&stream, ProducerId::NONE)
    }
}

impl DeadLetters for DeadLetterStream {
    fn put(&self, letters: &[DeadLetter]) -> Result<(), BoxError> {
        let mut producer = self.producer.lock();
        let producer = match &mut *producer {
            Some(producer) => producer,
            closed => closed.insert(self.open()?),
        };
        for letter in letters {
            let headers = [
                ("k.operator", letter.operator.as_bytes()),
                ("error", letter.error.as_bytes()),
            ];
            let headers = headers.map(|(name, value)| Header {
                name: name.as_bytes(),
                value: Some(value),
            });
            producer.push(
                self.clock.now(),
                None,
                Some(letter.item.as_bytes()),
                &headers,
            )?;
        }
        Ok(producer.flush()?)
    }
}
