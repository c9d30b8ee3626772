//! Questions that a rank asks another one while the flow runs, and the answers: bytes, whose meaning others know.
//!
//! Questions and answers go in parts, so that a long answer needs little credit. A rank takes the parts that have come
//! whatever it has to send: two ranks with long answers for each other would wait for ever otherwise. It answers a
//! question when its former answers to that rank are sent. So a rank holds one answer for each other rank, and the
//! questions, whose number is bounded by the ranks that ask.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver as Inbox, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use millstream_exchange::Ranks;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::BoxError;
use crate::ranks::long_messages::{self, Arriving};
use crate::ranks::outbox::Outbox;
use crate::ranks::unpark::unparks_this_thread;

/// Bytes on their way from one rank to another.
const CREDIT_BYTES: u64 = 1 << 20;

/// Questions that one other rank has not answered yet.
const WAITING_MAX: usize = 256;

/// The reason why another rank has not answered.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// It has too many questions to answer.
    #[error("{WAITING_MAX} requests wait for rank {rank} of the flow")]
    Busy {
        /// The rank.
        rank: u32,
    },
    /// It has not answered in time.
    #[error("rank {rank} of the flow does not answer")]
    Silent {
        /// The rank.
        rank: u32,
    },
    /// A rank has failed, or this one is about to end.
    #[error("the ranks of the flow end: {0}")]
    Ended(String),
    /// It cannot answer.
    #[error("rank {rank} of the flow cannot answer: {error}")]
    Failed {
        /// The rank.
        rank: u32,
        /// The reason.
        error: String,
    },
}

millstream_base::debug_as_display!(AskError);

/// The channels of questions and answers, one from each rank to each other.
pub struct Lines {
    peers: Vec<Peer>,
}

impl Lines {
    /// Makes the channels; called before the ranks agree, and by all of them.
    pub fn new(ranks: &Ranks) -> Lines {
        let channel = ranks.next_channel();
        let others = (0..ranks.count()).filter(|rank| *rank != ranks.rank());
        let peers = others.map(|rank| Peer {
            rank,
            outbox: Outbox::new(ranks.sender(rank, channel, CREDIT_BYTES)),
            arriving: Arriving::new(ranks.receiver(rank, channel, CREDIT_BYTES)),
            waiting: HashMap::new(),
            questions: VecDeque::new(),
        });
        Lines {
            peers: peers.collect(),
        }
    }
}

/// Asks other ranks, and answers them on a thread of its own until it is dropped.
pub struct Asking {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    is_stopping: AtomicBool,
}

struct State {
    peers: Vec<Peer>,
    /// The number of the next question.
    next: u64,
    /// The reason for which questions and answers have ended.
    ended: Option<String>,
}

/// Another rank.
struct Peer {
    rank: u32,
    /// Parts of this rank's questions and answers.
    outbox: Outbox,
    arriving: Arriving<(Kind, u64)>,
    /// Questions that it has not answered yet.
    waiting: HashMap<u64, SyncSender<Vec<u8>>>,
    /// The rank's questions, the oldest first.
    questions: VecDeque<(u64, Vec<u8>)>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Kind {
    Question,
    Answer,
}

/// A question that waits for its answer.
pub struct Asked {
    rank: u32,
    shared: Arc<Shared>,
    answer: Inbox<Vec<u8>>,
}

impl Asked {
    /// Waits for the answer.
    ///
    /// # Errors
    /// When none has come in time, or a rank has failed.
    pub fn wait(self, time_max: Duration) -> Result<Vec<u8>, AskError> {
        match self.answer.recv_timeout(time_max) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Timeout) => Err(AskError::Silent { rank: self.rank }),
            Err(RecvTimeoutError::Disconnected) => Err(self.shared.state.lock().ended()),
        }
    }
}

impl Asking {
    /// Begins to answer the questions of other ranks by calling `answer`.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn start(
        lines: Lines,
        answer: impl Fn(&[u8]) -> Vec<u8> + Send + 'static,
    ) -> io::Result<Asking> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                peers: lines.peers,
                next: 0,
                ended: None,
            }),
            is_stopping: AtomicBool::new(false),
        });
        let thread = thread::Builder::new()
            .name("millstream-reads".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.run(answer)
            })?;
        Ok(Asking {
            shared,
            thread: Some(thread),
        })
    }

    /// Asks another rank. It never waits.
    ///
    /// # Errors
    /// When too many questions wait for that rank, or a rank has failed.
    ///
    /// # Panics
    /// When there is no other rank of this number.
    pub fn ask(&self, rank: u32, question: &[u8]) -> Result<Asked, AskError> {
        let state = &mut *self.shared.state.lock();
        if state.ended.is_some() {
            return Err(state.ended());
        }
        let mut peers = state.peers.iter_mut();
        let peer = peers.find(|peer| peer.rank == rank).expect("another rank");
        if peer.waiting.len() >= WAITING_MAX {
            return Err(AskError::Busy { rank });
        }
        let number = state.next;
        state.next += 1;
        let (answered, answer) = mpsc::sync_channel(1);
        peer.waiting.insert(number, answered);
        peer.put(Kind::Question, number, question);
        // The thread finds out about a failure by itself.
        let _ = peer.outbox.send();
        Ok(Asked {
            rank,
            shared: Arc::clone(&self.shared),
            answer,
        })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the thread was printed.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, answer: impl Fn(&[u8]) -> Vec<u8>) {
        let waker = unparks_this_thread();
        for peer in &mut self.state.lock().peers {
            peer.outbox.set_waker(waker.clone());
            peer.arriving.receiver.set_waker(waker.clone());
        }
        while !self.is_stopping.load(Ordering::SeqCst) {
            let exchanged = self.state.lock().exchange();
            let questions = match exchanged {
                Ok(questions) => questions,
                Err(error) => {
                    self.end(&error.to_string());
                    return;
                }
            };
            if questions.is_empty() {
                thread::park();
            }
            for (place, number, question) in questions {
                let bytes = answer(&question);
                let peer = &mut self.state.lock().peers[place];
                peer.put(Kind::Answer, number, &bytes);
            }
        }
        self.end("this one has ended");
    }

    /// Wakes all waiting threads with an error.
    fn end(&self, reason: &str) {
        let mut state = self.state.lock();
        state.ended = Some(reason.to_owned());
        for peer in &mut state.peers {
            peer.waiting.clear();
        }
    }
}

