//! Objects: put in parts, got by ranges, listed, deleted.

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use millstream_base::{ByteSize, StreamId, Timestamp};

use super::{Payload, native, nullable};

native! {
    /// What is known of an object.
    ObjectDescription {
        /// What it is called.
        name: StrBytes,
        /// The size of its content.
        bytes: ByteSize,
        /// CRC-32C of its content.
        crc32c: u32,
        /// When it was put.
        created: Timestamp,
        /// The stream that holds its content.
        stream: StreamId,
    }

    /// Puts a part of an object. Parts follow each other on one connection, and the object exists
    /// when the last one is answered; where the connection ends before, it does not.
    PutObjectRequest {
        /// What it is called.
        name: StrBytes,
        /// Where in the object the part begins; 0 begins the object.
        start: u64,
        /// The content of the part.
        content: Bytes,
        /// Whether it is the last part.
        is_last: bool,
    }

    /// Answers [`PutObjectRequest`].
    #[derive(Default)]
    PutObjectResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// 0, or one of Kafka's error codes; the object is given up then.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// After the last part: what is now stored.
        object: Option<ObjectDescription>,
    }

    /// Reads a range of an object.
    GetObjectRequest {
        /// What it is called.
        name: StrBytes,
        /// The first byte.
        start: u64,
        /// How many bytes at most; with 0, only the description is asked for.
        bytes_max: u32,
    }

    /// Answers [`GetObjectRequest`].
    #[derive(Default)]
    GetObjectResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// The whole object.
        object: Option<ObjectDescription>,
        /// The bytes from `start` on; fewer than asked for where the object ends, or the broker
        /// gives no more at once.
        content: Payload,
    }

    /// Asks which objects there are.
    ListObjectsRequest {
        /// What their names start with.
        prefix: StrBytes,
        /// The last name of the answer before, if there was one.
        after: Option<StrBytes>,
        /// How many at most.
        objects_max: u32,
    }

    /// Answers [`ListObjectsRequest`].
    #[derive(Default)]
    ListObjectsResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// Objects, by name.
        objects: Vec<ObjectDescription>,
        /// Whether there are more behind them.
        has_more: bool,
    }

    /// Deletes an object.
    DeleteObjectRequest {
        /// What it is called.
        name: StrBytes,
    }

    /// Answers [`DeleteObjectRequest`], when the deletion is durable.
    #[derive(Default)]
    DeleteObjectResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
    }
}

nullable!(ObjectDescription);
