//! The entry of a kind of request: its rights, its refusal, the errors in its answers, the bound of its answers, and its
//! handler.

use std::sync::Arc;

use millstream_wire::{Question, Response, ResponseError, StrBytes};

use super::bounds::{Bound, BoundContext};
use super::rights::{Check, Checked};
use crate::access::Access;
use crate::broker::Broker;
use crate::client::Client;
use crate::reply::Reply;
use crate::security::Traffic;

/// A request that the broker handles. The [table of requests](millstream_wire::apis) and this are all that a kind needs.
pub trait Handle: Question + Send + 'static {
    /// The checks of the client's rights. A kind without checks is open to every client.
    const CHECKS: &'static [Check];

    /// The direction in which records go with the request, if they do.
    const TRAFFIC: Option<Traffic> = None;

    /// Refuses the request if the client lacks a right that the whole request needs; see [`Check::Whole`].
    fn check(&self, _client: &Client, _version: i16) -> Checked {
        unreachable!("{:?} as a whole needs no right", Self::API)
    }

    /// Takes out the items that the client may not have carried out, and returns the answers that refuse them; see
    /// [`Check::Items`].
    fn withhold(&mut self, _client: &mut Client, _version: i16) -> Vec<Self::Answer> {
        unreachable!("{:?} has no items to check", Self::API)
    }

    /// Merges the answer to refused items with the answer to the rest.
    fn merge(_answer: &mut Self::Answer, _refused: Self::Answer) {
        unreachable!("{:?} has no items to check", Self::API)
    }

    /// Takes out the items whose streams must stay unknown to the client, and returns the change that puts their answers
    /// in place; see [`Check::Ids`].
    fn withhold_unknown(&mut self, _client: &Client) -> Option<Edit<Self>> {
        unreachable!("{:?} names no streams by their ids", Self::API)
    }

    /// Returns the change that hides resources in the answer; see [`Check::Listed`].
    fn hide(&self, _access: &Access) -> Option<Edit<Self>> {
        unreachable!("the answer to {:?} lists nothing", Self::API)
    }

    /// Returns the change that adds the permitted operations to the answer; see [`Check::Operations`].
    fn operations(&self, _access: &Access) -> Option<Edit<Self>> {
        unreachable!("the answer to {:?} has no operations", Self::API)
    }

    /// Returns whether the client waits for an answer.
    fn wants_answer(&self) -> bool {
        true
    }

    /// Returns the answer that refuses the whole request. The error stands in the answer's field for the whole request; an
    /// answer without this field has the error for each topic, partition, group or other item that the request names. The
    /// message stands in every field for one.
    fn refuse(&self, refusal: &Refusal) -> Self::Answer;

    /// Returns whether an answer reports an error, for the whole request or for a part of it.
    fn has_error(answer: &Self::Answer) -> bool;

    /// Makes empty error messages in an answer null. Kafka's answers have no message without an error, while many of the
    /// generated answers begin with an empty one.
    fn clear_messages(_answer: &mut Self::Answer) {}

    /// Returns the bound of the answer.
    fn bound(&self, context: &mut BoundContext<'_>) -> Bound;

    /// Writes into the answer for how many milliseconds the client is held; returns `false` where the answer has no place
    /// for it.
    fn tell_throttle(_answer: &mut Self::Answer, _wait_ms: i32) -> bool {
        false
    }

    /// Carries out the request. When this returns, its changes are made, or under way in their order.
    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply;

    /// Returns the answer that refuses the whole request with this error.
    fn refused(&self, version: i16, error: ResponseError) -> Self::Answer {
        self.refuse(&Refusal::new(version, error, None))
    }

    /// Returns the answer that refuses the whole request with this error, and says why.
    fn refused_since(&self, version: i16, error: ResponseError, why: &str) -> Self::Answer {
        self.refuse(&Refusal::new(version, error, Some(why)))
    }
}

/// A change of the answer to a request.
pub type Edit<R> = Box<dyn FnOnce(&mut <R as Question>::Answer) + Send>;

/// Changes the answer in a reply to this kind of request, when it is ready.
pub fn edit<R: Handle>(
    reply: Reply,
    change: impl FnOnce(&mut R::Answer) + Send + 'static,
) -> Reply {
    reply.map(move |response: &mut Response| {
        if let Some(answer) = R::answer_mut(response) {
            change(answer);
        }
    })
}

/// The error of an answer to a request of this version.
pub struct Refusal {
    pub version: i16,
    pub code: i16,
    pub message: Option<StrBytes>,
}

impl Refusal {
    pub fn new(version: i16, error: ResponseError, message: Option<&str>) -> Refusal {
        Refusal {
            version,
            code: error.code(),
            message: message.map(|message| StrBytes::from_string(message.to_owned())),
        }
    }
}

/// Returns one result for each item.
pub fn each<T, R>(items: &[T], result: impl Fn(&T) -> R) -> Vec<R> {
    items.iter().map(result).collect()
}

/// Declares the refusal of a kind whose answer has one error code, and no message.
macro_rules! refuse_with_code {
    () => {
        fn refuse(&self, refusal: &Refusal) -> Self::Answer {
            let mut answer = <Self as millstream_wire::Question>::Answer::default();
            answer.error_code = refusal.code;
            answer
        }
    };
}

/// Declares the refusal of a kind whose answer has one error code, and a message.
macro_rules! refuse_with_message {
    () => {
        fn refuse(&self, refusal: &Refusal) -> Self::Answer {
            let mut answer = <Self as millstream_wire::Question>::Answer::default();
            answer.error_code = refusal.code;
            answer.error_message = refusal.message.clone();
            answer
        }
    };
}

/// Declares the error codes of an answer: each is a field, in the parts of a list if the list's name stands before it.
macro_rules! errors {
    ($($($path:ident).+),+) => {
        fn has_error(answer: &Self::Answer) -> bool {
            $($crate::requests::handle::any_error!(answer, $($path).+))||+
        }
    };
}

/// Evaluates to whether a code is an error, or that of one of several parts.
macro_rules! any_error {
    ($whole:expr, $code:ident) => {
        $whole.$code != 0
    };
    ($whole:expr, $parts:ident.$($rest:ident).+) => {
        $whole.$parts.iter().any(|part| $crate::requests::handle::any_error!(part, $($rest).+))
    };
}

/// Declares the error messages of an answer: each is a field, as with [`errors`].
macro_rules! messages {
    ($($($path:ident).+),+) => {
        fn clear_messages(answer: &mut Self::Answer) {
            $($crate::requests::handle::clear_message!(answer, $($path).+);)+
        }
    };
}

/// Makes a message null if it is empty, in each part of a list.
macro_rules! clear_message {
    ($whole:expr, $message:ident) => {
        if $whole.$message.as_deref() == Some("") {
            $whole.$message = None;
        }
    };
    ($whole:expr, $parts:ident.$($rest:ident).+) => {
        for part in &mut $whole.$parts {
            $crate::requests::handle::clear_message!(part, $($rest).+);
        }
    };
}

/// Declares the place in the answer that says for how many milliseconds the client is held.
macro_rules! tell_throttle {
    () => {
        fn tell_throttle(answer: &mut Self::Answer, wait_ms: i32) -> bool {
            answer.throttle_time_ms = wait_ms as _;
            true
        }
    };
}

pub(super) use {
    any_error, clear_message, errors, messages, refuse_with_code, refuse_with_message,
    tell_throttle,
};
