//! Calls: requests as items of a flow.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use crate::error::BoxError;
use crate::ranks::references::{self, Reference, Referent};
use crate::serving::encoded::{EncodedRequest, decode_response, encode_response};
use crate::serving::error::CallError;
use crate::serving::pending::{Outcome, Slot};
use crate::serving::queue::Place;
use crate::serving::request::Request;
use crate::serving::response::Response;

/// A [`Request`] that waits for its response: an item of a flow. A clone is another handle of the same call. When the last
/// one is dropped without a reply, the caller gets [`CallError::Dropped`] at once.
///
/// Operators by key send it to the rank that owns the key, and the reply comes back to the rank of the caller. It cannot be
/// stored.
#[derive(Clone)]
pub struct Call {
    shared: Arc<Shared>,
}

struct Shared {
    request: Request,
    caller: Caller,
}

/// The way back to the caller.
enum Caller {
    /// The caller waits on this rank.
    Here {
        slot: Arc<Slot>,
        /// The call's share of the queue's bounds.
        place: Place,
    },
    /// The call has come from another rank.
    Elsewhere {
        /// To the call on that rank.
        reference: Reference,
        /// The time at which the call is too late, by this rank's clock.
        deadline: Duration,
        is_answered: AtomicBool,
    },
}

impl Call {
    pub(super) fn new(request: Request, slot: Arc<Slot>, place: Place) -> Call {
        Call::with_caller(request, Caller::Here { slot, place })
    }

    fn with_caller(request: Request, caller: Caller) -> Call {
        Call {
            shared: Arc::new(Shared { request, caller }),
        }
    }

    /// Returns the item that answers this call, for the sink of the flow. Of several replies to one call, the first counts.
    pub fn reply(&self, response: Response) -> Reply {
        Reply {
            call: self.clone(),
            response,
        }
    }

    /// Returns the request.
    pub fn request(&self) -> &Request {
        &self.shared.request
    }

    /// Returns whether a reply would be ignored: the caller has gone, or has an outcome. An operator can spare work then. Of
    /// a call from another rank, only a reply and the end of its time are known here.
    pub fn is_settled(&self) -> bool {
        self.shared.is_settled()
    }

    /// Ends a call of this rank without a response.
    pub(super) fn end(&self, error: CallError) {
        self.shared.settle(Err(error));
    }

    /// Sends the response to the caller.
    pub(super) fn answer(&self, response: &Response) {
        match &self.shared.caller {
            Caller::Here { slot, .. } => slot.settle(Ok(response.clone())),
            Caller::Elsewhere { .. } => self.shared.send(&encode_response(response)),
        }
    }
}

impl Shared {
    /// Settles a call whose caller waits on this rank.
    fn settle(&self, outcome: Outcome) {
        if let Caller::Here { slot, .. } = &self.caller {
            slot.settle(outcome);
        }
    }

    /// Sends an encoded response to the rank that the call has come from, unless it has one.
    fn send(&self, response: &[u8]) {
        if let Caller::Elsewhere {
            reference,
            is_answered,
            ..
        } = &self.caller
            && !is_answered.swap(true, Ordering::Relaxed)
        {
            reference.send(response);
        }
    }

    /// Returns the time that is left for the response.
    fn time_left(&self) -> Duration {
        let (deadline, clock) = match &self.caller {
            Caller::Here { place, .. } => (place.deadline(), place.clock()),
            Caller::Elsewhere {
                reference,
                deadline,
                ..
            } => (*deadline, reference.clock()),
        };
        deadline.saturating_sub(clock.monotonic())
    }
}

/// A call that has gone to another rank gets its response from there.
impl Referent for Shared {
    fn receive(&self, message: &[u8]) -> Result<(), BoxError> {
        match &self.caller {
            Caller::Here { .. } => self.settle(Ok(decode_response(message)?)),
            Caller::Elsewhere { .. } => self.send(message),
        }
        Ok(())
    }

    fn is_settled(&self) -> bool {
        match &self.caller {
            Caller::Here { slot, .. } => slot.is_settled(),
            Caller::Elsewhere { is_answered, .. } => {
                is_answered.load(Ordering::Relaxed) || self.time_left().is_zero()
            }
        }
    }
}

impl Deref for Call {
    type Target = Request;

    fn deref(&self) -> &Request {
        self.request()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Caller::Here { slot, place } = &self.caller {
            let flow = place.flow().to_owned();
            slot.settle(Err(CallError::Dropped { flow }));
        }
    }
}

/// As the request: without its content.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.request(), f)
    }
}

/// A call on its way to another rank.
#[derive(Serialize, Deserialize)]
struct Sent<'a> {
    /// The call's number on the rank that sends it.
    number: u64,
    /// The time that is left for the response.
    time_left: Duration,
    #[serde(borrow)]
    request: EncodedRequest<'a>,
}

/// The reason for which a call has no encoded form.
const STAYS: &str = "a request cannot be stored: take what you need out of it";

/// Fails unless an operator sends the call to another rank.
impl Serialize for Call {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value = Arc::clone(&self.shared) as Arc<dyn Referent>;
        let number = references::lend(value).ok_or_else(|| ser::Error::custom(STAYS))?;
        let sent = Sent {
            number,
            time_left: self.shared.time_left(),
            request: EncodedRequest::of(self.request()),
        };
        sent.serialize(serializer)
    }
}

/// Fails unless the call comes from another rank, as [`Serialize`] does.
impl<'de> Deserialize<'de> for Call {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Sent {
            number,
            time_left,
            request,
        } = Sent::deserialize(deserializer)?;
        let reference = references::refer(number).ok_or_else(|| de::Error::custom(STAYS))?;
        let now = reference.clock().monotonic();
        let caller = Caller::Elsewhere {
            deadline: now.saturating_add(time_left),
            reference,
            is_answered: AtomicBool::new(false),
        };
        Ok(Call::with_caller(request.decode(), caller))
    }
}

/// A response on its way to the caller: an item for the sink [`Respond`](super::Respond).
#[derive(Debug, Clone)]
pub struct Reply {
    call: Call,
    response: Response,
}

impl Reply {
    /// Returns the call that it answers.
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Returns the response.
    pub fn response(&self) -> &Response {
        &self.response
    }
}
