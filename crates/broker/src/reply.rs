//! Answers: at once, later, or never.

use std::future::Future;
use std::pin::Pin;

use millstream_wire::Response;

use crate::answer_memory::AnswerRoom;

/// The future of a reply.
pub type Answer = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// The outcome of a request.
pub enum Reply {
    /// The answer is ready.
    Now(Box<Response>),
    /// The answer is ready, and has the memory that was taken before it was built.
    Counted(Box<Response>, AnswerRoom),
    /// The answer comes later. The request's changes are made already, so later requests of the
    /// connection come after it.
    Later(Answer),
    /// The answer comes later, and so do the changes: no later request of the connection begins
    /// before.
    Alone(Answer),
    /// The request wants no answer.
    Nothing,
    /// The connection is closed: there is no answer that the other side could, or should, get.
    Close(String),
}

impl Reply {
    /// Returns a reply that answers when `answer` is done.
    pub fn later<R: Into<Response>>(answer: impl Future<Output = R> + Send + 'static) -> Reply {
        Reply::Later(Box::pin(async move { Reply::from(answer.await) }))
    }

    /// Returns a reply that answers when `answer` is done, which takes the memory of the answer
    /// before it builds it.
    pub fn counted<R: Into<Response>>(
        answer: impl Future<Output = (R, AnswerRoom)> + Send + 'static,
    ) -> Reply {
        Reply::Later(Box::pin(async move {
            let (response, room) = answer.await;
            Reply::Counted(Box::new(response.into()), room)
        }))
    }

    /// Returns a reply that answers when `work`, which may block, is done. Later requests of the
    /// connection come after it.
    pub fn blocking<R: Into<Response>>(work: impl FnOnce() -> R + Send + 'static) -> Reply {
        Reply::Alone(Box::pin(async move {
            match tokio::task::spawn_blocking(move || work().into()).await {
                Ok(response) => Reply::from(response),
                // The work panicked, or the runtime is going down.
                Err(error) => Reply::Close(format!("the request was not carried out: {error}")),
            }
        }))
    }

    /// Changes the answer, if there is one, when it is ready.
    pub fn map(self, change: impl FnOnce(&mut Response) + Send + 'static) -> Reply {
        match self {
            Reply::Now(mut response) => {
                change(&mut response);
                Reply::Now(response)
            }
            Reply::Counted(mut response, room) => {
                change(&mut response);
                Reply::Counted(response, room)
            }
            Reply::Later(answer) => Reply::Later(Box::pin(async move { answer.await.map(change) })),
            Reply::Alone(answer) => Reply::Alone(Box::pin(async move { answer.await.map(change) })),
            reply @ (Reply::Nothing | Reply::Close(_)) => reply,
        }
    }
}

impl<R: Into<Response>> From<R> for Reply {
    fn from(response: R) -> Reply {
        Reply::Now(Box::new(response.into()))
    }
}
