//! Subscriptions, to which the server pushes chunks.

use kafka_protocol::protocol::StrBytes;
use millstream_base::{ByteSize, Cursor, Offset};

use super::{Payload, native, nullable};

native! {
    /// Returns the path of the server's socket for clients on the same machine.
    LocalSocketRequest {
    }

    /// Answers [`LocalSocketRequest`].
    LocalSocketResponse: Answer {
        /// The path of a Unix-domain socket that speaks this protocol without TLS; null if the server has
        /// none.
        path: Option<StrBytes>,
    }

    /// Begins a subscription: the server delivers chunks as they become durable, in shared memory or as answers
    /// to [`ReceiveRequest`]. The subscription ends with its connection.
    SubscribeRequest {
        /// The sources. Each receives and finishes its chunks independently of the others. There must be
        /// one, unless memory is shared.
        sources: Vec<SubscribedSource>,
        /// The filter of the records; null for all records.
        filter: Option<StrBytes>,
        /// About how many bytes the server delivers at once; a larger chunk comes whole.
        bytes_max: u32,
        /// About how many unfinished bytes a source may hold in shared memory. Over the network the Receive
        /// requests are the bound instead.
        ahead_bytes: ByteSize,
        /// The layout version of shared memory that the client supports; 0 if it wants none.
        layout: u32,
    }

    /// A source, which reads either lanes or groups of a shared group.
    SubscribedSource {
        /// The lanes of the source, each with its first offset.
        lanes: Vec<SubscribedLane>,
        /// The shared group of the source, if it has no lanes.
        shared_group: Option<SubscribedSharedGroup>,
    }

    /// A lane of a source.
    SubscribedLane {
        /// The name of the stream.
        stream: StrBytes,
        /// The number of the lane among all lanes of the stream.
        partition: u32,
        /// The first offset that the client wants.
        offset: Offset,
    }

    /// A shared group. The server assigns each group of the stream to one of its consumers.
    SubscribedSharedGroup {
        /// The name of the stream.
        stream: StrBytes,
        /// The name of the shared group.
        name: StrBytes,
        /// The name of the consumer, unique within the shared group.
        consumer: StrBytes,
    }

    /// Answers [`SubscribeRequest`].
    SubscribeResponse: Answer {
        /// The number of the subscription on this connection.
        subscription: u32,
        /// The shared memory that delivers the chunks; null if the client must use Receive.
        shared: Option<SharedMemory>,
        /// Why the server shares no memory, if the client asked for it.
        not_shared: Option<StrBytes>,
    }

    /// Files in the server's memory, in the client's layout. The client opens them by their paths, on the
    /// server's machine.
    SharedMemory {
        /// The segment pool, into which the descriptors point. Map it read-only.
        pool_path: StrBytes,
        /// The size of the pool.
        pool_bytes: ByteSize,
        /// The descriptors, in a ring for each source. Open it first.
        rings_path: StrBytes,
        /// The identity of this subscription, which the header of the rings file must have.
        identity: u64,
    }

    /// Asks for the next chunks of a subscription. A client may have several requests under way; the server
    /// answers them in their order.
    ///
    /// - Without shared memory, the server answers as soon as it has chunks. If there are none, it answers
    ///   without chunks after 10 minutes (after 10 seconds if the client has a quota for reading), and the
    ///   client asks again.
    /// - With shared memory, the server answers without chunks when the ring has new descriptors, or after
    ///   10 minutes; with a `bytes_max` of 0, when the subscription ends.
    ReceiveRequest {
        /// The number of the subscription.
        subscription: u32,
        /// The number of the source in the subscription.
        source: u32,
        /// About how many bytes of chunks the answer may have; the first chunk always comes whole.
        bytes_max: u32,
    }

    /// Answers [`ReceiveRequest`].
    ReceiveResponse: Answer {
        /// The next chunks.
        delivered: Vec<DeliveredChunks>,
    }

    /// Consecutive chunks of one lane, or the error that ends the lane.
    DeliveredChunks {
        /// The lane. With `lanes`: its index in the subscription. With a shared group: its number among all
        /// lanes of the stream.
        lane: u32,
        /// 0, or one of Kafka's error codes. After an error nothing more comes from this lane.
        error_code: i16,
        /// The description of the error.
        error_message: Option<StrBytes>,
        /// The first offset of the delivery. The first chunk may hold earlier records; skip these.
        from: Offset,
        /// The offset behind the last record; after an error, the earliest stored offset.
        next: Offset,
        /// The offset up to which records were available for delivery.
        end: Offset,
        /// The cursor for the next read.
        cursor: Cursor,
        /// Whole chunks; empty if the filter removed all records.
        chunks: Payload,
    }

    /// Ends a subscription. The server answers the waiting Receive requests with an error.
    UnsubscribeRequest {
        /// The number of the subscription.
        subscription: u32,
    }

    /// Answers [`UnsubscribeRequest`].
    UnsubscribeResponse: Answer {
    }
}

nullable!(SharedMemory, SubscribedSharedGroup);
