//! Reports the progress of a flow as a group of a server.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use millstream_base::Offset;
use millstream_client::{Client, ClientConfig, ClientError, TopicPartition};
use millstream_flow::{BoxError, Running};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::network::Network;

/// The interval at which the changing positions of a flow are committed.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);

/// The interval at which the flow is checked for a new checkpoint, or its end.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Shows a flow's positions in the streams that it reads: as the offsets of a group of its name, which
/// `millstream group list` lists with the kind `flow`, and which other clients see as a group without members.
///
/// The positions are committed at checkpoints, every few seconds, and at the end of the flow. They only show its progress: a
/// flow resumes from its checkpoints. On several ranks each commits the positions of its own sources. The flow leaves a
/// group of this name that consumers use alone, with a warning.
pub struct FlowGroup {
    /// Dropping it commits the remaining positions.
    _stop: oneshot::Sender<()>,
    done: oneshot::Receiver<()>,
    network: Network,
}

impl FlowGroup {
    /// Starts to report a flow's progress at a server, which has the streams that the flow reads. It does not keep the
    /// flow alive.
    ///
    /// # Errors
    /// When the thread for the network cannot be started.
    pub fn start(running: &Arc<Running>, server: &ClientConfig) -> Result<FlowGroup, BoxError> {
        let network = Network::start("millstream-flow-group")?;
        let (stop, stopped) = oneshot::channel();
        let (ended, done) = oneshot::channel();
        let committer = Committer {
            client: Client::new(server.clone()),
            group: running.name().to_owned(),
            running: Arc::downgrade(running),
            positions: BTreeMap::new(),
            committed: BTreeMap::new(),
            has_warned: false,
        };
        network.spawn(async move {
            committer.work(stopped).await;
            let _ = ended.send(());
        });
        Ok(FlowGroup {
            _stop: stop,
            done,
            network,
        })
    }

    /// Commits the flow's present positions, and ends.
    pub fn finish(self) {
        let FlowGroup {
            _stop,
            done,
            network,
        } = self;
        drop(_stop);
        let _ = network.wait(done);
    }
}

struct Committer {
    client: Client,
    /// The name of the flow.
    group: String,
    running: Weak<Running>,
    /// The positions last seen: the flow may be gone at the time of the commit.
    positions: BTreeMap<TopicPartition, Offset>,
    committed: BTreeMap<TopicPartition, Offset>,
    has_warned: bool,
}

impl Committer {
    async fn work(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut checkpoints = 0;
        let mut commit_at = Instant::now();
        loop {
            let is_stopped = tokio::select! {
                _ = &mut stopped => true,
                () = sleep(LOOK_INTERVAL) => false,
            };
            let is_over = self.look(&mut checkpoints, &mut commit_at) || is_stopped;
            if is_over || Instant::now() >= commit_at {
                self.commit().await;
                commit_at = Instant::now() + COMMIT_INTERVAL;
            }
            if is_over {
                return;
            }
        }
    }

    /// Takes note of how far the flow is; a new checkpoint is a reason to commit at once. Returns whether the flow is
    /// over.
    fn look(&mut self, checkpoints: &mut u64, commit_at: &mut Instant) -> bool {
        let Some(running) = self.running.upgrade() else {
            return true;
        };
        // Checked first: nothing changes after the end.
        let is_finished = running.is_finished();
        let positions = running.positions().into_iter().filter_map(|position| {
            let place = TopicPartition {
                topic: position.stream.into(),
                partition: i32::try_from(position.partition).ok()?,
            };
            Some((place, Offset(position.next)))
        });
        self.positions = positions.collect();
        let kept = running.checkpoints().map_or(0, |counts| counts.kept);
        if kept > *checkpoints {
            *checkpoints = kept;
            *commit_at = Instant::now();
        }
        is_finished
    }

    async fn commit(&mut self) {
        if self.positions == self.committed {
            return;
        }
        let positions = &self.positions;
        match self.client.set_flow_offsets(&self.group, positions).await {
            Ok(()) => {
                self.committed.clone_from(&self.positions);
                self.has_warned = false;
            }
            Err(error) => self.warn(&error),
        }
    }

    /// It is tried again as often as before; the flow does not depend on it.
    fn warn(&mut self, error: &ClientError) {
        if !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(
                "`group list` does not show how far flow {} is: {error}",
                self.group
            );
        }
    }
}
