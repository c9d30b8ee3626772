//! The transactional work of partitions and groups; and the fates of transactions.

use std::collections::BTreeMap;

use millstream_base::{ProducerEpoch, ProducerId};
use millstream_broker::transactions::*;

use super::client::Append;

/// One transaction, as the client means it.
pub type Token = usize;

/// The fates of transactions.
#[derive(Debug, Default)]
pub struct Tokens(Vec<Fate>);

#[derive(Debug, Default)]
struct Fate {
    /// The outcome that the client got.
    answered: Option<Outcome>,
    /// The outcome that is visible in some place.
    visible: Option<Outcome>,
}

impl Tokens {
    pub fn begin(&mut self) -> Token {
        self.0.push(Fate::default());
        self.0.len() - 1
    }

    pub fn answered(&mut self, token: Token, outcome: Outcome) {
        self.0[token].answered = Some(outcome);
        self.check_one_outcome(token);
    }

    fn visible(&mut self, token: Token, outcome: Outcome) {
        let before = self.0[token].visible.replace(outcome);
        let is_same = before.is_none_or(|before| before == outcome);
        assert!(is_same, "a transaction is committed here and aborted there");
        self.check_one_outcome(token);
    }

    /// The outcome that a client got holds everywhere.
    fn check_one_outcome(&self, token: Token) {
        if let Fate {
            answered: Some(answered),
            visible: Some(visible),
        } = self.0[token]
        {
            assert_eq!(
                answered, visible,
                "a client got another outcome than the participants"
            );
        }
    }
}

/// A partition, or a group.
#[derive(Debug, Clone, Default)]
pub struct Participant {
    /// The writes of each producer in its open transaction.
    open: BTreeMap<ProducerId, Vec<Token>>,
    /// The epoch below which a producer is fenced.
    epochs: BTreeMap<ProducerId, ProducerEpoch>,
    /// The number of markers.
    markers: u64,
}

impl Participant {
    /// Changes when a transaction ends here.
    pub fn guard(&self) -> u64 {
        self.markers
    }

    /// Accepts a write; refuses it if the producer is fenced or its permission may be over.
    pub fn append(&mut self, append: &Append, _tokens: &mut Tokens) -> bool {
        let Producer { id, epoch } = append.producer;
        let is_fenced = self.epochs.get(&id).is_some_and(|known| *known > epoch);
        if is_fenced || append.guard != self.markers {
            return false;
        }
        self.epochs.insert(id, epoch);
        self.open.entry(id).or_default().push(append.token);
        true
    }

    /// Accepts a marker.
    pub fn end(&mut self, ending: &Ending, tokens: &mut Tokens) {
        let Producer { id, epoch } = ending.producer;
        let known = self.epochs.entry(id).or_insert(epoch);
        assert!(*known <= epoch, "an epoch goes back");
        *known = epoch;
        self.markers += 1;
        for token in self.open.remove(&id).unwrap_or_default() {
            tokens.visible(token, ending.outcome);
        }
    }

    pub fn assert_nothing_open(&self) {
        assert!(self.open.is_empty(), "a transaction hangs: {:?}", self.open);
    }
}
