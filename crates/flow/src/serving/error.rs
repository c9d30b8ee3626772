//! The reasons for which a call has no response.

use std::time::Duration;

use millstream_base::ByteSize;

/// The reason for which a call has no response. The texts show neither content of requests nor messages of user code, since
/// clients read them.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The queue is full. Over HTTP: 503.
    #[error(
        "as many requests to the flow {flow:?} wait as it takes ({requests}, with {}): try again later",
        ByteSize(*.bytes as u64)
    )]
    Full {
        /// The flow.
        flow: String,
        /// The requests that wait.
        requests: usize,
        /// Their memory, in bytes.
        bytes: usize,
    },
    /// The request would be answered later than the flow's objective allows. Over HTTP: 503.
    #[error(
        "the flow {flow:?} has more requests than it can answer in time: try again in {} s",
        whole_seconds(.retry_after)
    )]
    Overloaded {
        /// The flow.
        flow: String,
        /// The time after which it is worth another try.
        retry_after: Duration,
    },
    /// The body is larger than the flow takes. Over HTTP: 413.
    #[error("the body is too large: requests to the flow {flow:?} may have {}", ByteSize(*.bytes_max as u64))]
    TooLarge {
        /// The flow.
        flow: String,
        /// The most bytes of a body.
        bytes_max: usize,
    },
    /// The flow has not answered in time. Over HTTP: 504.
    #[error("the flow {flow:?} has not answered within {} s", .time_max.as_secs_f64())]
    Late {
        /// The flow.
        flow: String,
        /// The time that it had.
        time_max: Duration,
    },
    /// The flow has dropped the call. Over HTTP: 500.
    #[error(
        "the flow {flow:?} has dropped this request without a response: a filter left it out, or an operator failed for it; \
         the log and the dead letters of the flow say more"
    )]
    Dropped {
        /// The flow.
        flow: String,
    },
    /// The flow has not begun. Over HTTP: 503.
    #[error("the flow {flow:?} has not begun: try again later")]
    NotBegun {
        /// The flow.
        flow: String,
    },
    /// The flow was stopped, or has ended. Over HTTP: 503.
    #[error("the flow {flow:?} has ended")]
    Ended {
        /// The flow.
        flow: String,
    },
    /// The flow has failed. Over HTTP: 503.
    #[error("the flow {flow:?} has failed, since {class}: the log of the node says more")]
    Failed {
        /// The flow.
        flow: String,
        /// The class of the flow's error: [`FlowError::class`](crate::FlowError::class).
        class: &'static str,
    },
}

millstream_base::debug_as_display!(CallError);

/// Returns a time in seconds, rounded up.
pub fn whole_seconds(time: &Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}
