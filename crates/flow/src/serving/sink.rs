//! The sink that sends responses.

use std::task::Waker;

use crate::error::BoxError;
use crate::serving::call::Reply;
use crate::sinks::sink::Sink;

/// Sends responses to their callers. Checkpoints hold nothing of it: a response is sent as soon as the flow has made it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Respond;

impl Sink<Reply> for Respond {
    fn push(&mut self, replies: &[Reply], _: &Waker) -> Result<usize, BoxError> {
        for reply in replies {
            reply.call().answer(reply.response());
        }
        Ok(replies.len())
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }
}
