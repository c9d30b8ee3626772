//! Members of classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

use std::sync::Arc;

use millstream_wire::messages::join_group_response::{JoinGroupResponse, JoinGroupResponseMember};
use millstream_wire::messages::leave_group_response::{LeaveGroupResponse, MemberResponse};
use millstream_wire::messages::{
    HeartbeatRequest, HeartbeatResponse, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest,
    SyncGroupResponse,
};
use millstream_wire::{ResponseError, StrBytes};

use super::convert::{
    bytes, client_of, code, group, instance, member, milliseconds, random_bytes, sent, text,
};
use super::coordinate;
use crate::broker::Broker;
use crate::client::Client;
use crate::groups::{
    Generation, GroupError, Heartbeat, JoinGroup, JoinRefused, Joined, LeaveGroup, LeavingMember,
    LeftMember, Protocol, Request, SyncGroup, Synced,
};
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext};
use crate::requests::handle::{Handle, Refusal, errors, refuse_with_code};
use crate::requests::rights::{Check, Checked, need_group};
use crate::security::Operation;

/// Joins a classic group, and waits for the other members.
impl Handle for JoinGroupRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_group(client, Operation::Read, &self.group_id)
    }

    fn refuse(&self, refusal: &Refusal) -> JoinGroupResponse {
        JoinGroupResponse::default()
            .with_error_code(refusal.code)
            .with_member_id(self.member_id.clone())
    }

    errors!(error_code);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::Late
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        let asked = join(broker, client, version, &self);
        coordinate!(broker, version, self, asked, JoinGroup(answer) => joined(version, answer))
    }
}

/// Distributes the assignment that the leader of a classic group has made.
impl Handle for SyncGroupRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_group(client, Operation::Read, &self.group_id)
    }

    refuse_with_code!();
    errors!(error_code);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::Late
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        let asked = Ok(sync(&self));
        coordinate!(broker, version, self, asked, SyncGroup(answer) => synced(version, answer))
    }
}

/// Keeps a member in a classic group.
impl Handle for HeartbeatRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_group(client, Operation::Read, &self.group_id)
    }

    refuse_with_code!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.plain()
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        let asked = Ok(Request::Heartbeat(Heartbeat {
            group: group(&self.group_id),
            member: member(&self.member_id),
            instance: instance(self.group_instance_id.as_ref()),
            generation: Generation(self.generation_id),
        }));
        coordinate!(broker, version, self, asked, Heartbeat(answer) => alive(answer))
    }
}

/// Removes members from a classic group.
impl Handle for LeaveGroupRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_group(client, Operation::Read, &self.group_id)
    }

    refuse_with_code!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.elements(self.members.len())
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        let asked = Ok(leave(version, &self));
        coordinate!(broker, version, self, asked, LeaveGroup(answer) => left(version, answer))
    }
}

fn join(
    broker: &Broker,
    client: &Client,
    version: i16,
    request: &JoinGroupRequest,
) -> Result<Request, ResponseError> {
    let protocols = request.protocols.iter().map(|protocol| Protocol {
        name: text(&protocol.name),
        metadata: bytes(&protocol.metadata),
    });
    // The oldest version knows one timeout.
    let rebalance_timeout = match version {
        0 => request.session_timeout_ms,
        _ => request.rebalance_timeout_ms,
    };
    Ok(Request::JoinGroup(JoinGroup {
        group: group(&request.group_id),
        member: member(&request.member_id),
        instance: instance(request.group_instance_id.as_ref()),
        client: client_of(client),
        session_timeout: milliseconds(request.session_timeout_ms),
        rebalance_timeout: milliseconds(rebalance_timeout),
        protocol_type: text(&request.protocol_type),
        protocols: protocols.collect(),
        member_id_required: version >= 4,
        can_skip_assignment: version >= 9,
        random: random_bytes(broker.random())?,
    }))
}

