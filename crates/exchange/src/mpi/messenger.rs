//! The thread that talks to MPI.

use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millstream_base::{Clock, SystemClock};

use super::outbox::Outbox;
use super::peer::Peer;
use super::world::{Kind, Transfer, World};
use crate::credit::MESSAGE_BYTES_MAX;
use crate::endpoint::Endpoint;
use crate::frame::FRAME_BYTES_MAX;
use crate::parcel::Parcel;

/// While this many bytes are being received, further messages wait.
const RECEIVING_BYTES_MAX: usize = 64 << 20;

/// The number of receives that the messenger begins before it turns to other work.
const RECEIVES_AT_ONCE_MAX: usize = 64;

/// The time for which an idle messenger polls before it sleeps. It is longer than the shortest sleep takes (the system
/// adds up to 50 µs to each): else two ranks that answer each other would send each other to sleep for ever.
const POLL_FOR: Duration = Duration::from_micros(200);

const SLEEP_MIN: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// The longest sleep while transfers are in flight: they progress only inside calls of MPI.
const SLEEP_MAX_UNDER_WAY: Duration = Duration::from_micros(100);

/// The divisor of the idle time that yields the sleep. So a message after a pause is late by only that fraction of the
/// pause, for the same reason.
const SLEEP_PART: u32 = 8;

/// The time that the other ranks have to leave after one has failed and left. Then the messenger aborts them.
const FAREWELL_MAX: Duration = Duration::from_secs(10);

pub struct Messenger {
    world: World,
    endpoint: Arc<Endpoint>,
    outbox: Arc<Outbox>,
    /// The peers by rank. The entry of this rank is not used.
    peers: Vec<Peer>,
    /// Ranks to which there is something to send.
    senders: Vec<u32>,
    /// Bytes of the receives that are under way.
    receiving_bytes: usize,
    /// Reused for their memory; empty between the steps.
    posted: Vec<(u32, Parcel)>,
    finished: Vec<Transfer>,
    clock: SystemClock,
    /// When the messenger first saw that this rank leaves after a failure.
    farewell_since: Option<Duration>,
}

impl Messenger {
    pub fn new(world: World, endpoint: Arc<Endpoint>, outbox: Arc<Outbox>) -> Messenger {
        let peers = (0..world.count()).map(|_| Peer::default()).collect();
        Messenger {
            world,
            endpoint,
            outbox,
            peers,
            senders: Vec::new(),
            receiving_bytes: 0,
            posted: Vec::new(),
            finished: Vec::new(),
            clock: SystemClock::default(),
            farewell_since: None,
        }
    }

    pub fn endpoint(&self) -> Arc<Endpoint> {
        self.endpoint.clone()
    }

    /// Carries everything, until all ranks have left.
    pub fn run(mut self) {
        let _bomb = Bomb;
        let mut idle_since = None;
        while !self.is_done() {
            let mut has_moved = self.take_posted();
            has_moved |= self.finish_transfers();
            has_moved |= self.start_sends();
            has_moved |= self.start_receives();
            self.check_farewell();
            if has_moved {
                idle_since = None;
                continue;
            }
            let now = self.clock.monotonic();
            let idle = now - *idle_since.get_or_insert(now);
            if idle < POLL_FOR {
                thread::yield_now();
            } else {
                self.outbox.sleep(sleep_after(idle, self.world.is_busy()));
            }
        }
        let Messenger { world, outbox, .. } = self;
        // Drop it first, so that MPI has ended before any thread believes so.
        drop(world);
        outbox.end();
    }

    /// Step 1: queues the parcels that the threads of this rank have posted.
    fn take_posted(&mut self) -> bool {
        let mut posted = std::mem::take(&mut self.posted);
        self.outbox.take(&mut posted);
        let has_moved = !posted.is_empty();
        for (to, parcel) in posted.drain(..) {
            if to == self.endpoint.rank {
                self.endpoint.deliver(to, parcel);
                continue;
            }
            let peer = &mut self.peers[to as usize];
            if !peer.has_more_to_send() {
                self.senders.push(to);
            }
            peer.enqueue(parcel);
        }
        self.posted = posted;
        has_moved
    }

