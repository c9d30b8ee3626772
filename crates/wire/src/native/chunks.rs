//! Requests to write chunks to streamlets, and to read them from cursors on.

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use millstream_base::{Cursor, LaneIndex, Offset, StreamId, StreamletIndex};

use super::{Payload, native};

native! {
    /// Appends chunks to streamlets of a stream (multiWriteChunks of kera, table 6.1). The producer id in a
    /// chunk's header determines the chunk's lane.
    WriteChunksRequest {
        /// The id of the stream.
        stream: StreamId,
        /// The chunks; the broker appends them in this order.
        chunks: Vec<ChunkToWrite>,
    }

    /// A chunk and its streamlet.
    ChunkToWrite {
        /// The number of the streamlet.
        streamlet: StreamletIndex,
        /// One record batch of Kafka's format 2.
        chunk: Bytes,
    }

    /// Answers [`WriteChunksRequest`] after all chunks are as durable as the stream's setting requires.
    WriteChunksResponse: Answer {
        /// One element for each chunk, in their order; empty if the whole request failed.
        chunks: Vec<WrittenChunk>,
    }

    /// The result for a chunk.
    WrittenChunk {
        /// 0, or one of Kafka's error codes; after an error the broker has stored nothing of the chunk.
        error_code: i16,
        /// The description of the error.
        error_message: Option<StrBytes>,
        /// The lane that stores the chunk.
        lane: LaneIndex,
        /// The offset of its first record.
        base_offset: Offset,
        /// The offset behind its last record.
        next_offset: Offset,
        /// Whether the broker had stored the chunk before.
        is_duplicate: bool,
    }

    /// Reads durable chunks from several positions (multiReadChunks of kera, table 6.1).
    ReadChunksRequest {
        /// The positions to read from, each within one group.
        cursors: Vec<Cursor>,
        /// About how many bytes of chunks the answer may have; the first chunk always comes whole.
        bytes_max: u32,
        /// The broker answers as soon as it has this many bytes.
        bytes_min: u32,
        /// How long the broker waits for `bytes_min`.
        wait_ms_max: u32,
    }

    /// Answers [`ReadChunksRequest`].
    ReadChunksResponse: Answer {
        /// One element for each cursor, in their order; empty if the whole request failed.
        reads: Vec<ReadFromCursor>,
    }

    /// The result for a cursor.
    ReadFromCursor {
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// The description of the error.
        error_message: Option<StrBytes>,
        /// The cursor for the next read. If retention removed the position of the request's cursor, the
        /// earliest stored position.
        next: Cursor,
        /// Whole chunks; empty at the end of the durable records, or if the chunks of other cursors filled
        /// the answer.
        chunks: Payload,
    }
}
