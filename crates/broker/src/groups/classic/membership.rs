//! Staying in a classic group, and leaving it.

use super::{ClassicGroup, State, refuse_join};
use crate::groups::answer::{Answer, LeftMember};
use crate::groups::turn::Turn;
use crate::groups::{GroupError, Heartbeat, LeavingMember, MemberId};

impl ClassicGroup {
    pub fn heartbeat(&mut self, turn: &mut Turn, heartbeat: &Heartbeat) -> Result<(), GroupError> {
        self.check_member(&heartbeat.member, heartbeat.instance.as_ref())?;
        if heartbeat.generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        self.extend_session(&heartbeat.member, turn);
        match self.state {
            State::Preparing => Err(GroupError::RebalanceInProgress),
            State::Empty | State::Completing | State::Stable => Ok(()),
        }
    }

    /// Lets members go; the others have a rebalance.
    pub fn leave(&mut self, turn: &mut Turn, leaving: Vec<LeavingMember>) -> Vec<LeftMember> {
        let members_before = self.members.len();
        let leave = |leaving: LeavingMember| {
            let result = self.leave_one(turn, &leaving);
            LeftMember {
                member: leaving.member,
                instance: leaving.instance,
                error: result.err(),
            }
        };
        let left = leaving.into_iter().map(leave).collect();
        if self.members.len() < members_before {
            self.rebalance_or_complete(turn);
        } else {
            // The group may have been waiting for a pending member that has now left.
            self.complete_if_all_joined(turn);
        }
        left
    }

    fn leave_one(&mut self, turn: &mut Turn, leaving: &LeavingMember) -> Result<(), GroupError> {
        let member = if leaving.member.is_empty() {
            // An administrator removes a static member.
            let instance = leaving.instance.as_ref();
            let member = instance.and_then(|id| self.static_members.get(id));
            member.cloned().ok_or(GroupError::UnknownMemberId)?
        } else {
            if !self.pending_join.contains(&leaving.member) {
                self.check_member(&leaving.member, leaving.instance.as_ref())?;
            }
            leaving.member.clone()
        };
        self.drop_member(turn, &member);
        Ok(())
    }

    /// Removes a member that was silent for its session timeout.
    pub fn session_is_over(&mut self, turn: &mut Turn, member: &MemberId) {
        if let Some(state) = self.members.get(member) {
            let waits = state.awaiting_join.is_some() || state.awaiting_sync.is_some();
            // A member that waits for the coordinator cannot send heartbeats. A new member, though, may have given up.
            if waits && !state.is_new {
                return;
            }
        } else if !self.pending_join.contains(member) {
            return;
        }
        let was_member = self.members.contains_key(member);
        self.drop_member(turn, member);
        match self.state {
            State::Empty => {}
            State::Completing | State::Stable if was_member => self.prepare_rebalance(turn),
            State::Completing | State::Stable => {}
            // The last of an empty group's first members has gone.
            State::Preparing if self.have_all_joined() => self.complete_join(turn),
            State::Preparing => {}
        }
    }

    /// Removes a member, and refuses the requests that it waits for.
    fn drop_member(&mut self, turn: &mut Turn, member: &MemberId) {
        let Some(removed) = self.remove(member, turn) else {
            return;
        };
        if let Some(request) = removed.awaiting_join {
            // A live client joins again as a new member.
            refuse_join(
                turn,
                request,
                GroupError::UnknownMemberId,
                MemberId::default(),
            );
        }
        if let Some(request) = removed.awaiting_sync {
            turn.answer(request, Answer::SyncGroup(Err(GroupError::UnknownMemberId)));
        }
    }
}
