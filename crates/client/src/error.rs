//! What can go wrong.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use millstream_record::ChunkError;
use millstream_wire::{ApiKey, EncodeError, FrameError, ResponseError, ResponseFrameError, sasl};

use crate::reason::{reason, who_knows};

/// What the first bytes are of a server's answer that speaks TLS: an alert of version 3.
const TLS_ALERT: usize = 0x1503;

/// Why something was not done.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Nobody is there.
    #[error("cannot reach a server at {address}: {error}")]
    Connect {
        /// The address, as it was given.
        address: String,
        /// Why.
        error: Arc<io::Error>,
    },
    /// The connection was there, and is not any more. What was under way may or may not be done.
    #[error("the connection to {address} was lost")]
    Disconnected {
        /// The server's address.
        address: String,
    },
    /// No answer came in time. What was asked for may or may not be done.
    #[error("{what} is not done after {after:?}{}", because(trouble.as_deref()))]
    Timeout {
        /// What was asked for.
        what: String,
        /// How long it was waited for.
        after: Duration,
        /// Why the last attempt failed, if it was tried again.
        trouble: Option<Arc<ClientError>>,
    },
    /// The server says no.
    #[error("{}", refusal(what, *error, message.as_deref()))]
    Refused {
        /// What was asked for.
        what: String,
        /// Kafka's error.
        error: ResponseError,
        /// What the server says of it.
        message: Option<String>,
    },
    /// The server does not know the request.
    #[error("the server at {address} does not know the request {api:?}{}", who_knows(*api))]
    Unsupported {
        /// Which request.
        api: ApiKey,
        /// The server's address.
        address: String,
    },
    /// Nobody has the answer, for now.
    #[error("{what} has no leader")]
    NoLeader {
        /// Which partition.
        what: String,
    },
    /// The stream of this name is another than before.
    #[error(
        "stream {stream} was deleted and made again: what was read of it is gone, so begin anew"
    )]
    MadeAgain {
        /// The stream.
        stream: String,
    },
    /// The server does not keep to the protocol.
    #[error("the server at {address} does not speak Kafka's protocol: {what}")]
    Protocol {
        /// The server's address.
        address: String,
        /// What it did.
        what: String,
    },
    /// What is to be sent cannot be.
    #[error("the request cannot be sent: {0}")]
    Encode(#[from] EncodeError),
    /// The login failed.
    #[error("cannot log in at {address}: {error}")]
    Login {
        /// The server's address.
        address: String,
        /// Why.
        error: sasl::ClientError,
    },
    /// Certificates are not what they should be.
    #[error("{what}")]
    Tls {
        /// What is wrong, and where.
        what: String,
    },
    /// Records that were read, or are to be sent, are no chunk.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    /// A record is too large to be sent at all.
    #[error("a record of {bytes} bytes is larger than {bytes_max}, which is all that is buffered")]
    RecordTooLarge {
        /// The record's size.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// Records of the same partition before it were not stored, or nobody knows.
    #[error("not sent, since records before it were not stored: {0}")]
    Behind(Arc<ClientError>),
    /// No memory is shared with the server.
    #[error("the server at {address} does not share its memory: {why}")]
    NotShared {
        /// The server's address.
        address: String,
        /// Why.
        why: String,
    },
    /// The server has taken back the memory that records were read from. Those that were given out since the
    /// last chunk may be wrong.
    #[error(
        "the server has taken back the memory in which these records are ({why}): the last of those that were read \
         may be wrong. A consumer hands them out again with its next call; copy what is to be kept for long"
    )]
    TakenBack {
        /// Why.
        why: String,
    },
    /// Something of the transaction was not stored.
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
    /// One transaction of a transactional id comes after the other.
    #[error("a transaction is open: commit or abort it first")]
    TransactionOpen,
    /// A transactional producer sends records within transactions only.
    #[error("no transaction has begun")]
    NoTransaction,
    /// The producer or consumer was closed.
    #[error("it is closed")]
    Closed,
}

