//! Closing segments and groups, beside appends: for eviction, retention, compaction and the end of the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashSet;
use millstream_base::{GroupId, Offset, Position, Timestamp};

use crate::group::Group;
use crate::ids::GroupName;
use crate::index::entry::{EntryKind, Fingerprint};
use crate::lane::LaneState;
use crate::lane::head::{Head, OpenGroup};

impl LaneState {
    /// Closes the head segment, so that its buffer can be given back: the lane is idle, or memory is
    /// short. `false` when there is none, or when it holds chunks that are not durable yet.
    pub fn close_head_segment(&self) -> bool {
        let mut head = self.head.lock();
        let Some(open) = &mut head.open else {
            return false;
        };
        if open.writer.is_none() || open.group.durable() < open.position {
            return false;
        }
        open.writer = None;
        open.group.close_segment(open.position);
        true
    }

    /// Closes the open group of a lane that is never written to disk, so that its memory can be
    /// taken.
    pub fn close_memory_only_group(&self) {
        debug_assert!(self.is_memory_only());
        let mut head = self.head.lock();
        head.close_group();
    }

    /// Closes the open group, so that retention or compaction can take it, and begins the next one
    /// at the same offset. `None` when the open group is empty or holds chunks that are not durable yet.
    pub fn roll(&self) -> Option<Arc<Group>> {
        if self.fault().is_some() {
            // A group behind missing chunks would hide that they are missing.
            return None;
        }
        let mut head = self.head.lock();
        let next_offset = head.next_offset;
        let open = head.open.as_ref()?;
        if open.position == Position(0) || open.group.durable() < open.position {
            return None;
        }
        head.close_group();
        let mut next = self.new_group(next_offset);
        next.add_index_entry(EntryKind::SegmentStart, next_offset, &head.producers);
        let group = Arc::clone(&next.group);
        head.open = Some(next);
        Some(group)
    }

    /// Discards chunks that are not durable, and begins a group behind the durable ones, so that all before it can be
    /// removed. The lane has a fault, so nothing comes into that group, and no producer state
    /// remembers the chunks that are given up.
    pub fn give_up(&self) -> Arc<Group> {
        assert!(self.fault().is_some(), "an append may come");
        let mut head = self.head.lock();
        let durable = self.durable_offset();
        head.next_offset = durable;
        self.early_offset.store(0, Ordering::Release);
        if let Some(OpenGroup {
            group, position, ..
        }) = &head.open
            && *position == Position(0)
            && group.first_offset == durable
        {
            return Arc::clone(group);
        }
        head.close_group();
        let next = head.open.insert(self.new_group(durable));
        Arc::clone(&next.group)
    }

    /// Adds an index entry for the end of the open group, so that the next start need not read the bytes before it.
    pub fn index_end(&self) {
        if self.fault().is_some() {
            // The index of a damaged group shows the next start the missing bytes.
            return;
        }
        let mut head = self.head.lock();
        let Head {
            open,
            producers,
            next_offset,
            ..
        } = &mut *head;
        if let Some(open) = open
            && open.indexed_at < open.position
            && open.group.durable() == open.position
        {
            open.add_index_entry(EntryKind::Within, *next_offset, producers);
        }
    }

    /// Begins a group. The caller holds the lock of the lane's head.
    pub fn new_group(&self, first_offset: Offset) -> OpenGroup {
        let id = GroupId(self.streamlet.next_group.fetch_add(1, Ordering::Relaxed));
        let name = GroupName::of_new(self.id, id, first_offset);
        let group = Arc::new(Group::new(name, self.stream.uuid, self.epochs.current()));
        self.groups.write().push_back(Arc::clone(&group));
        OpenGroup {
            group,
            writer: None,
            position: Position(0),
            is_memory_only: self.is_memory_only(),
            bytes_max: self.stream.limits.group_bytes_max(),
            max_timestamp: Timestamp(i64::MIN),
            fingerprint: Fingerprint::default(),
            indexed_at: Position(0),
            changed: HashSet::new(),
            aborted: Vec::new(),
            aborted_count: 0,
        }
    }
}
