//! Work on several requests together.
//!
//! An answer wakes its client, and a request to a flow wakes a worker. This costs more than the request itself if a processor sleeps or
//! works on something else. So the server reads all requests that have arrived, and then sends all answers: the processor that the first
//! one wakes is still awake for the others.

use std::future::poll_fn;
use std::mem;
use std::task::Poll;

/// Lets the other connections run first that are ready.
pub async fn others_first() {
    let mut has_waited = false;
    let wait = poll_fn(|context| match mem::replace(&mut has_waited, true) {
        true => Poll::Ready(()),
        false => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
    });
    wait.await;
}
