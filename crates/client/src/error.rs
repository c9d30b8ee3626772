//! The client's errors.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::Offset;
use millstream_record::ChunkError;
use millstream_wire::{ApiKey, EncodeError, FrameError, ResponseError, ResponseFrameError, sasl};

use crate::reason::{is_denial, reason, servers_that_know};

/// The first bytes of a server's answer in TLS: an alert of version 3.
const TLS_ALERT: usize = 0x1503;

/// The most bytes of a key that an error names.
const NAMED_KEY_BYTES_MAX: usize = 100;

/// The reason why a request or a call failed.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The server cannot be reached.
    #[error("cannot reach a server at {address}: {error}")]
    Connect {
        /// The address, as the settings or the cluster give it.
        address: String,
        /// The reason.
        error: Arc<io::Error>,
    },
    /// The connection was lost. The server may or may not have executed the requests in flight.
    #[error("the connection to {address} was lost")]
    Disconnected {
        /// The server's address.
        address: String,
    },
    /// No answer came in time. The server may or may not have executed the request.
    #[error("{what} was not done within {after:?}{}", because(trouble.as_deref()))]
    Timeout {
        /// The request.
        what: String,
        /// The time for which the client waited.
        after: Duration,
        /// The error of the last attempt, if the client retried.
        trouble: Option<Arc<ClientError>>,
    },
    /// The server refuses the request.
    #[error("{}", refusal(what, *error, message.as_deref()))]
    Refused {
        /// The request.
        what: String,
        /// Kafka's error.
        error: ResponseError,
        /// The server's message.
        message: Option<String>,
    },
    /// The server does not know the request.
    #[error("the server at {address} does not know the request {api:?}{}", servers_that_know(*api))]
    Unsupported {
        /// The request.
        api: ApiKey,
        /// The server's address.
        address: String,
    },
    /// The partition has no leader for now.
    #[error("{what} has no leader")]
    NoLeader {
        /// The partition.
        what: String,
    },
    /// The stream of this name is no longer the one that was read before.
    #[error(
        "stream {stream} was deleted and made again: the records read before are gone; start again from the new stream"
    )]
    MadeAgain {
        /// The stream.
        stream: String,
    },
    /// A watch would miss changes, or has seen some that were lost since.
    #[error("{why}")]
    ChangesLost {
        /// The reason, with the stream and the partition.
        why: String,
    },
    /// A key has another version than the one that was expected.
    #[error("stream {stream}: the key has another version than expected: {}", newest_of(*newest))]
    OtherVersion {
        /// The stream.
        stream: String,
        /// The newest version of the key; `None` if it has no value.
        newest: Option<Offset>,
    },
    /// A change is refused, and so are those that were to be made together with it.
    #[error(
        "nothing was changed, since the change of key {:?} is refused: {why}",
        key_in_words(key)
    )]
    NotTogether {
        /// The key of the change.
        key: Bytes,
        /// The reason.
        why: Box<ClientError>,
    },
    /// The server violates the protocol.
    #[error("the server at {address} does not speak Kafka's protocol: {what}")]
    Protocol {
        /// The server's address.
        address: String,
        /// The violation.
        what: String,
    },
    /// The request cannot be encoded.
    #[error("the request cannot be sent: {0}")]
    Encode(#[from] EncodeError),
    /// The login failed.
    #[error("cannot log in at {address}: {error}")]
    Login {
        /// The server's address.
        address: String,
        /// The reason.
        error: sasl::ClientError,
    },
    /// Certificates are invalid.
    #[error("{what}")]
    Tls {
        /// The fault, with its place.
        what: String,
    },
    /// The records to be sent are not a valid chunk.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    /// Records contradict their chunk: their producer sent them malformed, or they were damaged since.
    #[error("partition {partition} of {stream}, offset {}: {error}", offsets.start)]
    Damaged {
        /// The stream.
        stream: String,
        /// The partition.
        partition: i32,
        /// The offsets from the first unreadable record on, to the end of the chunk.
        offsets: Range<Offset>,
        /// The contradiction.
        error: Box<ChunkError>,
    },
    /// A record is too large to be sent at all.
    #[error("a record of {bytes} bytes is larger than the whole send buffer of {bytes_max} bytes")]
    RecordTooLarge {
        /// The record's size.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// Earlier records of the same partition were not stored, or their outcome is unknown.
    #[error("not sent, since records before it were not stored: {0}")]
    Behind(Arc<ClientError>),
    /// The server and the client do not share memory.
    #[error("the server at {address} does not share its memory: {why}")]
    NotShared {
        /// The server's address.
        address: String,
        /// The reason.
        why: String,
    },
    /// The server has taken back the memory that records were read from. The records returned since the last chunk
    /// may be wrong.
    #[error(
        "the server has taken back the memory in which these records are ({why}): the last of those that were read \
         may be wrong. A consumer returns them again with its next call; copy records that you hold for long"
    )]
    TakenBack {
        /// The reason.
        why: String,
    },
    /// Some records of the transaction were not stored.
    #[error("the transaction can only be aborted: {0}")]
    AbortNeeded(Arc<ClientError>),
    /// The server cannot leave transactions undecided.
    #[error(
        "the server at {address} does not know two-phase commit (KIP-939): its transactions end with their timeout"
    )]
    NoTwoPhaseCommit {
        /// The server's address.
        address: String,
    },
    /// A transactional id has one transaction at a time.
    #[error("a transaction is open: commit or abort it first")]
    TransactionOpen,
    /// A transactional producer sends records only within transactions.
    #[error("no transaction has begun")]
    NoTransaction,
    /// The producer or consumer was closed.
    #[error("it is closed")]
    Closed,
}