fn because(trouble: Option<&ClientError>) -> String {
    trouble.map_or_else(String::new, |trouble| format!(": {trouble}"))
}

/// What the server says names what was asked for, often.
fn refusal(what: &str, error: ResponseError, message: Option<&str>) -> String {
    match message {
        Some(message) if message.contains(what) => message.to_owned(),
        Some(message) => format!("{what}: {message}"),
        None => format!("{what}: {}", reason(error)),
    }
}

impl ClientError {
    /// An error of an answer; `None` for 0.
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

    /// What the server said, if it was the server.
    pub fn response_error(&self) -> Option<ResponseError> {
        match self {
            ClientError::Refused { error, .. } => Some(*error),
            _ => None,
        }
    }

    /// Whether the same may succeed when it is tried again.
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

    /// Whether a request about transactions may succeed when it is tried again: also while the transaction before is being
    /// ended.
    pub(crate) fn is_retriable_in_transaction(&self) -> bool {
        self.is_retriable() || self.response_error() == Some(ResponseError::ConcurrentTransactions)
    }

    /// Whether another producer has taken over the transactional id, or the transaction took too long.
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

    /// Whether servers say that there is no such stream.
    pub fn is_unknown_stream(&self) -> bool {
        self.response_error() == Some(ResponseError::UnknownTopicOrPartition)
    }

    /// Whether nobody leads a partition for now, or another server than was asked.
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
                "it wants TLS, so it has to be said who signs its certificate (--tls-authorities)"
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
    fn what_is_tried_in_vain_is_given_up_with_the_reason() {
        let code = ResponseError::KafkaStorageError.code();
        let trouble = ClientError::of_code(code, Some("disk is full"), "partition 0 of t");
        let given_up = ClientError::Timeout {
            what: "sending to partition 0 of t".to_owned(),
            after: Duration::from_secs(120),
            trouble: trouble.map(Arc::new),
        };
        assert_eq!(
            given_up.to_string(),
            "sending to partition 0 of t is not done after 120s: partition 0 of t: disk is full"
        );
    }

    #[test]
    fn refusals_are_told_in_words_and_name_their_object_once() {
        let told = |message, code: ResponseError| {
            let error = ClientError::of_code(code.code(), message, "group g");
            error.expect("it is one").to_string()
        };
        let none = "group g: there is no such group";
        assert_eq!(told(None, ResponseError::GroupIdNotFound), none);
        let gone = told(Some("group g is gone"), ResponseError::GroupIdNotFound);
        assert_eq!(gone, "group g is gone");
        let unnamed = told(Some("it is gone"), ResponseError::GroupIdNotFound);
        assert_eq!(unnamed, "group g: it is gone");
        let rare = told(None, ResponseError::SnapshotNotFound);
        assert_eq!(rare, "group g: Kafka's error SnapshotNotFound");
    }

    #[test]
    fn requests_that_others_do_not_know_are_told_with_who_does() {
        let told = |api| {
            let address = "localhost:9092".to_owned();
            ClientError::Unsupported { api, address }.to_string()
        };
        assert!(told(ApiKey::ListObjects).ends_with("; only a server of Millstream does"));
        assert!(told(ApiKey::ConsumerGroupHeartbeat).ends_with("Apache Kafka has since 4.0"));
    }

    #[test]
    fn a_server_that_wants_tls_is_told_from_one_that_speaks_something_else() {
        let of = |first: [u8; 4]| {
            let announced = u32::from_be_bytes(first) as usize;
            let error = FrameError::FrameTooLarge { announced, max: 1 };
            ClientError::frame("localhost:9092", &error).to_string()
        };
        assert!(of([0x15, 3, 3, 0]).contains("it wants TLS"));
        assert!(of(*b"HTTP").contains("does not speak Kafka's protocol: the frame announces"));
    }
}
