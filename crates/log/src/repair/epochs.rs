//! Leader epochs for a list of files that is made anew: as the heads of the groups' files have them, and the chunks of the last group.
//! Epochs that no chunk has are lost.

use std::io::ErrorKind;

use millstream_base::Offset;
use millstream_base::disk::Access;

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::files::manifest::{Listed, Record};
use crate::ids::{GroupName, LaneId};
use crate::recovery::scan::read_header;

/// Lists the leader epochs of all lanes.
pub fn list_epochs(dir: &DataDir, listed: &mut Listed) -> Result<()> {
    let lanes = listed.lanes();
    let lanes: Vec<(LaneId, Vec<GroupName>)> = lanes
        .map(|(id, lane)| (id, lane.groups(id).collect()))
        .collect();
    for (lane, groups) in lanes {
        let mut last = 0;
        for (n, name) in groups.iter().enumerate() {
            let is_last = n + 1 == groups.len();
            each_epoch(dir, name, is_last, |epoch, from| {
                if epoch > last {
                    last = epoch;
                    let added = listed.apply(Record::Epoch { lane, epoch, from });
                    added.expect("it is larger than the others");
                }
            })?;
        }
    }
    Ok(())
}

/// Calls `each` with the epoch of the group's beginning, and, if `has_more`, with the epochs of its chunks up to the end or
/// to the first damage, which the start looks for.
fn each_epoch(
    dir: &DataDir,
    name: &GroupName,
    has_more: bool,
    mut each: impl FnMut(i32, Offset),
) -> Result<()> {
    let path = dir.group_path(name);
    let (file, head) = match dir.open_with_head(name, Access::Read) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(|error| LogError::io("read", &path, error))?,
    };
    let Some(head) = head else {
        return Ok(());
    };
    each(head.leader_epoch, name.first_offset);
    let mut at = 0;
    while has_more && let Some(header) = read_header(&*file, &path, at)? {
        each(header.leader_epoch, header.base_offset);
        at += u64::from(header.total_bytes);
    }
    Ok(())
}
