//! Calls: requests as items of a flow.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use crate::serving::error::CallError;
use crate::serving::pending::{Outcome, Slot};
use crate::serving::queue::Place;
use crate::serving::request::Request;
use crate::serving::response::Response;

/// A [`Request`] that waits for its response: an item of a flow. A clone is another handle of the same call. When the last
/// one is dropped without a reply, the caller gets [`CallError::Dropped`] at once.
///
/// It lives in the process of its caller, so it cannot be stored or sent to another rank.
#[derive(Clone)]
pub struct Call {
    shared: Arc<Shared>,
}

struct Shared {
    request: Request,
    slot: Arc<Slot>,
    /// The call's share of the queue's bounds.
    place: Place,
}

impl Call {
    pub(super) fn new(request: Request, slot: Arc<Slot>, place: Place) -> Call {
        let shared = Shared {
            request,
            slot,
            place,
        };
        Call {
            shared: Arc::new(shared),
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

    /// Returns whether a reply would be ignored: the caller has gone, or has an outcome. An operator can spare work then.
    pub fn is_settled(&self) -> bool {
        self.shared.slot.is_settled()
    }

    pub(super) fn settle(&self, outcome: Outcome) {
        self.shared.slot.settle(outcome);
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
        let flow = self.place.flow().to_owned();
        self.slot.settle(Err(CallError::Dropped { flow }));
    }
}

/// As the request: without its content.
impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.request(), f)
    }
}

/// The reason for which a call cannot leave its process.
const STAYS: &str =
    "a request cannot be stored, or sent to another rank: take what you need out of it";

/// Always fails. Operators by key accept items that ranks can exchange, and a flow with requests runs on one rank.
impl Serialize for Call {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(ser::Error::custom(STAYS))
    }
}

/// Always fails, as [`Serialize`] does.
impl<'de> Deserialize<'de> for Call {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(de::Error::custom(STAYS))
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
