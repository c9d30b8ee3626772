//! A stream as the sink of a flow.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use millstream_base::{Offset, ProducerId, Sequence, Timestamp};
use millstream_flow::{BoxError, Sink};
use millstream_log::{LogError, Stream};

use crate::producer::{IN_FLIGHT_BYTES_MAX, StreamProducer};

/// A record in the making; its buffers are used for one record after another.
#[derive(Debug, Default)]
pub struct EncodedRecord {
    /// When it was made.
    pub timestamp: Timestamp,
    /// The primary key; empty is none.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

/// Appends the results of a flow to a stream: `encode` turns an item into a record.
///
/// A flow that goes on from a checkpoint loses no result. Those that came after the checkpoint come again: without a
/// producer's id they are in the stream *at least once*. With one they are numbered, those that the stream has are
/// left out by their numbers, and each is there *exactly once*, if the sink gets the same results in the same
/// order again. So it is where the sink has one rank and one source whose items come in order, and nothing in between depends
/// on the time of day; it is not so where windows or several sources meet. Give no id there: results would be left
/// out that the stream does not have.
pub struct StreamSink<F> {
    producer: StreamProducer,
    encode: F,
    record: EncodedRecord,
    waiting: Option<Waiting>,
}

/// For everything before an offset to become durable.
struct Waiting {
    offset: Offset,
    durable: Pin<Box<dyn Future<Output = Result<(), LogError>> + Send>>,
}

impl<F> StreamSink<F> {
    /// A sink into streamlet 0 of `stream`. The items are numbered for duplicate detection if
    /// `producer` has an id: see [`StreamProducer::new`].
    ///
    /// # Errors
    /// When the stream has no streamlet.
    pub fn new(stream: &Stream, producer: ProducerId, encode: F) -> Result<Self, LogError> {
        Ok(StreamSink {
            producer: StreamProducer::new(stream, producer)?,
            encode,
            record: EncodedRecord::default(),
            waiting: None,
        })
    }

    /// Whether everything before `offset` is durable; if not, `waker` is woken when it may be.
    fn is_durable(&mut self, offset: Offset, waker: &Waker) -> Result<bool, LogError> {
        let waiting = match &mut self.waiting {
            Some(waiting) if waiting.offset == offset => waiting,
            _ => {
                let lane = self.producer.lane().clone();
                self.waiting.insert(Waiting {
                    offset,
                    durable: Box::pin(async move { lane.durable(offset).await }),
                })
            }
        };
        match waiting
            .durable
            .as_mut()
            .poll(&mut Context::from_waker(waker))
        {
            Poll::Pending => Ok(false),
            Poll::Ready(result) => {
                self.waiting = None;
                result.map(|()| true)
            }
        }
    }
}

impl<T, F> Sink<T> for StreamSink<F>
where
    F: FnMut(&T, &mut EncodedRecord) + Send + 'static,
{
    /// Takes all or nothing: nothing while too much is on its way to the disk.
    fn push(&mut self, items: &[T], waker: &Waker) -> Result<usize, BoxError> {
        while self.producer.in_flight_bytes() > IN_FLIGHT_BYTES_MAX {
            let Some(oldest) = self.producer.oldest_end() else {
                break;
            };
            if !self.is_durable(oldest, waker)? {
                return Ok(0);
            }
        }
        for item in items {
            self.record.key.clear();
            self.record.value.clear();
            (self.encode)(item, &mut self.record);
            let EncodedRecord {
                timestamp,
                key,
                value,
            } = &self.record;
            let key = (!key.is_empty()).then_some(&key[..]);
            self.producer.add(*timestamp, key, Some(value), &[])?;
        }
        Ok(items.len())
    }

    /// Everything has arrived when it is durable.
    fn flush(&mut self, waker: &Waker) -> Result<bool, BoxError> {
        self.producer.append()?;
        match self.producer.newest_end() {
            Some(newest) => Ok(self.is_durable(newest, waker)?),
            None => Ok(true),
        }
    }

    /// Everything was flushed.
    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        Ok(self.producer.sequence().0.to_le_bytes().to_vec())
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let saved = saved.try_into();
        let saved = saved.map_err(|_| "the number of a result has 4 bytes")?;
        self.producer
            .set_sequence(Sequence(i32::from_le_bytes(saved)));
        Ok(())
    }
}
