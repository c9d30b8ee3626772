//! Threads for the network.

use std::io;
use std::task::Waker;

use millstream_client::ClientError;
use tokio::runtime::{Builder, EnterGuard, Runtime};
use tokio::sync::oneshot;

/// A thread for the network. Dropping it does not wait for a server: the thread ends in the
/// background.
pub struct Network(Option<Runtime>);

impl Network {
    /// Starts a thread of this name.
    ///
    /// # Errors
    /// When the operating system grants no thread.
    pub fn start(name: &str) -> io::Result<Network> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name(name)
            .enable_all()
            .build()?;
        Ok(Network(Some(runtime)))
    }

    /// Waits for a client's future.
    ///
    /// # Errors
    /// The future's error.
    pub fn wait<T, E>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.runtime().block_on(work)
    }

    /// Lets the caller start tasks on this thread, as long as the guard lives.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.runtime().enter()
    }

    /// Starts a task on the thread.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime().spawn(work);
    }

    fn runtime(&self) -> &Runtime {
        let Some(runtime) = &self.0 else {
            unreachable!("it is taken away by drop alone");
        };
        runtime
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A task on the network thread, which wakes a worker when it ends.
pub struct Work<T>(oneshot::Receiver<Result<T, ClientError>>);

impl<T: Send + 'static> Work<T> {
    pub fn start(
        network: &Network,
        waker: &Waker,
        work: impl Future<Output = Result<T, ClientError>> + Send + 'static,
    ) -> Work<T> {
        let (sender, receiver) = oneshot::channel();
        let waker = waker.clone();
        network.spawn(async move {
            // A sink that is gone does not want it.
            let _ = sender.send(work.await);
            waker.wake();
        });
        Work(receiver)
    }

    /// Returns the task's result; `None` while it runs.
    pub fn done(&mut self) -> Option<Result<T, ClientError>> {
        match self.0.try_recv() {
            Ok(result) => Some(result),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(ClientError::Closed)),
        }
    }
}

/// Returns the result of finished work, and clears it; `None` while the work runs.
pub fn poll<T: Send + 'static>(work: &mut Option<Work<T>>) -> Option<Result<T, ClientError>> {
    let done = work.as_mut()?.done();
    if done.is_some() {
        *work = None;
    }
    done
}
