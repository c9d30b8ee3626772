//! Chunks: written to streamlets, read from cursors on.

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use millstream_base::{Cursor, LaneIndex, Offset, StreamId, StreamletIndex};

use super::{Payload, native};

native! {
    /// Appends chunks to streamlets of a stream (multiWriteChunks of kera, table 6.1). Each goes to
    /// the lane of the producer that its header names.
    WriteChunksRequest {
        /// The stream.
        stream: StreamId,
        /// The chunks, which are appended in this order.
        chunks: Vec<ChunkToWrite>,
    }

    /// A chunk, and where it goes.
    ChunkToWrite {
        /// The streamlet.
        streamlet: StreamletIndex,
        /// One record batch of Kafka's format 2.
        chunk: Bytes,
    }

    /// Answers [`WriteChunksRequest`], when all are as durable as the stream's setting says.
    #[derive(Default)]
    WriteChunksResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// What is wrong with the whole request: 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// One for each chunk, in their order; none if the whole request is refused.
        chunks: Vec<WrittenChunk>,
    }

    /// What became of a chunk.
    WrittenChunk {
        /// 0, or one of Kafka's error codes; nothing was stored then.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// The lane that it went to.
        lane: LaneIndex,
        /// The offset of its first record.
        base_offset: Offset,
        /// The offset behind its last record.
        next_offset: Offset,
        /// Whether it had been stored before.
        is_duplicate: bool,
    }

    /// Reads durable chunks from several cursors on (multiReadChunks of kera, table 6.1).
    ReadChunksRequest {
        /// Where to read, each within one group.
        cursors: Vec<Cursor>,
        /// About how many bytes of chunks the answer may have; the first chunk comes whole.
        bytes_max: u32,
        /// How many bytes are worth an answer.
        bytes_min: u32,
        /// How long to wait for so many.
        wait_ms_max: u32,
    }

    /// Answers [`ReadChunksRequest`].
    #[derive(Default)]
    ReadChunksResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// What is wrong with the whole request: 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// One for each cursor, in their order; none if the whole request is refused.
        reads: Vec<ReadFromCursor>,
    }

    /// What was read from a cursor on.
    ReadFromCursor {
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// Where to read on. If what the cursor points at was removed: the earliest that is stored.
        next: Cursor,
        /// Whole chunks; none at the durable head, or where others filled the answer.
        chunks: Payload,
    }
}
