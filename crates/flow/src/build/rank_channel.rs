//! A channel between ranks: one operator's way to every other rank, and from it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::Waker;

use millstream_base::Clock;
use millstream_exchange::{ChannelId, Ranks};

use crate::doorbell::Doorbell;
use crate::pause::Pause;
use crate::ranks::message::Message;
use crate::ranks::outlets::Outlets;
use crate::ranks::references::References;
use crate::stage::remote_input::RemoteInput;

/// Bytes on their way from one rank to another, in one channel.
const CREDIT_BYTES: u64 = 1 << 20;

/// Makes the two ends of a channel between ranks.
pub struct RankChannel<'a> {
    pub ranks: &'a Ranks,
    pub channel: ChannelId,
    pub operator: Arc<str>,
    pub clock: &'a Arc<dyn Clock>,
    pub doorbell: &'a Arc<Doorbell>,
    pub stopping: &'a Arc<AtomicBool>,
    pub pause: &'a Arc<Pause>,
    pub references: Option<&'a Arc<References>>,
}

impl RankChannel<'_> {
    pub fn outlets(&self) -> Arc<Outlets> {
        let own = self.ranks.rank();
        let senders = (0..self.ranks.count()).map(|rank| {
            (rank != own).then(|| {
                let mut sender = self.ranks.sender(rank, self.channel, CREDIT_BYTES);
                sender.set_waker(Waker::from(Arc::clone(self.doorbell)));
                sender
            })
        });
        let (clock, operator) = (Arc::clone(self.clock), Arc::clone(&self.operator));
        let references = self.references.cloned();
        Arc::new(Outlets::new(senders, clock, operator, references))
    }

    /// Returns an input for each other rank.
    pub fn inputs<T: Message>(&self, outlets: &Arc<Outlets>) -> Vec<RemoteInput<T>> {
        let own = self.ranks.rank();
        let others = (0..self.ranks.count()).filter(|rank| *rank != own);
        others
            .map(|rank| {
                let mut receiver = self.ranks.receiver(rank, self.channel, CREDIT_BYTES);
                receiver.set_waker(Waker::from(Arc::clone(self.doorbell)));
                RemoteInput::new(
                    receiver,
                    Arc::clone(outlets),
                    Arc::clone(self.clock),
                    Arc::clone(self.stopping),
                    Arc::clone(self.pause),
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::ends::remote::Remote;
    use crate::stage::input::{Input, Took};
    use crate::stage::terminal::InputEnd;
    use crate::still::Still;
    use std::sync::atomic::Ordering;

    /// Both ends of a channel from one rank to another.
    struct Ends {
        remote: Remote<Vec<u8>>,
        input: RemoteInput<Vec<u8>>,
        pause: Arc<Pause>,
        _ranks: Vec<Ranks>,
    }

    fn ends() -> Ends {
        let ranks = Ranks::threads(2);
        // Messages go by their size, never by their age.
        let clock: Arc<dyn Clock> = Arc::new(Still);
        let doorbell = Arc::new(Doorbell::new(Arc::clone(&clock)));
        let (stopping, pause) = (Arc::default(), Arc::default());
        let rank_channel = |rank: usize| RankChannel {
            ranks: &ranks[rank],
            channel: ChannelId {
                source: 0,
                target: 1,
            },
            operator: "items".into(),
            clock: &clock,
            doorbell: &doorbell,
            stopping: &stopping,
            pause: &pause,
            references: None,
        };
        let input = rank_channel(1).inputs(&rank_channel(1).outlets()).remove(0);
        let remote = Remote::new(&rank_channel(0).outlets(), 7);
        Ends {
            remote,
            input,
            pause,
            _ranks: ranks,
        }
    }

    impl Ends {
        fn send(&mut self, item: Vec<u8>) {
            assert!(self.remote.put(1, &item).is_ok());
            assert!(self.remote.commit(None).is_ok());
        }

        fn pause(&mut self) -> bool {
            self.remote.pause().unwrap_or_else(|_| panic!("it failed"))
        }

        /// How many items come in the next message.
        fn take(&mut self) -> Option<usize> {
            let took = self.input.take(1);
            let is_there = took.is_ok_and(|took| took == Took::Items);
            let items = self.input.parts()[0].len();
            self.input.done();
            is_there.then_some(items)
        }
    }

    #[test]
    fn elements_without_credit_are_sent_with_earlier_waiting_elements() {
        let mut ends = ends();
        let large = vec![0; CREDIT_BYTES as usize * 2 / 3];
        ends.send(large.clone());
        ends.send(large);
        ends.send(vec![1]);
        assert!(!ends.pause(), "there is credit for one");
        assert_eq!(ends.take(), Some(1));
        assert!(ends.pause());
        assert!(
            ends.remote.is_at_rest(),
            "no worker would come for the rest"
        );
        assert_eq!((ends.take(), ends.take()), (Some(1), Some(1)));
        assert_eq!(ends.take(), None);
    }

    #[test]
    fn elements_behind_a_barrier_are_sent_in_another_message() {
        let mut ends = ends();
        assert!(ends.remote.put(1, &vec![1]).is_ok());
        assert!(ends.remote.commit(None).is_ok());
        assert!(ends.remote.outlets().emit_barrier(1).is_ok());
        assert!(ends.remote.end(InputEnd::Complete).is_ok());
        assert!(ends.pause());
        assert_eq!(ends.take(), Some(1));
        assert!(ends.input.is_at_rest(1) && ends.input.readable() == 0);
        assert!(!ends.input.is_finished());
        ends.pause.done.store(1, Ordering::SeqCst);
        assert_eq!((ends.input.readable(), ends.take()), (1, Some(0)));
        assert!(ends.input.is_finished());
    }
}
