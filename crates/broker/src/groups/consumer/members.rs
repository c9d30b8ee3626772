//! The members of a group: they join, come back, leave, and are removed.

use super::{Assignment, ConsumerGroup, Current, Member, MemberState};
use crate::groups::answer::{ConsumerBeat, HeartbeatRefused};
use crate::groups::record::{Key, Value};
use crate::groups::turn::Turn;
use crate::groups::{ConsumerHeartbeat, Epoch, GroupError, MemberId};

impl ConsumerGroup {
    /// Checks that the member may stay or join; returns the static member that it replaces.
    pub(super) fn admit(
        &self,
        heartbeat: &ConsumerHeartbeat,
        owned: Option<&Assignment>,
    ) -> Result<Option<MemberId>, GroupError> {
        let id = &heartbeat.member;
        let holder = heartbeat
            .instance
            .as_ref()
            .and_then(|id| self.static_members.get(id));
        if heartbeat.epoch != Epoch::JOIN {
            self.check_instance(heartbeat, holder)?;
        } else if let Some(holder) = holder.filter(|holder| *holder != id) {
            let has_left = |member: &Member| member.current.epoch == Epoch::LEAVE_FOR_NOW;
            // Nor may a member that belongs to the group already take the place of another.
            let is_free = self.members.get(holder).is_none_or(has_left);
            return match is_free && !self.members.contains_key(id) {
                true => Ok(Some(holder.clone())),
                false => Err(GroupError::UnreleasedInstanceId),
            };
        }
        let Some(member) = self.members.get(id) else {
            return match heartbeat.epoch {
                Epoch::JOIN => Ok(None),
                _ => Err(GroupError::UnknownMemberId),
            };
        };
        let known = member.subscription.instance.as_ref();
        if let (Some(known), Some(instance)) = (known, &heartbeat.instance)
            && known != instance
        {
            return Err(GroupError::InvalidRequest);
        }
        match ConsumerGroup::is_current(&member.current, heartbeat.epoch, owned) {
            true => Ok(None),
            false => Err(GroupError::FencedMemberEpoch),
        }
    }

    /// Checks that a member that names an instance id is the one that holds it.
    fn check_instance(
        &self,
        heartbeat: &ConsumerHeartbeat,
        holder: Option<&MemberId>,
    ) -> Result<(), GroupError> {
        match (&heartbeat.instance, holder) {
            (None, _) => Ok(()),
            (Some(_), None) => Err(GroupError::UnknownMemberId),
            (Some(_), Some(holder)) if *holder != heartbeat.member => {
                Err(GroupError::FencedInstanceId)
            }
            (Some(_), Some(_)) => Ok(()),
        }
    }

    /// Whether a joining member would replace a static one.
    pub(super) fn replaces(&self, heartbeat: &ConsumerHeartbeat) -> bool {
        let instance = heartbeat.instance.as_ref();
        instance.is_some_and(|instance| self.static_members.contains_key(instance))
    }

    /// Replaces a static member by its next incarnation, and keeps its partitions for that one.
    pub(super) fn replace(&mut self, turn: &mut Turn, old: &MemberId, new: &MemberId) {
        let Some(replaced) = self.take_out(turn, old) else {
            return;
        };
        let current = Current {
            epoch: Epoch::JOIN,
            previous_epoch: Epoch::JOIN,
            assigned: replaced.current.assigned,
            ..Current::default()
        };
        if let Some(instance) = &replaced.subscription.instance {
            self.static_members.insert(instance.clone(), new.clone());
        }
        let member = Member {
            subscription: replaced.subscription.clone(),
            current: Current::default(),
            target: replaced.target,
        };
        self.members.insert(new.clone(), member);
        let key = Key::ConsumerMember(self.name.clone(), new.clone());
        turn.store(&key, &Value::ConsumerMember(replaced.subscription));
        self.store_target(turn, new);
        self.set_current(turn, new, current);
    }

    /// Removes a member, with all of its records.
    fn take_out(&mut self, turn: &mut Turn, id: &MemberId) -> Option<Member> {
        let member = self.members.remove(id)?;
        for place in member.current.owned() {
            self.owners.remove(&place);
        }
        if let Some(instance) = &member.subscription.instance {
            self.static_members.remove(instance);
        }
        turn.cancel_timer(&self.session_timer(id));
        turn.cancel_timer(&self.rebalance_timer(id));
        turn.remove(&Key::Current(self.name.clone(), id.clone()));
        turn.remove(&Key::Target(self.name.clone(), id.clone()));
        turn.remove(&Key::ConsumerMember(self.name.clone(), id.clone()));
        Some(member)
    }

    /// Removes a member from the group. The others get its partitions with their next heartbeats.
    fn put_out(&mut self, turn: &mut Turn, id: &MemberId) {
        if self.take_out(turn, id).is_none() {
            return;
        }
        self.epoch = self.epoch.next();
        if self.members.is_empty() {
            // No member is left, so an empty target is complete.
            self.target_epoch = self.epoch;
        }
        self.store_group(turn);
    }

    /// Handles the heartbeat of a member that leaves: for good, or, as a static member, for a while.
    pub fn leave(
        &mut self,
        turn: &mut Turn,
        heartbeat: &ConsumerHeartbeat,
    ) -> Result<ConsumerBeat, HeartbeatRefused> {
        let id = &heartbeat.member;
        let holder = heartbeat
            .instance
            .as_ref()
            .and_then(|id| self.static_members.get(id));
        self.check_instance(heartbeat, holder)?;
        let member = self.members.get(id).ok_or(GroupError::UnknownMemberId)?;
        if heartbeat.epoch == Epoch::LEAVE_FOR_NOW {
            let left = Current {
                epoch: Epoch::LEAVE_FOR_NOW,
                state: MemberState::Stable,
                revoking: Assignment::new(),
                ..member.current.clone()
            };
            self.set_current(turn, id, left);
        } else {
            self.put_out(turn, id);
        }
        Ok(ConsumerBeat {
            member: id.clone(),
            epoch: heartbeat.epoch,
            heartbeat_interval: Default::default(),
            assignment: None,
        })
    }

    /// Removes a member that was silent for the session timeout.
    pub fn session_is_over(&mut self, turn: &mut Turn, id: &MemberId) {
        self.put_out(turn, id);
    }

    /// Removes a member that has not given up its partitions in time.
    pub fn rebalance_time_is_up(&mut self, turn: &mut Turn, id: &MemberId) {
        let is_unrevoked = |member: &Member| member.current.state == MemberState::Unrevoked;
        if self.members.get(id).is_some_and(is_unrevoked) {
            self.put_out(turn, id);
        }
    }
}