millstream_base::debug_as_display!(ClientError);

fn newest_of(newest: Option<Offset>) -> String {
    match newest {
        Some(newest) => format!("its newest one is {newest}"),
        None => "it has no value".to_owned(),
    }
}

fn because(trouble: Option<&ClientError>) -> String {
    trouble.map_or_else(String::new, |trouble| format!(": {trouble}"))
}

/// Combines the request with the server's message, which often names the request's object already.
fn refusal(what: &str, error: ResponseError, message: Option<&str>) -> String {
    match message {
        Some(message) if message.contains(what) => message.to_owned(),
        Some(message) => format!("{what}: {message}"),
        None => format!("{what}: {}", reason(error)),
    }
}

fn key_in_words(key: &[u8]) -> String {
    let named = key.len().min(NAMED_KEY_BYTES_MAX);
    let text = String::from_utf8_lossy(&key[..named]).into_owned();
    match named == key.len() {
        true => text,
        false => text + "…",
    }
}

impl ClientError {
    /// Converts the error code of an answer; returns `None` for 0.
    pub(crate) fn of_code(
        code: i16,
        message: Option<&str>,
        what: impl Into<String>,
    ) -> Option<ClientError> {
        if code == 0 {
            return None;
        }
        Some(ClientError::Refused {
            what: what.into(),
            error: ResponseError::try_from_code(code).unwrap_or(ResponseError::UnknownServerError),
            message: message.filter(|text| !text.is_empty()).map(str::to_owned),
        })
    }

    /// Fails unless the code of an answer is 0.
    pub(crate) fn check(
        code: i16,
        message: Option<&str>,
        what: impl Into<String>,
    ) -> Result<(), ClientError> {
        ClientError::of_code(code, message, what).map_or(Ok(()), Err)
    }

    /// Names the right that the user lacks, if the server refuses for that.
    pub(crate) fn needing(mut self, right: &str) -> ClientError {
        if self.is_denied()
            && let ClientError::Refused { error, message, .. } = &mut self
            && message.is_none()
        {
            *message = Some(format!(
                "{}; the user needs the right {right}",
                reason(*error)
            ));
        }
        self
    }

    /// Returns the server's error, if the server refused.
    pub fn response_error(&self) -> Option<ResponseError> {
        match self {
            ClientError::Refused { error, .. } => Some(*error),
            _ => None,
        }
    }

    /// Returns whether the server refused since the user lacks a right.
    pub fn is_denied(&self) -> bool {
        self.response_error().is_some_and(is_denial)
    }

    /// Returns whether a retry may succeed.
    pub fn is_retriable(&self) -> bool {
        match self {
            ClientError::Connect { .. }
            | ClientError::Disconnected { .. }
            | ClientError::Timeout { .. }
            | ClientError::NoLeader { .. }
            | ClientError::TakenBack { .. } => true,
            ClientError::Refused { error, .. } => error.is_retriable(),
            _ => false,
        }
    }

    /// Returns whether the retry of a request about transactions may succeed: also while the previous transaction is
    /// ending.
    pub(crate) fn is_retriable_in_transaction(&self) -> bool {
        self.is_retriable() || self.response_error() == Some(ResponseError::ConcurrentTransactions)
    }

    /// Returns whether another producer has taken over the transactional id, or the transaction took too long.
    pub fn is_fenced(&self) -> bool {
        match self {
            ClientError::AbortNeeded(error) | ClientError::Behind(error) => error.is_fenced(),
            ClientError::Refused { error, .. } => matches!(
                error,
                ResponseError::ProducerFenced
                    | ResponseError::InvalidProducerEpoch
                    | ResponseError::InvalidProducerIdMapping
            ),
            _ => false,
        }
    }