fn alive(answer: Result<(), GroupError>) -> HeartbeatResponse {
    HeartbeatResponse::default().with_error_code(code(answer.err()))
}

fn joined(version: i16, answer: Result<Joined, JoinRefused>) -> JoinGroupResponse {
    let response = JoinGroupResponse::default();
    let joined = match answer {
        Ok(joined) => joined,
        Err(refused) => {
            return response
                .with_error_code(refused.error.code())
                .with_generation_id(-1)
                // Before version 7 it cannot be null.
                .with_protocol_name((version < 7).then(StrBytes::default))
                .with_member_id(sent(&refused.member));
        }
    };
    let members = joined.members.iter().map(|member| {
        let instance = member.instance.as_ref().filter(|_| version >= 5);
        JoinGroupResponseMember::default()
            .with_member_id(sent(&member.member))
            .with_group_instance_id(instance.map(|id| sent(id)))
            .with_metadata(member.metadata.clone())
    });
    let protocol = joined.protocol.as_deref().map(sent);
    response
        .with_generation_id(joined.generation.0)
        .with_protocol_type(
            joined
                .protocol_type
                .as_deref()
                .filter(|_| version >= 7)
                .map(sent),
        )
        .with_protocol_name(protocol.or((version < 7).then(StrBytes::default)))
        .with_leader(sent(&joined.leader))
        .with_skip_assignment(joined.skip_assignment && version >= 9)
        .with_member_id(sent(&joined.member))
        .with_members(members.collect())
}

fn sync(request: &SyncGroupRequest) -> Request {
    let assignments = request.assignments.iter().map(|assignment| {
        let member = member(&assignment.member_id);
        (member, bytes(&assignment.assignment))
    });
    Request::SyncGroup(SyncGroup {
        group: group(&request.group_id),
        member: member(&request.member_id),
        instance: instance(request.group_instance_id.as_ref()),
        generation: Generation(request.generation_id),
        protocol_type: request.protocol_type.as_ref().map(text),
        protocol: request.protocol_name.as_ref().map(text),
        assignments: assignments.collect(),
    })
}

fn synced(version: i16, answer: Result<Synced, GroupError>) -> SyncGroupResponse {
    match answer {
        Ok(synced) => SyncGroupResponse::default()
            .with_protocol_type(
                synced
                    .protocol_type
                    .as_deref()
                    .filter(|_| version >= 5)
                    .map(sent),
            )
            .with_protocol_name(
                synced
                    .protocol
                    .as_deref()
                    .filter(|_| version >= 5)
                    .map(sent),
            )
            .with_assignment(synced.assignment),
        Err(error) => SyncGroupResponse::default().with_error_code(error.code()),
    }
}

fn leave(version: i16, request: &LeaveGroupRequest) -> Request {
    let members = match version {
        0..=2 => vec![LeavingMember {
            member: member(&request.member_id),
            instance: None,
        }],
        _ => {
            let members = request.members.iter().map(|leaving| LeavingMember {
                member: member(&leaving.member_id),
                instance: instance(leaving.group_instance_id.as_ref()),
            });
            members.collect()
        }
    };
    Request::LeaveGroup(LeaveGroup {
        group: group(&request.group_id),
        members,
    })
}

fn left(version: i16, answer: Result<Vec<LeftMember>, GroupError>) -> LeaveGroupResponse {
    let response = LeaveGroupResponse::default();
    match answer {
        Err(error) => response.with_error_code(error.code()),
        Ok(members) if version < 3 => {
            let error = members.into_iter().find_map(|member| member.error);
            response.with_error_code(code(error))
        }
        Ok(members) => {
            let members = members.iter().map(|left| {
                MemberResponse::default()
                    .with_member_id(sent(&left.member))
                    .with_group_instance_id(left.instance.as_ref().map(|id| sent(id)))
                    .with_error_code(code(left.error))
            });
            response.with_members(members.collect())
        }
    }
}
