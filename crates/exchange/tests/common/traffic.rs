//! Random traffic between all ranks, checked against the messages that each sender must have sent.

use std::collections::VecDeque;
use std::sync::Arc;

use millstream_exchange::{ChannelId, ExchangeError, Message, Ranks, Receiver, SendError, Sender};

use super::alarm::Alarm;

/// The traffic between any two ranks, and from each to itself.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub channels: u32,
    /// On each channel.
    pub messages: u64,
    /// The size of most messages.
    pub bytes_max: usize,
    /// The size of few messages; more than the credit if you like.
    pub bytes_max_rare: usize,
    pub credit: u64,
    /// The most messages that a receiver holds at a time.
    pub held_max: usize,
    /// Stops in the middle after this number of turns.
    pub turns_max: u64,
    pub seed: u64,
}

impl Plan {
    fn channel(self, index: u32) -> ChannelId {
        ChannelId {
            source: index,
            target: 1000 + index,
        }
    }

    /// The random numbers that both ends of a channel have in common.
    fn rng(self, from: u32, to: u32, index: u32) -> fastrand::Rng {
        let place = u64::from(from) << 40 | u64::from(to) << 16 | u64::from(index);
        let mut rng = fastrand::Rng::with_seed(self.seed ^ place);
        // Neighbouring seeds begin alike.
        rng.u64(..);
        rng.fork()
    }

    fn next_message(self, rng: &mut fastrand::Rng) -> Vec<u8> {
        let bytes_max = if rng.u8(..) < 4 {
            self.bytes_max_rare
        } else {
            self.bytes_max
        };
        let first = rng.u8(..);
        (0..rng.usize(..=bytes_max))
            .map(|index| first.wrapping_add(index as u8))
            .collect()
    }
}

/// Observes the messages sent on each channel, and those that its receiver has dropped.
pub trait Observer {
    fn sent(&self, _from: u32, _to: u32, _index: u32, _bytes: usize) {}
    fn dropped(&self, _from: u32, _to: u32, _index: u32, _bytes: usize) {}
}

impl Observer for () {}

struct Outgoing {
    index: u32,
    sender: Sender,
    rng: fastrand::Rng,
    left: u64,
    next: Option<Vec<u8>>,
}

struct Incoming {
    index: u32,
    receiver: Receiver,
    rng: fastrand::Rng,
    left: u64,
}

/// The traffic of one rank, which sends and receives all messages in an order of its own.
struct Traffic<'a> {
    plan: Plan,
    rank: u32,
    observer: &'a dyn Observer,
    outgoing: Vec<Outgoing>,
    incoming: Vec<Incoming>,
    /// Messages that the receiver has not dropped yet, each with its channel.
    held: VecDeque<(u32, u32, Message)>,
    own: fastrand::Rng,
}

/// Sends and receives everything of one rank, unless it stops before. The channels are made before `begin`, which agrees.
pub fn run(
    ranks: &Ranks,
    plan: Plan,
    observer: &dyn Observer,
    begin: impl FnOnce() -> Result<(), ExchangeError>,
) -> Result<(), ExchangeError> {
    let alarm = Alarm::new();
    let mut traffic = Traffic::new(ranks, plan, observer, &alarm);
    begin()?;
    for _ in 0..plan.turns_max {
        if traffic.is_done() {
            break;
        }
        let mut has_moved = traffic.send_some()?;
        has_moved |= traffic.take_some()?;
        has_moved |= traffic.drop_some(has_moved);
        if !has_moved && !traffic.is_done() {
            alarm.wait();
        }
    }
    Ok(())
}

impl<'a> Traffic<'a> {
    fn new(ranks: &Ranks, plan: Plan, observer: &'a dyn Observer, alarm: &Arc<Alarm>) -> Self {
        let rank = ranks.rank();
        let mut traffic = Traffic {
            plan,
            rank,
            observer,
            outgoing: Vec::new(),
            incoming: Vec::new(),
            held: VecDeque::new(),
            own: fastrand::Rng::with_seed(plan.seed ^ u64::from(rank)),
        };
        for other in 0..ranks.count() {
            for index in 0..plan.channels {
                let mut sender = ranks.sender(other, plan.channel(index), plan.credit);
                sender.set_waker(alarm.waker());
                let rng = plan.rng(rank, other, index);
                let left = plan.messages;
                traffic.outgoing.push(Outgoing {
                    index,
                    sender,
                    rng,
                    left,
                    next: None,
                });
                let mut receiver = ranks.receiver(other, plan.channel(index), plan.credit);
                receiver.set_waker(alarm.waker());
                let rng = plan.rng(other, rank, index);
                traffic.incoming.push(Incoming {
                    index,
                    receiver,
                    rng,
                    left,
                });
            }
        }
        traffic
    }

    fn is_done(&self) -> bool {
        let is_sent = self.outgoing.iter().all(|channel| channel.left == 0);
        let is_received = self.incoming.iter().all(|channel| channel.left == 0);
        is_sent && is_received && self.held.is_empty()
    }

    /// A few messages on each channel, as far as there is credit.
    fn send_some(&mut self) -> Result<bool, ExchangeError> {
        let mut has_moved = false;
        for channel in &mut self.outgoing {
            for _ in 0..self.own.u32(1..5) {
                if channel.left == 0 {
                    break;
                }
                let next = channel.next.take();
                let message = next.unwrap_or_else(|| self.plan.next_message(&mut channel.rng));
                let bytes = message.len();
                // Noted before: the receiver may be faster.
                let is_noted = (1..=channel.sender.room()).contains(&bytes);
                if is_noted {
                    self.observer
                        .sent(self.rank, channel.sender.to(), channel.index, bytes);
                }
                match channel.sender.send(message) {
                    Ok(()) => {
                        if !is_noted {
                            self.observer.sent(
                                self.rank,
                                channel.sender.to(),
                                channel.index,
                                bytes,
                            );
                        }
                    }
                    Err(SendError::Full(message)) => {
                        assert!(!is_noted, "there was room");
                        channel.next = Some(message.to_vec());
                        break;
                    }
                    Err(SendError::Ended(error)) => return Err(error),
                    Err(error @ SendError::TooLong(_)) => panic!("{error}"),
                }
                channel.left -= 1;
                has_moved = true;
            }
        }
        Ok(has_moved)
    }

    /// A few messages of each channel, which must be the next.
    fn take_some(&mut self) -> Result<bool, ExchangeError> {
        let mut has_moved = false;
        for channel in &mut self.incoming {
            for _ in 0..self.own.u32(1..5) {
                let Some(message) = channel.receiver.take()? else {
                    break;
                };
                let expected = self.plan.next_message(&mut channel.rng);
                assert!(
                    *message == *expected,
                    "{message:?} came in place of {expected:?}"
                );
                channel.left = channel.left.checked_sub(1).expect("no message comes twice");
                self.held
                    .push_back((channel.receiver.from(), channel.index, message));
                has_moved = true;
            }
        }
        Ok(has_moved)
    }

    /// Drops messages that are held too long, in any order; all of them if there is no other progress.
    fn drop_some(&mut self, has_moved: bool) -> bool {
        let held_max = if has_moved { self.plan.held_max } else { 0 };
        let mut has_dropped = false;
        while self.held.len() > held_max {
            let any = self.own.usize(..self.held.len());
            if let Some((from, index, message)) = self.held.swap_remove_back(any) {
                self.observer.dropped(from, self.rank, index, message.len());
                drop(message);
                has_dropped = true;
            }
        }
        has_dropped
    }
}
