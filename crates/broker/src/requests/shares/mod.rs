//! Records and offsets of share groups.

mod acknowledge;
mod fetch;
mod offsets;

use millstream_wire::messages::GroupId;
use millstream_wire::{ResponseError, StrBytes};

use super::rights::{Checked, need_group};
use crate::client::Client;
use crate::groups::config::{GROUP_NAME_BYTES_MAX, ID_BYTES_MAX};
use crate::groups::{GroupName, MemberId};
use crate::security::Operation;

/// Checks the right to read records of a group; a request without a group is refused later.
fn need_reader(client: &Client, group: Option<&GroupId>) -> Checked {
    need_group(client, Operation::Read, group.map_or("", |group| &***group))
}

/// The group and the member of a request.
fn names(
    group: Option<&GroupId>,
    member: Option<&StrBytes>,
) -> Result<(GroupName, MemberId), ResponseError> {
    let group = group.map_or("", |group| &***group);
    let member = member.map_or("", |member| &**member);
    let is_valid = (1..=GROUP_NAME_BYTES_MAX).contains(&group.len())
        && (1..=ID_BYTES_MAX).contains(&member.len());
    match is_valid {
        true => Ok((GroupName::from(group), MemberId::from(member))),
        false => Err(ResponseError::InvalidRequest),
    }
}
