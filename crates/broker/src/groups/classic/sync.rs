//! The distribution of the assignment of a generation.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::{ClassicGroup, State};
use crate::groups::answer::Answer;
use crate::groups::config::MEMBER_BYTES_MAX;
use crate::groups::turn::Turn;
use crate::groups::{GroupError, MemberId, RequestId, SyncGroup};

impl ClassicGroup {
    /// Answers with the member's assignment, at once or when the leader has brought it.
    pub fn sync(&mut self, turn: &mut Turn, request: RequestId, sync: SyncGroup) {
        if let Err(error) = self.check_sync(&sync) {
            return turn.answer(request, Answer::SyncGroup(Err(error)));
        }
        self.pending_sync.remove(&sync.member);
        if self.pending_sync.is_empty() {
            turn.cancel_timer(&self.sync_timer());
        }
        if self.state == State::Stable {
            let synced = self
                .members
                .get(&sync.member)
                .map(|member| self.synced(member));
            let synced = synced.ok_or(GroupError::UnknownMemberId);
            return turn.answer(request, Answer::SyncGroup(synced));
        }
        self.await_sync(turn, request, &sync.member);
        if self.leader.as_ref() == Some(&sync.member) {
            self.assign(turn, sync.assignments);
        }
    }

    fn check_sync(&self, sync: &SyncGroup) -> Result<(), GroupError> {
        if self.state == State::Empty {
            return Err(GroupError::UnknownMemberId);
        }
        self.check_member(&sync.member, sync.instance.as_ref())?;
        if sync.generation != self.generation {
            return Err(GroupError::IllegalGeneration);
        }
        if differ(&sync.protocol_type, &self.protocol_type)
            || differ(&sync.protocol, &self.protocol)
        {
            return Err(GroupError::InconsistentGroupProtocol);
        }
        if self.state == State::Preparing {
            return Err(GroupError::RebalanceInProgress);
        }
        let mut assignments = sync.assignments.iter();
        match assignments.any(|(_, bytes)| bytes.len() > MEMBER_BYTES_MAX) {
            true => Err(GroupError::UnknownServerError),
            false => Ok(()),
        }
    }

    fn await_sync(&mut self, turn: &mut Turn, request: RequestId, id: &MemberId) {
        let Some(member) = self.members.get_mut(id) else {
            return;
        };
        // A member that sends a new request has given up the earlier one.
        if let Some(before) = member.awaiting_sync.replace(request) {
            let error = GroupError::RebalanceInProgress;
            turn.answer(before, Answer::SyncGroup(Err(error)));
        }
    }

    /// Gives each member its assignment by the leader; a member without one gets an empty one.
    fn assign(&mut self, turn: &mut Turn, assignments: Vec<(MemberId, Bytes)>) {
        let mut assignments: HashMap<MemberId, Bytes> = assignments.into_iter().collect();
        let mut waiting = Vec::new();
        for (id, member) in &mut self.members {
            let assignment = assignments.remove(id).unwrap_or_default();
            // Copy it: the request also holds the assignments of the others.
            member.assignment = Bytes::copy_from_slice(&assignment);
            waiting.extend(
                member
                    .awaiting_sync
                    .take()
                    .map(|request| (id.clone(), request)),
            );
        }
        self.set_state(State::Stable, turn);
        self.store(turn);
        for (id, request) in waiting {
            if let Some(member) = self.members.get(&id) {
                turn.answer(request, Answer::SyncGroup(Ok(self.synced(member))));
                self.extend_session(&id, turn);
            }
        }
    }

    /// Ends the time to ask for the assignment, and removes the members that have not asked.
    pub fn sync_time_is_up(&mut self, turn: &mut Turn) {
        if !matches!(self.state, State::Completing | State::Stable) || self.pending_sync.is_empty()
        {
            return;
        }
        for member in std::mem::take(&mut self.pending_sync) {
            self.remove(&member, turn);
        }
        self.prepare_rebalance(turn);
    }
}

/// Whether both are known and differ.
fn differ(said: &Option<Arc<str>>, known: &Option<Arc<str>>) -> bool {
    said.is_some() && known.is_some() && said != known
}