    /// Returns whether servers report the stream as unknown.
    pub fn is_unknown_stream(&self) -> bool {
        match self {
            ClientError::AbortNeeded(error) | ClientError::Behind(error) => {
                error.is_unknown_stream()
            }
            error => error.response_error() == Some(ResponseError::UnknownTopicOrPartition),
        }
    }

    /// Returns whether a partition has no leader for now, or its leader is another server than the one asked.
    pub(crate) fn is_of_leaders(&self) -> bool {
        match self {
            ClientError::NoLeader { .. } => true,
            ClientError::Refused { error, .. } => matches!(
                error,
                ResponseError::NotLeaderOrFollower
                    | ResponseError::LeaderNotAvailable
                    | ResponseError::FencedLeaderEpoch
                    | ResponseError::UnknownLeaderEpoch
                    | ResponseError::OffsetNotAvailable
            ),
            _ => false,
        }
    }

    pub(crate) fn malformed(address: &str, error: &ResponseFrameError) -> ClientError {
        ClientError::Protocol {
            address: address.to_owned(),
            what: error.to_string(),
        }
    }

    pub(crate) fn frame(address: &str, error: &FrameError) -> ClientError {
        let what = match error {
            FrameError::FrameTooLarge { announced, .. } if announced >> 16 == TLS_ALERT => {
                "it wants TLS: name the authorities that sign its certificate (--tls-authorities)"
                    .to_owned()
            }
            error => error.to_string(),
        };
        let address = address.to_owned();
        ClientError::Protocol { address, what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_carry_the_last_error() {
        let code = ResponseError::KafkaStorageError.code();
        let trouble = ClientError::of_code(code, Some("disk is full"), "partition 0 of t");
        let given_up = ClientError::Timeout {
            what: "sending to partition 0 of t".to_owned(),
            after: Duration::from_secs(120),
            trouble: trouble.map(Arc::new),
        };
        assert_eq!(
            given_up.to_string(),
            "sending to partition 0 of t was not done within 120s: partition 0 of t: disk is full"
        );
    }

    #[test]
    fn refusals_describe_the_error_and_name_their_object_once() {
        let text = |message, code: ResponseError| {
            let error = ClientError::of_code(code.code(), message, "group g");
            error.expect("it is one").to_string()
        };
        let none = "group g: there is no such group";
        assert_eq!(text(None, ResponseError::GroupIdNotFound), none);
        let gone = text(Some("group g is gone"), ResponseError::GroupIdNotFound);
        assert_eq!(gone, "group g is gone");
        let unnamed = text(Some("it is gone"), ResponseError::GroupIdNotFound);
        assert_eq!(unnamed, "group g: it is gone");
        let rare = text(None, ResponseError::SnapshotNotFound);
        assert_eq!(rare, "group g: Kafka's error SnapshotNotFound");
    }

    #[test]
    fn denials_name_the_missing_right_unless_the_server_explains() {
        let error = |error: ResponseError, message| {
            let error = ClientError::of_code(error.code(), message, "stream s");
            error.expect("it is one").needing("Create").to_string()
        };
        let denied = ResponseError::TopicAuthorizationFailed;
        let named = "stream s: no access rule allows it; the user needs the right Create";
        assert_eq!(error(denied, None), named);
        assert_eq!(error(denied, Some("ask Ann")), "stream s: ask Ann");
        let other = error(ResponseError::TopicAlreadyExists, None);
        assert_eq!(other, "stream s: it exists already");
    }

    #[test]
    fn errors_of_unknown_requests_name_the_servers_that_know_them() {
        let text = |api| {
            let address = "localhost:9092".to_owned();
            ClientError::Unsupported { api, address }.to_string()
        };
        assert!(text(ApiKey::ListObjects).ends_with("; only a server of Millstream does"));
        assert!(text(ApiKey::ConsumerGroupHeartbeat).ends_with("Apache Kafka has since 4.0"));
    }

    #[test]
    fn errors_distinguish_a_server_with_tls_from_another_protocol() {
        let of = |first: [u8; 4]| {
            let announced = u32::from_be_bytes(first) as usize;
            let error = FrameError::FrameTooLarge { announced, max: 1 };
            ClientError::frame("localhost:9092", &error).to_string()
        };
        assert!(of([0x15, 3, 3, 0]).contains("it wants TLS"));
        assert!(of(*b"HTTP").contains("does not speak Kafka's protocol: the frame announces"));
    }
}