    /// Step 2: releases or delivers the transfers that MPI has completed.
    fn finish_transfers(&mut self) -> bool {
        let mut finished = std::mem::take(&mut self.finished);
        self.world.finish(&mut finished);
        let has_moved = !finished.is_empty();
        for transfer in finished.drain(..) {
            match transfer {
                Transfer::Send { to, bytes } => {
                    drop(bytes);
                    self.peers[to as usize].sent();
                }
                Transfer::Receive {
                    from,
                    number,
                    kind,
                    bytes,
                    ..
                } => {
                    self.receiving_bytes -= bytes.len();
                    self.peers[from as usize].arrived(number, kind, bytes);
                    self.deliver(from);
                }
            }
        }
        self.finished = finished;
        has_moved
    }

    fn deliver(&mut self, from: u32) {
        let (peer, endpoint) = (&mut self.peers[from as usize], &self.endpoint);
        let mut has_left = false;
        let outcome = peer.unpack(|parcel| {
            has_left |= parcel == Parcel::Leave;
            endpoint.deliver(from, parcel);
        });
        peer.has_left |= has_left;
        if let Err(what) = outcome {
            endpoint.blame(from, &what.to_string());
        }
    }

    /// Step 3: sends queued parcels, as far as the bound on sends allows.
    fn start_sends(&mut self) -> bool {
        let mut has_moved = false;
        let (peers, world) = (&mut self.peers, &mut self.world);
        self.senders.retain(|to| {
            let peer = &mut peers[*to as usize];
            while let Some((frame, long)) = peer.next_to_send() {
                world.send(*to, Kind::Frame, frame);
                if let Some(bytes) = long {
                    world.send(*to, Kind::Long, bytes);
                }
                has_moved = true;
            }
            peer.has_more_to_send()
        });
        has_moved
    }

    /// Step 4: starts to receive messages from other ranks.
    fn start_receives(&mut self) -> bool {
        for count in 0..RECEIVES_AT_ONCE_MAX {
            if self.receiving_bytes >= RECEIVING_BYTES_MAX {
                return count > 0;
            }
            let Some(announced) = self.world.probe() else {
                return count > 0;
            };
            let (from, length) = (announced.from, announced.length);
            let bytes_max = match announced.kind {
                Some(Kind::Frame) => FRAME_BYTES_MAX,
                Some(Kind::Long) => MESSAGE_BYTES_MAX,
                None => 0,
            };
            if length > bytes_max {
                let what = format!("it sent {length} bytes at once, and it may send {bytes_max}");
                self.endpoint.blame(from, &what);
                announced.refuse();
                continue;
            }
            let number = self.peers[from as usize].expect();
            self.receiving_bytes += length;
            self.world.receive(announced, number);
        }
        true
    }

    /// Ends all processes if one of them does not leave though there was a failure.
    fn check_farewell(&mut self) {
        let fate = &self.endpoint.fate;
        if fate.failure().is_none() || !fate.is_leaving() {
            return;
        }
        let now = self.clock.monotonic();
        if now - *self.farewell_since.get_or_insert(now) > FAREWELL_MAX {
            self.world.abort();
        }
    }

    fn is_done(&self) -> bool {
        let own = self.endpoint.rank as usize;
        let mut others = self
            .peers
            .iter()
            .enumerate()
            .filter(|(rank, _)| *rank != own);
        self.endpoint.fate.is_leaving() && others.all(|(_, peer)| peer.is_done())
    }
}

/// Returns the time to sleep after this idle time.
fn sleep_after(idle: Duration, is_under_way: bool) -> Duration {
    let sleep_max = if is_under_way {
        SLEEP_MAX_UNDER_WAY
    } else {
        SLEEP_MAX
    };
    (idle / SLEEP_PART).clamp(SLEEP_MIN, sleep_max)
}

/// Ends the process if the messenger panics: no thread would send, receive or end any more.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if thread::panicking() {
            process::abort();
        }
    }
}
