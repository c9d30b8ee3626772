//! Requests to write, read, list and delete objects.

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use millstream_base::{ByteSize, StreamId, Timestamp};

use super::{Payload, native, nullable};

native! {
    /// An object.
    ObjectDescription {
        /// The name of the object.
        name: StrBytes,
        /// The size of its content.
        bytes: ByteSize,
        /// The CRC-32C of its content.
        crc32c: u32,
        /// The time of its creation, in milliseconds since 1970.
        created: Timestamp,
        /// The stream that holds its content.
        stream: StreamId,
    }

    /// Writes a part of an object. The client sends the parts one after another on one connection. The object
    /// exists when the server has answered the last part; if the connection ends earlier, it does not exist.
    PutObjectRequest {
        /// The name of the object.
        name: StrBytes,
        /// The position of the part in the object; 0 begins the object.
        start: u64,
        /// The bytes of the part.
        content: Bytes,
        /// Whether this is the last part.
        is_last: bool,
    }

    /// Answers [`PutObjectRequest`].
    PutObjectResponse: Answer {
        /// After the last part: the stored object; else null.
        object: Option<ObjectDescription>,
    }

    /// Reads a range of an object.
    GetObjectRequest {
        /// The name of the object.
        name: StrBytes,
        /// The position of the first byte.
        start: u64,
        /// The most bytes in the answer; 0 asks for the description only.
        bytes_max: u32,
    }

    /// Answers [`GetObjectRequest`].
    GetObjectResponse: Answer {
        /// The description of the whole object.
        object: Option<ObjectDescription>,
        /// The bytes from `start` on. They are fewer than `bytes_max` if the object ends, or at the
        /// broker's own bound.
        content: Payload,
    }

    /// Lists objects.
    ListObjectsRequest {
        /// The prefix of the names.
        prefix: StrBytes,
        /// The last name of the previous answer; null for the first request.
        after: Option<StrBytes>,
        /// The most objects in the answer.
        objects_max: u32,
    }

    /// Answers [`ListObjectsRequest`].
    ListObjectsResponse: Answer {
        /// The objects, in the order of their names.
        objects: Vec<ObjectDescription>,
        /// Whether more objects follow.
        has_more: bool,
    }

    /// Deletes an object.
    DeleteObjectRequest {
        /// The name of the object.
        name: StrBytes,
    }

    /// Answers [`DeleteObjectRequest`] after the deletion is durable.
    DeleteObjectResponse: Answer {
    }
}

nullable!(ObjectDescription);
