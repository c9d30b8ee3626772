//! One rank's endpoint: its channels, and the processing of arriving parcels.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::{Mutex, RwLock};

use crate::credit::Credit;
use crate::error::{ExchangeError, Failure};
use crate::fate::Fate;
use crate::fingerprint::{Fingerprint, Hello, find_difference};
use crate::gathering::Gathering;
use crate::parcel::{ChannelId, Parcel, Transport};
use crate::receiver::Inlet;
use crate::sender::Outlet;

/// Channels by the other rank.
type Channels<End> = RwLock<HashMap<(u32, ChannelId), Arc<End>>>;

pub struct Endpoint {
    pub rank: u32,
    pub count: u32,
    pub fate: Arc<Fate>,
    transport: Arc<dyn Transport>,
    gathering: Gathering,
    outlets: Channels<Outlet>,
    inlets: Channels<Inlet>,
    /// Wakers to wake at a failure, beside the channels' own.
    watchers: Mutex<Vec<Waker>>,
}

impl Endpoint {
    pub fn new(rank: u32, count: u32, transport: Arc<dyn Transport>) -> Endpoint {
        Endpoint {
            rank,
            count,
            fate: Arc::default(),
            transport,
            gathering: Gathering::new(count),
            outlets: Channels::default(),
            inlets: Channels::default(),
            watchers: Mutex::default(),
        }
    }

    /// # Panics
    /// When there is no such rank, or there is an outlet for this channel already.
    pub fn outlet(&self, to: u32, channel: ChannelId, credit: u64) -> Arc<Outlet> {
        let (transport, fate) = (self.transport.clone(), self.fate.clone());
        let outlet = Outlet::new(to, channel, Credit::new(credit), transport, fate);
        self.add(&self.outlets, to, channel, outlet)
    }

    /// # Panics
    /// When there is no such rank, or there is an inlet for this channel already.
    pub fn inlet(&self, from: u32, channel: ChannelId, credit: u64) -> Arc<Inlet> {
        let (transport, fate) = (self.transport.clone(), self.fate.clone());
        let inlet = Inlet::new(from, channel, Credit::new(credit), transport, fate);
        self.add(&self.inlets, from, channel, inlet)
    }

    fn add<End>(&self, ends: &Channels<End>, peer: u32, channel: ChannelId, end: End) -> Arc<End> {
        assert!(
            peer < self.count,
            "there are {} ranks, and none is {peer}",
            self.count
        );
        match ends.write().entry((peer, channel)) {
            Entry::Occupied(_) => panic!("the channel {channel} with rank {peer} is there already"),
            Entry::Vacant(place) => place.insert(Arc::new(end)).clone(),
        }
    }

    /// All ranks' parts together make the seed.
    pub fn agree(&self, fingerprint: Fingerprint, random: u64) -> Result<u64, ExchangeError> {
        let hello = Hello::new(self.count, random, fingerprint);
        self.post_to_others(&Parcel::Hello(hello.clone()));
        self.deliver(self.rank, Parcel::Hello(hello));
        let hellos = self
            .gathering
            .all_hellos(&self.fate)?
            .unwrap_or_else(|rank| {
                self.fail(rank, "it left before it announced its program");
                Vec::new()
            });
        if let Some((rank, what)) = find_difference(hellos.iter()) {
            // The other ranks reach the same result by themselves.
            self.learn(Failure::new(rank, &what));
        }
        self.fate.check()?;
        Ok(hellos.iter().fold(0, |seed, hello| seed ^ hello.random))
    }

    /// Ends all ranks, unless one has failed before.
    pub fn fail(&self, rank: u32, message: &str) {
        if self.fate.failure().is_some() {
            return;
        }
        let failure = Failure::new(rank, message);
        // Inform the others first: a thread that learns of the failure here may make this rank
        // leave at once, after which it sends nothing.
        self.post_to_others(&Parcel::Failure(failure.clone()));
        self.learn(failure);
    }

    /// Records a failure, and wakes all waiters of this rank if it is the first.
    fn learn(&self, failure: Failure) {
        if self.fate.fail(failure) {
            self.gathering.disturb();
            self.all_wakers().iter().for_each(Waker::wake_by_ref);
        }
    }

    fn all_wakers(&self) -> Vec<Waker> {
        let mut wakers = self.watchers.lock().clone();
        wakers.extend(
            self.outlets
                .read()
                .values()
                .filter_map(|outlet| outlet.waker()),
        );
        wakers.extend(
            self.inlets
                .read()
                .values()
                .filter_map(|inlet| inlet.waker()),
        );
        wakers
    }

    pub fn watch(&self, waker: Waker) {
        self.watchers.lock().push(waker.clone());
        if self.fate.failure().is_some() {
            waker.wake();
        }
    }

    /// Announces that this rank leaves, unless it has done so.
    pub fn begin_to_leave(&self) {
        if self.fate.leave() {
            self.gathering.leave(self.rank);
            self.post_to_others(&Parcel::Leave);
        }
    }

    /// Waits until all ranks have left or one has failed, and the transport has ended.
    pub fn leave(&self) -> Result<(), ExchangeError> {
        self.begin_to_leave();
        let outcome = self.gathering.all_left(&self.fate);
        self.transport.finish();
        outcome
    }

    fn post_to_others(&self, parcel: &Parcel) {
        for to in (0..self.count).filter(|rank| *rank != self.rank) {
            self.transport.post(to, parcel.clone());
        }
    }

    /// Processes a parcel from a rank. A protocol violation counts as a failure of the sending rank
    /// and aborts all ranks.
    pub fn deliver(&self, from: u32, parcel: Parcel) {
        if let Err(what) = self.accept(from, parcel) {
            self.blame(from, &what);
        }
    }

    /// Aborts all ranks because of another rank's violation.
    pub fn blame(&self, other: u32, what: &str) {
        self.fail(other, &format!("{what} (found by rank {})", self.rank));
    }

    fn accept(&self, from: u32, parcel: Parcel) -> Result<(), String> {
        match parcel {
            Parcel::Message { channel, bytes } => find(&self.inlets, from, channel)?.deliver(bytes),
            Parcel::Credit { channel, bytes } => {
                find(&self.outlets, from, channel)?.give_back(bytes)
            }
            Parcel::Hello(hello) => self.gathering.say_hello(from, hello),
            Parcel::Failure(failure) if failure.rank >= self.count => Err(format!(
                "it reported a failure of rank {}, which does not exist",
                failure.rank
            )),
            Parcel::Failure(failure) => {
                self.learn(failure);
                Ok(())
            }
            Parcel::Leave => {
                self.gathering.leave(from);
                Ok(())
            }
        }
    }

    /// Messages and bytes of every channel that sends, and of every one that receives.
    pub fn counts(&self) -> [Vec<Counts>; 2] {
        let sent = self.outlets.read();
        let received = self.inlets.read();
        [
            sent.iter()
                .map(|(channel, outlet)| (*channel, outlet.counts()))
                .collect(),
            received
                .iter()
                .map(|(channel, inlet)| (*channel, inlet.counts()))
                .collect(),
        ]
    }
}

/// The other rank and the channel; messages and bytes.
pub type Counts = ((u32, ChannelId), (u64, u64));

fn find<End>(ends: &Channels<End>, peer: u32, channel: ChannelId) -> Result<Arc<End>, String> {
    let found = ends.read().get(&(peer, channel)).cloned();
    found.ok_or_else(|| format!("it used the channel {channel}, which does not exist"))
}

#[cfg(test)]
mod tests;
