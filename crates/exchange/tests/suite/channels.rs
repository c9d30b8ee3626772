//! Single channels.

use std::collections::VecDeque;

use millstream_exchange::{
    ChannelCount, ChannelId, ExchangeError, MESSAGE_BYTES_MAX, MESSAGE_OVERHEAD_BYTES, Ranks,
    Receiver, SendError, Sender,
};

use super::common::alarm::Alarm;
use super::{CHANNEL, CREDIT, assert_failed};

/// Two ranks of this thread, and a channel from the first to the second.
fn pair() -> (Vec<Ranks>, Sender, Receiver) {
    let ranks = Ranks::threads(2);
    let sender = ranks[0].sender(1, CHANNEL, CREDIT);
    let receiver = ranks[1].receiver(0, CHANNEL, CREDIT);
    (ranks, sender, receiver)
}

/// Sends until there is no credit; returns the number of messages sent.
fn fill(sender: &mut Sender, message: &'static [u8]) -> u64 {
    let mut sent = 0;
    while sender.send(message).is_ok() {
        sent += 1;
    }
    sent
}

#[test]
fn a_receiver_takes_messages_in_the_order_of_sending() {
    let (_ranks, mut sender, mut receiver) = pair();
    assert!(receiver.take().unwrap().is_none());
    sender.send("one").unwrap();
    sender.send("").unwrap();
    sender.send(vec![3; 300]).unwrap();
    assert_eq!(*receiver.take().unwrap().unwrap(), *b"one");
    assert_eq!(*receiver.take().unwrap().unwrap(), *b"");
    assert_eq!(*receiver.take().unwrap().unwrap(), [3; 300]);
    assert!(receiver.take().unwrap().is_none());
}

#[test]
fn a_sender_without_credit_is_refused_until_messages_are_dropped() {
    let (_ranks, mut sender, mut receiver) = pair();
    let alarm = Alarm::new();
    sender.set_waker(alarm.waker());
    let sent = fill(&mut sender, &[1; 100]);
    assert_eq!(sent, CREDIT / (100 + MESSAGE_OVERHEAD_BYTES));
    assert_eq!(
        sender.send("x".repeat(100)),
        Err(SendError::Full("x".repeat(100).into()))
    );
    assert!(sender.room() < 100);

    let mut taken: VecDeque<_> = (0..sent)
        .map(|_| receiver.take().unwrap().unwrap())
        .collect();
    assert!(
        sender.send("x".repeat(100)).is_err(),
        "taking gives nothing back"
    );
    while sender.room() < 100 {
        drop(taken.pop_front().expect("dropping gives credit back"));
    }
    alarm.wait();
    assert!(
        taken.len() as u64 >= sent / 2,
        "a quarter of the credit comes back at once"
    );
    sender.send("x".repeat(100)).unwrap();
}

#[test]
fn empty_messages_take_credit() {
    let (_ranks, mut sender, _receiver) = pair();
    assert_eq!(fill(&mut sender, b""), CREDIT / MESSAGE_OVERHEAD_BYTES);
}

#[test]
fn a_message_larger_than_the_whole_credit_gets_through_alone() {
    let (_ranks, mut sender, mut receiver) = pair();
    let large = vec![7; 10 * CREDIT as usize];
    // For each part of the credit that the receiver may not have given back yet.
    for before in 0..100 {
        for _ in 0..before {
            sender.send(vec![1; 10]).unwrap();
            receiver.take().unwrap();
        }
        sender.send(large.clone()).unwrap();
        assert!(matches!(sender.send("more"), Err(SendError::Full(_))));
        assert_eq!(*receiver.take().unwrap().unwrap(), *large);
    }
}

#[test]
fn a_message_that_is_too_long_is_refused() {
    let (_ranks, mut sender, _receiver) = pair();
    let outcome = sender.send(vec![0; MESSAGE_BYTES_MAX + 1]);
    assert!(matches!(outcome, Err(SendError::TooLong(_))));
}

#[test]
fn a_waker_set_after_a_message_arrived_is_woken_at_once() {
    let (_ranks, mut sender, mut receiver) = pair();
    assert!(receiver.take().unwrap().is_none());
    sender.send("one").unwrap();
    let alarm = Alarm::new();
    receiver.set_waker(alarm.waker());
    alarm.wait();
}

#[test]
fn a_dropped_receiver_does_not_block_its_sender() {
    let (_ranks, mut sender, mut receiver) = pair();
    fill(&mut sender, &[1; 100]);
    let message = receiver.take().unwrap();
    drop(receiver);
    drop(message);
    for _ in 0..1000 {
        sender.send(vec![1; 100]).unwrap();
    }
}

#[test]
fn a_rank_sends_to_itself() {
    let ranks = Ranks::alone();
    let mut sender = ranks.sender(0, CHANNEL, CREDIT);
    let mut receiver = ranks.receiver(0, CHANNEL, CREDIT);
    sender.send("to myself").unwrap();
    assert_eq!(*receiver.take().unwrap().unwrap(), *b"to myself");
}

#[test]
fn a_message_on_a_missing_channel_fails_its_sender() {
    let ranks = Ranks::threads(2);
    let mut sender = ranks[1].sender(0, CHANNEL, CREDIT);
    let mut other = ranks[0].receiver(
        1,
        ChannelId {
            source: 7,
            target: 3,
        },
        CREDIT,
    );
    sender.send("hello").unwrap();
    let what = "it used the channel from operator 3 to operator 7, which does not exist";
    assert_failed(other.take(), 1, what);
    let Err(SendError::Ended(error)) = sender.send("again") else {
        panic!("all have ended")
    };
    assert_failed::<()>(Err(error), 1, "(found by rank 0)");
}

#[test]
fn a_message_without_credit_fails_its_sender() {
    let ranks = Ranks::threads(2);
    let mut sender = ranks[0].sender(1, CHANNEL, 10 * CREDIT);
    let mut receiver = ranks[1].receiver(0, CHANNEL, CREDIT);
    for _ in 0..2 {
        sender.send(vec![0; CREDIT as usize / 2]).unwrap();
    }
    assert_failed(receiver.take(), 0, "for which it had no credit");
}

#[test]
fn channels_count_messages_and_bytes_on_both_ends() {
    let (ranks, mut sender, receiver) = pair();
    let count = |peer, messages, bytes| ChannelCount {
        peer,
        channel: CHANNEL,
        messages,
        bytes,
    };
    assert_eq!(ranks[0].counters().sent, [count(1, 0, 0)]);
    sender.send("12345").unwrap();
    sender.send("678").unwrap();
    assert_eq!(ranks[0].counters().sent, [count(1, 2, 8)]);
    assert_eq!(ranks[0].counters().received, []);
    assert_eq!(ranks[1].counters().received, [count(0, 2, 8)]);
    drop(receiver);
    assert_eq!(ranks[1].counters().received, [count(0, 2, 8)]);
}

#[test]
fn nothing_is_sent_after_leaving() {
    let ranks = Ranks::alone();
    let mut sender = ranks.sender(0, CHANNEL, CREDIT);
    ranks.leave().unwrap();
    assert_eq!(
        sender.send("late"),
        Err(SendError::Ended(ExchangeError::Left))
    );
}
