//! Subscriptions: chunks are pushed to whoever has subscribed to them.

use kafka_protocol::protocol::StrBytes;
use millstream_base::{ByteSize, Cursor, Offset};

use super::{Payload, native, nullable};

native! {
    /// Asks where clients come in that run on the server's machine.
    LocalSocketRequest {
    }

    /// Answers [`LocalSocketRequest`].
    #[derive(Default)]
    LocalSocketResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// The path of a Unix-domain socket that speaks this protocol too, without TLS; null if there is
        /// none.
        path: Option<StrBytes>,
    }

    /// Begins a subscription: from now on chunks are handed out as they become durable. It ends with its
    /// connection.
    SubscribeRequest {
        /// Who takes chunks by itself: each has what it is handed, and holds up nobody else. One, unless
        /// memory is shared.
        sources: Vec<SubscribedSource>,
        /// Which records are handed out; all without it.
        filter: Option<StrBytes>,
        /// About how many bytes are handed out at once; a chunk that is larger comes whole.
        bytes_max: u32,
        /// About how many bytes each source may have in hand. Counts where memory is shared; else each request
        /// for more is answered once.
        ahead_bytes: ByteSize,
        /// The layout of shared memory that the client knows; 0 if it wants none.
        layout: u32,
    }

    /// What one source is handed: lanes, or an application's groups.
    SubscribedSource {
        /// Lanes, each from an offset on.
        lanes: Vec<SubscribedLane>,
        /// If there are no lanes: whose groups.
        application: Option<SubscribedApplication>,
    }

    /// A lane that is read.
    SubscribedLane {
        /// The stream's name.
        stream: StrBytes,
        /// The lane's number among all of the stream.
        partition: u32,
        /// The first offset that is wanted.
        offset: Offset,
    }

    /// An application whose groups are read: each is handed to one of its consumers.
    SubscribedApplication {
        /// The stream's name.
        stream: StrBytes,
        /// What consumers of the same task share.
        application: StrBytes,
        /// Who reads: unique within the application.
        consumer: StrBytes,
    }

    /// Answers [`SubscribeRequest`].
    #[derive(Default)]
    SubscribeResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// What the subscription is called on this connection.
        subscription: u32,
        /// Where it is handed out; null if it is asked for with [`ReceiveRequest`].
        shared: Option<SharedMemory>,
        /// Why no memory is shared, if that was asked for.
        not_shared: Option<StrBytes>,
    }

    /// Files in the server's memory, in the layout that the client knows. They are opened by their paths, on
    /// the server's machine.
    SharedMemory {
        /// What descriptors point into: to be mapped read-only.
        pool_path: StrBytes,
        /// How much of it there is.
        pool_bytes: ByteSize,
        /// The descriptors, in a ring for each source: to be opened first.
        rings_path: StrBytes,
        /// What this one has in its header.
        identity: u64,
    }

    /// Asks for what comes next in a subscription. Several may be under way: each is answered as soon as there
    /// is something, in their order. Where memory is shared it is answered without chunks when
    /// there is something in the ring; with a `bytes_max` of 0, when the subscription ends. Else it is answered
    /// with nothing after a long time, or 10 seconds if the client has a quota for reading, which asks again.
    ReceiveRequest {
        /// What it is called.
        subscription: u32,
        /// The source that asks: its number among those that have subscribed.
        source: u32,
        /// About how many bytes of chunks the answer may have; the first chunk comes whole.
        bytes_max: u32,
    }

    /// Answers [`ReceiveRequest`].
    #[derive(Default)]
    ReceiveResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// What is wrong with the whole subscription, which has ended then: 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// What comes next.
        handed: Vec<HandedChunks>,
    }

    /// Chunks of one lane that follow each other, or why there will be none.
    HandedChunks {
        /// The lane: its number among those that were subscribed to; of an application, among all of the stream.
        place: u32,
        /// 0, or one of Kafka's error codes: nothing more comes from this lane.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// Records before are in the first chunk, and were not asked for.
        from: Offset,
        /// The offset behind the last record; after an error the earliest that is stored.
        next: Offset,
        /// Up to where there was something to be handed out.
        end: Offset,
        /// Where reading goes on.
        cursor: Cursor,
        /// Whole chunks; none where others were left out.
        chunks: Payload,
    }

    /// Ends a subscription: what was asked for is answered with an error.
    UnsubscribeRequest {
        /// What it is called.
        subscription: u32,
    }

    /// Answers [`UnsubscribeRequest`].
    #[derive(Default)]
    UnsubscribeResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
    }
}

nullable!(SharedMemory, SubscribedApplication);
