//! Chunk delivery through shared memory: a [thread](super::thread) for each subscription writes the
//! places of chunks in the pool to the consumer's ring, and pins their segments until the consumer
//! has finished them.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use millstream_base::ByteSize;
use millstream_share::{Doorbell, Publisher, layout};
use millstream_wire::native::{ReceiveResponse, SharedMemory};
use millstream_wire::{ResponseError, StrBytes};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::outlet::Outlet;
use super::thread::{PushThread, Source};
use crate::access::Access;
use crate::broker::Broker;
use crate::native::refused::Refused;
use crate::pins::Blocks;

/// The most descriptors of one source in flight.
const ENTRIES: u32 = 512;

/// Checks whether a client may share memory, and returns the reason if it may not.
pub type MayShare = Box<dyn Fn() -> Result<(), String> + Send>;

/// The terms that the client and the broker have agreed on.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// The layout that the client understands.
    pub layout: u32,
    /// The approximate number of bytes that are handed out at once.
    pub handed_bytes: usize,
    /// The approximate number of bytes that a source may have in flight.
    pub ahead_bytes: ByteSize,
}

/// A subscription of a consumer that maps the log's memory. It ends when this is dropped.
pub struct SharedSubscription {
    shared: Arc<Shared>,
}

/// The state that the thread and the connection share.
pub struct Shared {
    doorbell: Arc<Doorbell>,
    /// Whether the connection has ended.
    pub is_over: AtomicBool,
    /// The reason of the subscription's end; set by the thread.
    pub end: watch::Sender<Option<Refused>>,
    /// By source: whether chunks were pushed to a consumer that waits for an answer, not on a
    /// futex. Set by the thread, cleared by the request that answers.
    pub owed: Vec<watch::Sender<bool>>,
}

impl SharedSubscription {
    /// Begins to push. Takes the outlets on success.
    ///
    /// # Errors
    /// When no memory can be shared; the error gives the reason.
    pub fn begin(
        broker: &Arc<Broker>,
        access: &Access,
        may_share: MayShare,
        terms: Terms,
        outlets: &mut Vec<Outlet>,
    ) -> Result<(SharedSubscription, SharedMemory), String> {
        if terms.layout != layout::VERSION {
            return Err(format!(
                "the client knows layout {} of shared memory, and this server {}: use the same version of both",
                terms.layout,
                layout::VERSION
            ));
        }
        let no_memory = |error| format!("no memory to share: {error}");
        let mut identity = [0; 8];
        broker.random().fill(&mut identity).map_err(no_memory)?;
        let identity = u64::from_le_bytes(identity);
        let publisher =
            Publisher::create(outlets.len() as u32, ENTRIES, identity).map_err(no_memory)?;
        let (sender, begun) = std::sync::mpsc::sync_channel::<PushThread>(1);
        let spawned = std::thread::Builder::new()
            .name("millstream-push".to_owned())
            .spawn(move || begun.into_iter().for_each(PushThread::run));
        spawned.map_err(|error| format!("no thread to push with: {error}"))?;
        let pins = broker.pins();
        let holder = pins.add(publisher.doorbell());
        let holder = holder.ok_or("too many subscriptions share memory already")?;
        let shared = Arc::new(Shared {
            doorbell: publisher.doorbell(),
            is_over: AtomicBool::new(false),
            end: watch::Sender::new(None),
            owed: outlets.iter().map(|_| watch::Sender::new(false)).collect(),
        });
        let (pool_path, pool_bytes) = broker.log().pool().shared();
        let files = SharedMemory {
            pool_path: text(&pool_path),
            pool_bytes: ByteSize(pool_bytes as u64),
            rings_path: text(&publisher.path()),
            identity,
        };
        let sources = std::mem::take(outlets);
        let thread = PushThread {
            may_share,
            version: None,
            access: access.clone(),
            broker: Arc::clone(broker),
            holder: Arc::clone(&holder),
            waker: Waker::from(publisher.doorbell()),
            publisher,
            sources: sources.into_iter().map(Source::new).collect(),
            blocks: Blocks::new(&holder),
            terms,
            shared: Arc::clone(&shared),
        };
        // The thread waits for exactly this message.
        let _ = sender.send(thread);
        Ok((SharedSubscription { shared }, files))
    }

    /// Answers without chunks: when chunks were pushed to a `source` that waits for an answer, and
    /// `until` at the latest; or, without a source, at the end alone.
    pub fn wait(
        &self,
        source: Option<usize>,
        until: Instant,
        mut ending: watch::Receiver<bool>,
    ) -> Result<impl Future<Output = ReceiveResponse> + Send + 'static, Refused> {
        let owed = match source {
            None => None,
            Some(source) => Some(self.shared.owed.get(source).cloned().ok_or_else(|| {
                let count = self.shared.owed.len();
                let message = format!("there is no source {source}, but {count} from 0 on");
                Refused::new(ResponseError::InvalidRequest, message)
            })?),
        };
        let mut end = self.shared.end.subscribe();
        // The consumer may have made progress.
        self.shared.doorbell.ring();
        Ok(async move {
            let is_owed = async {
                match &owed {
                    // Without a bound the request of a quiet source would hold up the answers behind
                    // it for ever.
                    Some(owed) => {
                        let mut owed = owed.subscribe();
                        drop(timeout_at(until, owed.wait_for(|owed| *owed)).await);
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                ended = end.wait_for(Option::is_some) => {
                    let refused = ended.ok().and_then(|ended| ended.clone());
                    refused.map_or_else(ReceiveResponse::default, Refused::answer)
                }
                () = is_owed => {
                    if let Some(owed) = &owed {
                        owed.send_replace(false);
                    }
                    ReceiveResponse::default()
                }
                _ = ending.wait_for(|ends| *ends) => ReceiveResponse::default(),
            }
        })
    }
}

impl Drop for SharedSubscription {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.doorbell.ring();
    }
}

fn text(path: &Path) -> StrBytes {
    StrBytes::from_string(path.display().to_string())
}
