//! The rebalance of a classic group.

use std::sync::Arc;
use std::time::Duration;

use super::{ClassicGroup, InitialDelay, State};
use crate::groups::answer::Answer;
use crate::groups::timers::Timer;
use crate::groups::turn::Turn;
use crate::groups::{Generation, GroupError, MemberId};

impl ClassicGroup {
    /// Begins a rebalance, or completes the one under way if all members have joined.
    pub(super) fn rebalance_or_complete(&mut self, turn: &mut Turn) {
        match self.state {
            State::Preparing => self.complete_if_all_joined(turn),
            State::Empty | State::Completing | State::Stable => self.prepare_rebalance(turn),
        }
    }

    /// Asks all members to join again, which they learn from their next heartbeat.
    pub(super) fn prepare_rebalance(&mut self, turn: &mut Turn) {
        if self.state == State::Completing {
            self.refuse_syncs(turn);
        }
        self.pending_sync.clear();
        turn.cancel_timer(&self.sync_timer());
        let from = self.state;
        self.set_state(State::Preparing, turn);
        if from == State::Empty {
            self.wait_for_others(turn);
        } else if self.have_all_joined() {
            self.complete_join(turn);
        } else {
            turn.set_timer(self.join_timer(), self.rebalance_timeout());
        }
    }

    /// Waits, so that members that start at the same time get into the first generation together.
    fn wait_for_others(&mut self, turn: &mut Turn) {
        let delay = turn.config.initial_rebalance_delay;
        self.initial = Some(InitialDelay {
            delay,
            left: self.rebalance_timeout().saturating_sub(delay),
            joined_meanwhile: false,
        });
        turn.set_timer(self.join_timer(), delay);
    }

    /// Ends the time to join.
    pub fn join_time_is_up(&mut self, turn: &mut Turn) {
        if self.state != State::Preparing {
            return;
        }
        match &mut self.initial {
            Some(initial) if initial.joined_meanwhile && !initial.left.is_zero() => {
                let delay = turn.config.initial_rebalance_delay.min(initial.left);
                initial.joined_meanwhile = false;
                initial.left = initial.left.saturating_sub(initial.delay);
                initial.delay = delay;
                turn.set_timer(self.join_timer(), delay);
            }
            _ => self.complete_join(turn),
        }
    }

    /// Completes the rebalance if all members have joined. The first members of an empty group wait for other members,
    /// though.
    pub(super) fn complete_if_all_joined(&mut self, turn: &mut Turn) {
        if self.state == State::Preparing && self.initial.is_none() && self.have_all_joined() {
            self.complete_join(turn);
        }
    }

    pub(super) fn have_all_joined(&self) -> bool {
        let mut members = self.members.values();
        self.pending_join.is_empty() && members.all(|member| member.awaiting_join.is_some())
    }

    /// Begins the next generation with the members that have joined. An absent static member stays, since it may come
    /// back.
    pub(super) fn complete_join(&mut self, turn: &mut Turn) {
        turn.cancel_timer(&self.join_timer());
        let absent = self
            .members
            .iter()
            .filter(|(_, member)| member.awaiting_join.is_none() && member.instance.is_none());
        let absent: Vec<MemberId> = absent.map(|(id, _)| id.clone()).collect();
        for member in &absent {
            self.remove(member, turn);
        }
        if !self.members.is_empty() && !self.elect_leader() {
            // Only static members are left, and none of them joined. Their sessions will end.
            turn.set_timer(self.join_timer(), self.rebalance_timeout());
            return;
        }
        self.initial = None;
        self.generation = Generation(self.generation.0.saturating_add(1));
        self.protocol = self.choose_protocol();
        self.subscribed = self.subscriptions();
        if self.members.is_empty() {
            self.set_state(State::Empty, turn);
            self.store(turn);
            return;
        }
        self.set_state(State::Completing, turn);
        self.answer_joins(turn);
    }

    fn answer_joins(&mut self, turn: &mut Turn) {
        let ids: Vec<MemberId> = self.members.keys().cloned().collect();
        for id in &ids {
            let joined = self.joined(id);
            let Some(member) = self.members.get_mut(id) else {
                continue;
            };
            member.is_new = false;
            if let Some(request) = member.awaiting_join.take() {
                turn.answer(request, Answer::JoinGroup(Ok(joined)));
            }
            self.extend_session(id, turn);
        }
        self.pending_sync = ids.into_iter().collect();
        turn.set_timer(self.sync_timer(), self.rebalance_timeout());
    }

    /// Makes a member that has joined the leader; `false` if none has.
    fn elect_leader(&mut self) -> bool {
        let has_joined = |id: &MemberId| {
            let member = self.members.get(id);
            member.is_some_and(|member| member.awaiting_join.is_some())
        };
        if !self.leader.as_ref().is_some_and(has_joined) {
            let joined = self.members.keys().find(|id| has_joined(id)).cloned();
            match joined {
                None => return false,
                joined => self.leader = joined,
            }
        }
        true
    }

    /// The protocol that most members prefer among those that all of them support; if several tie, the leader's
    /// favourite.
    pub(super) fn choose_protocol(&self) -> Option<Arc<str>> {
        let is_common = |name: &Arc<str>| self.members.values().all(|member| member.supports(name));
        let leader = self
            .leader
            .as_ref()
            .and_then(|leader| self.members.get(leader))?;
        let names = leader.protocols.iter().map(|protocol| &protocol.name);
        let candidates: Vec<&Arc<str>> = names.filter(|name| is_common(name)).collect();
        let mut votes = vec![0; candidates.len()];
        for member in self.members.values() {
            let mut ranked = member.protocols.iter();
            let vote = ranked.find_map(|protocol| {
                candidates
                    .iter()
                    .position(|candidate| **candidate == protocol.name)
            });
            if let Some(vote) = vote {
                votes[vote] += 1;
            }
        }
        let most = votes.iter().max()?;
        let chosen = votes.iter().position(|count| count == most)?;
        Some(Arc::clone(candidates[chosen]))
    }

    /// The longest rebalance timeout of all members.
    fn rebalance_timeout(&self) -> Duration {
        let timeouts = self.members.values().map(|member| member.rebalance_timeout);
        timeouts.max().unwrap_or_default()
    }

    /// Refuses the members that wait for an assignment of the old generation: they must join the new one.
    fn refuse_syncs(&mut self, turn: &mut Turn) {
        let mut refused = Vec::new();
        for (id, member) in &mut self.members {
            member.assignment = Default::default();
            if let Some(request) = member.awaiting_sync.take() {
                let error = GroupError::RebalanceInProgress;
                turn.answer(request, Answer::SyncGroup(Err(error)));
                refused.push(id.clone());
            }
        }
        for member in &refused {
            self.extend_session(member, turn);
        }
    }

    fn join_timer(&self) -> Timer {
        Timer::ClassicJoin(self.name.clone())
    }

    pub(super) fn sync_timer(&self) -> Timer {
        Timer::ClassicSync(self.name.clone())
    }
}
