//! Writes chunks: they go from the connection's buffer to their segments, copied once.

use std::sync::Arc;

use millstream_base::{LaneIndex, Offset, StreamId};
use millstream_log::{Appended, LogError, Stream, StreamPartition};
use millstream_record::ChunkHeader;
use millstream_wire::ResponseError;
use millstream_wire::native::{
    ChunkToWrite, WriteChunksRequest, WriteChunksResponse, WrittenChunk,
};

use crate::broker::Broker;
use crate::client::Client;
use crate::native::find::{stream_of, unknown_id};
use crate::native::refused::Refused;
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext, ELEMENT_BYTES, PLAIN_BYTES};
use crate::requests::handle::{Handle, Refusal, errors, refuse_with_message, tell_throttle};
use crate::requests::rights::{Check, Checked, need_stream};
use crate::security::{Operation, Traffic};

/// The most chunks in one request: appending them delays the other requests of its connection.
const CHUNKS_MAX: usize = 1 << 16;

/// An appended chunk that is not as durable yet as it has to be.
struct Waiting {
    /// Its place in the request.
    chunk: usize,
    lane: StreamPartition,
    appended: Appended,
}

/// Appends chunks to streamlets of a stream.
impl Handle for WriteChunksRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];
    const TRAFFIC: Option<Traffic> = Some(Traffic::Produced);

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_stream(client, Operation::Write, self.stream)
    }

    refuse_with_message!();
    errors!(error_code, chunks.error_code);
    tell_throttle!();

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::Bytes(PLAIN_BYTES + self.chunks.len() * ELEMENT_BYTES)
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        write(broker, self)
    }
}

/// Appends chunks, and answers when they are as durable as the stream's setting requires.
fn write(broker: &Arc<Broker>, request: WriteChunksRequest) -> Reply {
    let id = request.stream;
    let stream = match stream_of(broker.log(), id) {
        Ok(_) if request.chunks.len() > CHUNKS_MAX => {
            return Refused::too_many("chunks", CHUNKS_MAX)
                .answer::<WriteChunksResponse>()
                .into();
        }
        Ok(stream) => stream,
        Err(refused) => return refused.answer::<WriteChunksResponse>().into(),
    };
    let mut response = WriteChunksResponse::default();
    let mut waiting = Vec::new();
    for (number, chunk) in request.chunks.iter().enumerate() {
        let written = match append(&stream, chunk) {
            Ok((lane, appended)) => {
                let written = written(&lane, &appended);
                if !lane.answers_at_once() {
                    waiting.push(Waiting {
                        chunk: number,
                        lane,
                        appended,
                    });
                }
                written
            }
            Err(refused) => not_written(refused),
        };
        response.chunks.push(written);
    }
    match waiting.is_empty() {
        true => response.into(),
        false => Reply::later(acknowledge(id, response, waiting)),
    }
}

fn append(stream: &Stream, chunk: &ChunkToWrite) -> Result<(StreamPartition, Appended), Refused> {
    // No coordinator would know that the transaction has records here, so the transaction would
    // never end.
    let header = ChunkHeader::parse(&chunk.chunk);
    if header.is_ok_and(|header| header.attributes.is_transactional()) {
        return Err(Refused::new(
            ResponseError::InvalidTxnState,
            "chunks of transactions are written by Kafka's requests only",
        ));
    }
    let appended = stream.append_foreign(chunk.streamlet, &chunk.chunk);
    appended.map_err(|error| refused_chunk(stream.id(), error))
}

fn refused_chunk(id: StreamId, error: LogError) -> Refused {
    match error {
        LogError::UnknownStream { .. } => unknown_id(id),
        LogError::ControlChunk | LogError::BadProducer { .. } => {
            Refused::new(ResponseError::InvalidRecord, error.to_string())
        }
        error => error.into(),
    }
}

fn written(lane: &StreamPartition, appended: &Appended) -> WrittenChunk {
    WrittenChunk {
        error_code: 0,
        error_message: None,
        lane: lane.id().lane,
        base_offset: appended.base_offset,
        next_offset: appended.next_offset,
        is_duplicate: appended.duplicate,
    }
}

fn not_written(refused: Refused) -> WrittenChunk {
    WrittenChunk {
        error_code: refused.code(),
        error_message: refused.message(),
        lane: LaneIndex(0),
        base_offset: Offset(0),
        next_offset: Offset(0),
        is_duplicate: false,
    }
}

/// Waits until everything is as durable as it has to be before the answer.
async fn acknowledge(
    stream: StreamId,
    mut response: WriteChunksResponse,
    waiting: Vec<Waiting>,
) -> WriteChunksResponse {
    for wait in waiting {
        if let Err(error) = wait.lane.acknowledged(&wait.appended).await {
            response.chunks[wait.chunk] = not_written(refused_chunk(stream, error));
        }
    }
    response
}
