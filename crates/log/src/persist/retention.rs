//! Retention: groups that are too old, too many or deleted are removed, oldest first.

use std::sync::Arc;

use millstream_base::{Offset, Timestamp};

use crate::core::Core;
use crate::error::Result;
use crate::group::Group;
use crate::lane::LaneState;
use crate::settings::config::{Durability, StreamConfig};
use crate::settings::defaults::is_without_retention;
use crate::stream::StreamState;

impl Core {
    /// Removes the groups that retention has expired. Returns their number.
    pub fn retain(&self, now: Timestamp) -> Result<u64> {
        let streams: Vec<Arc<StreamState>> = self.streams.read().by_id.values().cloned().collect();
        let mut removed = 0;
        // A lane that was given up does not stop the others.
        let mut result = Ok(());
        for stream in streams {
            let config = self.effective(stream.kind, stream.shared.config.read().clone());
            let is_bounded = (config.retention.is_some() || config.retention_ms.is_some())
                && !is_without_retention(&config.settings);
            for lane in stream.made_lanes() {
                let mut retained = self.remove_deleted(&lane);
                if is_bounded {
                    let retain = |count| Ok(count + self.retain_lane(&lane, &config, now)?);
                    retained = retained.and_then(retain);
                }
                match retained {
                    Ok(count) => removed += count,
                    Err(error) => result = result.and(Err(error)),
                }
            }
        }
        result.map(|()| removed)
    }

    /// Removes the groups of which all was deleted.
    pub fn remove_deleted(&self, lane: &LaneState) -> Result<u64> {
        let start = lane.start.offset();
        if start == Offset(0) {
            return Ok(0);
        }
        if lane.is_emptied() {
            // The last group would stay.
            lane.roll();
        }
        let groups = lane.groups();
        let is_deleted = |group: &&Arc<Group>| group.end().is_some_and(|end| end.offset <= start);
        let deleted = groups.iter().take_while(is_deleted).count();
        // The last group holds the lane's next offset.
        let deleted = deleted.min(groups.len().saturating_sub(1));
        if deleted > 0 {
            self.remove_groups_before(lane, &groups[deleted])?;
        }
        Ok(deleted as u64)
    }

    fn retain_lane(&self, lane: &LaneState, config: &StreamConfig, now: Timestamp) -> Result<u64> {
        let is_old = |newest: Timestamp| {
            config.retention_ms.is_some_and(|keep_ms| {
                let keep_ms = i64::try_from(keep_ms).unwrap_or(i64::MAX);
                newest.0 < now.0.saturating_sub(keep_ms)
            })
        };
        // A lane without further appends would keep its last group for ever.
        if lane.open_max_timestamp().is_some_and(is_old)
            && config.durability != Durability::Memory
            && let Some(next) = lane.roll()
        {
            // The next group's file carries the lane's offset on: it must be there before the
            // last group goes.
            self.persist(vec![Arc::clone(&next)]);
            self.found(lane, &next)?;
        }
        let groups = lane.groups();
        let mut bytes: u64 = groups.iter().map(|group| group.durable().0).sum();
        let mut expired = 0;
        // The last group stays: it holds the lane's next offset.
        for group in &groups[..groups.len().saturating_sub(1)] {
            let Some(end) = group.end() else {
                break;
            };
            let left = bytes.saturating_sub(end.position.0);
            // The bound is the least that stays, as in Kafka.
            let too_large = config.retention.is_some_and(|keep| left >= keep.0);
            let written = config.durability == Durability::Memory || end.position <= group.synced();
            if !(too_large || is_old(end.max_timestamp)) || !written {
                break;
            }
            bytes = left;
            expired += 1;
        }
        if expired == 0 {
            return Ok(0);
        }
        let mut result = Ok(());
        if config.durability != Durability::Memory {
            // It holds the lane's next offset, when the journal holds only some of those before it.
            result = self.found(lane, &groups[expired]);
            if result.is_err() {
                // On a full disk, retention removes groups whose removal needs no new file.
                while expired > 0 && !groups[expired].has_file() {
                    expired -= 1;
                }
            }
        }
        self.remove_first(lane, &groups[..expired], &groups[expired])?;
        result.map(|()| expired as u64)
    }
}
