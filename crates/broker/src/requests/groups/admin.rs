//! Groups as administrators see them: DescribeGroups, ListGroups, DeleteGroups.

use std::sync::Arc;

use millstream_wire::ResponseError;
use millstream_wire::messages::delete_groups_response::{
    DeletableGroupResult, DeleteGroupsResponse,
};
use millstream_wire::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, DescribeGroupsResponse, ListGroupsRequest,
    ListGroupsResponse, describe_groups_response as describe, list_groups_response as list,
};

use super::convert::{code, group_id, groups, sent};
use super::{coordinate, unavailable};
use crate::access::Access;
use crate::broker::Broker;
use crate::client::Client;
use crate::groups::{Answer, DescribedGroup, ListGroups, ListedGroup, Request};
use crate::reply::Reply;
use crate::requests::bounds::{Bound, BoundContext};
use crate::requests::handle::{Edit, Handle, Refusal, each, errors, messages, refuse_with_code};
use crate::requests::rights::{Check, GROUP_DENIED, group_operations, items, may_group};
use crate::security::{Operation, Resource};

/// The first version of DescribeGroups with an error message.
const DESCRIBE_MESSAGE_FROM: i16 = 6;

/// Describes classic groups and their members.
impl Handle for DescribeGroupsRequest {
    const CHECKS: &'static [Check] = &[Check::Items, Check::Operations];

    items! { groups:
        groups, GROUP_DENIED, |client, name| may_group(client, Operation::Describe, name);
    }
    group_operations!();

    fn refuse(&self, refusal: &Refusal) -> DescribeGroupsResponse {
        let has_message = refusal.version >= DESCRIBE_MESSAGE_FROM;
        DescribeGroupsResponse::default().with_groups(each(&self.groups, |group| {
            describe::DescribedGroup::default()
                .with_group_id(group.clone())
                .with_error_code(refusal.code)
                .with_error_message(refusal.message.clone().filter(|_| has_message))
        }))
    }

    errors!(groups.error_code);
    messages!(groups.error_message);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::State
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        let asked = Ok(Request::DescribeGroups(groups(&self.groups)));
        coordinate!(broker, version, self, asked, DescribeGroups(answer) => described(version, answer))
    }
}

/// Lists the groups of all kinds.
impl Handle for ListGroupsRequest {
    const CHECKS: &'static [Check] = &[Check::Listed];

    fn hide(&self, access: &Access) -> Option<Edit<Self>> {
        // A client that may describe the cluster sees all groups.
        if access.would(Operation::Describe, Resource::CLUSTER) {
            return None;
        }
        let access = access.clone();
        Some(Box::new(move |answer| {
            answer.groups.retain(|group| {
                let group = Resource::group(&group.group_id);
                access.would(Operation::Describe, group)
            });
        }))
    }

    refuse_with_code!();
    errors!(error_code);

    fn bound(&self, _: &mut BoundContext<'_>) -> Bound {
        Bound::State
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        let asked = ListGroups::named(&self.states_filter, &self.types_filter);
        let asked = Ok(Request::ListGroups(asked));
        coordinate!(broker, version, self, asked, ListGroups(answer) => listed(version, answer))
    }
}

/// Deletes groups without members.
impl Handle for DeleteGroupsRequest {
    const CHECKS: &'static [Check] = &[Check::Items];

    items! { results:
        groups_names, GROUP_DENIED, |client, name| may_group(client, Operation::Delete, name);
    }

    fn refuse(&self, refusal: &Refusal) -> DeleteGroupsResponse {
        DeleteGroupsResponse::default().with_results(each(&self.groups_names, |group| {
            DeletableGroupResult::default()
                .with_group_id(group.clone())
                .with_error_code(refusal.code)
        }))
    }

    errors!(results.error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.elements(self.groups_names.len())
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        let (service, shares) = (Arc::clone(broker.groups()), Arc::clone(broker.shares()));
        let (answer, durable) = shares.delete_groups(groups(&self.groups_names));
        Reply::later(async move {
            let results = match answer.await {
                Ok(Answer::DeleteGroups(results)) => results,
                Ok(_) => return self.refused(version, ResponseError::InvalidRequest),
                Err(_) => return self.refused(version, unavailable(&service)),
            };
            // If that fails, the next start removes the share-partitions.
            let _ = shares.durable(durable).await;
            let results = results.into_iter().map(|(group, result)| {
                DeletableGroupResult::default()
                    .with_group_id(group_id(&group))
                    .with_error_code(code(result.err()))
            });
            DeleteGroupsResponse::default().with_results(results.collect())
        })
    }
}

fn described(version: i16, groups: Vec<DescribedGroup>) -> DescribeGroupsResponse {
    let groups = groups.into_iter().map(|group| {
        let members = group.members.into_iter().map(|member| {
            let instance = member.instance.as_ref().filter(|_| version >= 4);
            describe::DescribedGroupMember::default()
                .with_member_id(sent(&member.member))
                .with_group_instance_id(instance.map(|id| sent(id)))
                .with_client_id(sent(&member.client.id))
                .with_client_host(sent(&member.client.host))
                .with_member_metadata(member.metadata)
                .with_member_assignment(member.assignment)
        });
        // Before version 6 only the state says so.
        let error = group.error.filter(|_| version >= 6);
        describe::DescribedGroup::default()
            .with_error_code(code(error))
            .with_error_message(error.map(|error| sent(&error.to_string())))
            .with_group_id(group_id(&group.group))
            .with_group_state(sent(group.state.as_str()))
            .with_protocol_type(sent(&group.protocol_type))
            .with_protocol_data(sent(&group.protocol))
            .with_members(members.collect())
    });
    DescribeGroupsResponse::default().with_groups(groups.collect())
}

fn listed(version: i16, groups: Vec<ListedGroup>) -> ListGroupsResponse {
    let groups = groups.into_iter().map(|group| {
        let listed = list::ListedGroup::default()
            .with_group_id(group_id(&group.group))
            .with_protocol_type(sent(&group.protocol_type));
        let listed = match version >= 4 {
            true => listed.with_group_state(sent(group.state.as_str())),
            false => listed,
        };
        match version >= 5 {
            true => listed.with_group_type(sent(group.group_type.as_str())),
            false => listed,
        }
    });
    ListGroupsResponse::default().with_groups(groups.collect())
}