impl State {
    fn ended(&self) -> AskError {
        AskError::Ended(self.ended.clone().unwrap_or_default())
    }

    /// Sends pending messages, receives, and passes answers to the threads that wait for them. Returns the questions to answer
    /// now, each with the place of its rank.
    fn exchange(&mut self) -> Result<Vec<(usize, u64, Vec<u8>)>, BoxError> {
        let mut questions = Vec::new();
        for (place, peer) in self.peers.iter_mut().enumerate() {
            peer.receive()?;
            peer.outbox.send()?;
            if peer.outbox.is_empty() {
                let next = peer.questions.pop_front();
                questions.extend(next.map(|(number, question)| (place, number, question)));
            }
        }
        Ok(questions)
    }
}

impl Peer {
    /// Puts a question of this rank into the box, or the answer to one that has this number at the other rank.
    fn put(&mut self, kind: Kind, question: u64, bytes: &[u8]) {
        long_messages::put(&mut self.outbox, (kind, question), bytes);
    }

    fn receive(&mut self) -> Result<(), BoxError> {
        while let Some(((kind, question), bytes)) = self.arriving.take()? {
            match kind {
                Kind::Question => self.questions.push_back((question, bytes)),
                Kind::Answer => {
                    let asked = self.waiting.remove(&question);
                    // The one that asked may not wait any more.
                    asked.map(|asked| asked.try_send(bytes));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::long_messages::PART_BYTES;

    const TIME_MAX: Duration = Duration::from_secs(60);

    /// Two ranks; each answers a question with its text, twice, once the gate is open.
    fn two(gate: &Arc<Mutex<()>>) -> (Vec<Ranks>, Vec<Asking>) {
        let ranks = Ranks::threads(2);
        // Both have their channels before one of them asks.
        let lines: Vec<Lines> = ranks.iter().map(Lines::new).collect();
        let asking = lines.into_iter().map(|lines| {
            let gate = Arc::clone(gate);
            let answer = move |question: &[u8]| {
                drop(gate.lock());
                question.repeat(2)
            };
            Asking::start(lines, answer).unwrap()
        });
        let asking = asking.collect();
        (ranks, asking)
    }

    #[test]
    fn long_questions_and_answers_reach_the_other_rank_whole() {
        let (_ranks, both) = two(&Arc::default());
        thread::scope(|scope| {
            for (rank, asking) in both.iter().enumerate() {
                scope.spawn(move || {
                    for length in [0, 1, PART_BYTES, PART_BYTES + 1, 5 << 20] {
                        let question = |number: u8| vec![number; length];
                        let asked = (0..5)
                            .map(|number| asking.ask(1 - rank as u32, &question(number)).unwrap());
                        let asked: Vec<Asked> = asked.collect();
                        for (number, asked) in (0..).zip(asked) {
                            let answer = asked.wait(TIME_MAX).unwrap();
                            assert!(answer == question(number).repeat(2), "{length}");
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn the_number_of_open_questions_to_a_silent_rank_is_bounded() {
        let gate = Arc::default();
        let (_ranks, both) = two(&gate);
        let shut = gate.lock();
        let ask = || both[0].ask(1, b"?");
        let asked: Vec<Asked> = (0..WAITING_MAX).map(|_| ask().unwrap()).collect();
        assert_eq!(ask().err(), Some(AskError::Busy { rank: 1 }));
        let late = asked.into_iter().map(|asked| asked.wait(Duration::ZERO));
        assert!(
            late.into_iter()
                .all(|it| it == Err(AskError::Silent { rank: 1 }))
        );
        assert_eq!(
            ask().err(),
            Some(AskError::Busy { rank: 1 }),
            "the rank has all of them to answer"
        );
        drop(shut);
        let answer = loop {
            match ask() {
                Ok(asked) => break asked.wait(TIME_MAX),
                Err(_) => thread::yield_now(),
            }
        };
        assert_eq!(answer, Ok(b"??".to_vec()));
    }

    #[test]
    fn a_failure_of_a_rank_ends_the_wait() {
        let gate = Arc::default();
        let (ranks, both) = two(&gate);
        let shut = gate.lock();
        let asked = both[0].ask(1, b"?").unwrap();
        ranks[1].fail("it is on fire");
        let check = |error: AskError| {
            assert!(error.to_string().contains("it is on fire"), "{error}");
        };
        check(asked.wait(TIME_MAX).unwrap_err());
        check(both[0].ask(1, b"?").err().expect("the ranks have ended"));
        drop(shut);
    }
}
