//! Channels of the exchange.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::thread::{self, Thread};

use anyhow::Result;
use bytes::Bytes;
use millstream_exchange::{ChannelId, Fingerprint, Ranks, Receiver, SendError, Sender};

use super::link::{self, Figure, Link, Plan};

const CHANNEL: ChannelId = ChannelId {
    source: 1,
    target: 2,
};
const CREDIT: u64 = 4 << 20;

/// Two ranks in this process. They sleep when there is nothing to do, or look again and again.
pub fn threads(plan: Plan, sleeps: bool) -> Result<Option<Vec<Figure>>> {
    let run = |ranks| thread::spawn(move || rank(&ranks, plan, sleeps));
    let threads: Vec<_> = Ranks::threads(2).into_iter().map(run).collect();
    let mut figures = None;
    for thread in threads {
        let of_rank = thread.join();
        let of_rank = of_rank.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        figures = figures.or(of_rank);
    }
    Ok(figures)
}

/// This process's rank, of two.
pub fn process(plan: Plan, sleeps: bool) -> Result<Option<Vec<Figure>>> {
    rank(&Ranks::from_environment()?, plan, sleeps)
}

fn rank(ranks: &Ranks, plan: Plan, sleeps: bool) -> Result<Option<Vec<Figure>>> {
    let other = 1 - ranks.rank();
    let mut link = Channels {
        sender: ranks.sender(other, CHANNEL, CREDIT),
        receiver: ranks.receiver(other, CHANNEL, CREDIT),
        alarm: sleeps.then(Alarm::new),
    };
    if let Some(alarm) = &link.alarm {
        link.sender.set_waker(alarm.clone().into());
        link.receiver.set_waker(alarm.clone().into());
    }
    ranks.agree(Fingerprint::default(), 0)?;
    let figures = link::run(link, ranks.rank() == 0, plan);
    ranks.leave()?;
    Ok(figures)
}

struct Channels {
    sender: Sender,
    receiver: Receiver,
    alarm: Option<Arc<Alarm>>,
}

impl Channels {
    fn wait(&self) {
        match &self.alarm {
            Some(alarm) => alarm.wait(),
            None => thread::yield_now(),
        }
    }
}

impl Link for Channels {
    fn send(&mut self, mut message: Bytes) {
        loop {
            match self.sender.send(message) {
                Err(SendError::Full(unsent)) => message = unsent,
                sent => return sent.expect("the other rank is there"),
            }
            self.wait();
        }
    }

    fn receive(&mut self) -> usize {
        loop {
            if let Some(message) = self.receiver.take().expect("the other rank is there") {
                return message.len();
            }
            self.wait();
        }
    }
}

/// Wakes the thread that made it.
struct Alarm {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Alarm {
    fn new() -> Arc<Alarm> {
        Arc::new(Alarm {
            thread: thread::current(),
            is_woken: AtomicBool::new(false),
        })
    }

    fn wait(&self) {
        while !self.is_woken.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}
