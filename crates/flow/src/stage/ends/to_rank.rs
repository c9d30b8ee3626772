//! The way of items that all come together on one rank.

use crate::ranks::message::Message;
use crate::ranks::owners::Owner;
use crate::stage::attempt::Attempt;
use crate::stage::ends::exchange::Exchange;
use crate::stage::ends::to_ranks::Router;
use crate::stage::user_code::Label;

/// To one rank, in whose only ring all meet.
pub struct ToRank {
    pub owner: Owner,
    pub label: Label,
}

impl<T: Message + Clone> Router<T, T> for ToRank {
    fn put<A: Attempt>(&mut self, attempt: &A, item: &T, exchange: &mut Exchange<T>) {
        if let Err(error) = exchange.put(self.owner, item.clone()) {
            attempt.reject(
                &self.label,
                "an item that cannot be sent to another rank",
                error,
            );
        }
    }
}
