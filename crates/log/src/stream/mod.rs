//! Streams: streamlets with their lanes, and the virtual logs that these share.
//!
//! Streams only grow. The state of a lane is made when the lane is first used: most lanes of a large stream hold nothing. Code
//! that visits all lanes visits those that were made. Streams know neither the catalog nor how their lanes are written.

pub mod partitions;
pub mod producer_lanes;
pub mod registry;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use event_listener::Event;
use hashbrown::HashSet;
use millstream_base::{GroupId, LaneIndex, ProducerId, StreamId, StreamletIndex};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::hold::StreamHolds;
use crate::ids::LaneId;
use crate::lane::LaneState;
use crate::lane::shared::{KeyedState, StreamShared, StreamletShared};
use crate::lane::stored::StoredLane;
use crate::lane::virtual_log::VirtualLog;
use crate::settings::config::StreamConfig;
use crate::settings::limits::{Limits, LiveLimits};
use crate::stream::producer_lanes::ProducerLanes;

/// How many streamlets and lanes a stream has had from some moment on. Streams only grow; the
/// series of shapes gives each lane its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Logical partitions (M).
    pub streamlets: u32,
    /// Lanes of each (Q).
    pub lanes: u32,
}

/// The purpose of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamKind {
    /// A user's stream.
    Stream,
    /// The content of an object.
    Object,
    /// The log's own.
    Internal,
}

/// The names of a stream.
#[derive(Debug, Clone, Copy)]
pub struct StreamIdentity<'a> {
    pub id: StreamId,
    pub uuid: Uuid,
    pub name: &'a str,
}

#[derive(Debug)]
pub struct StreamState {
    pub shared: Arc<StreamShared>,
    pub kind: StreamKind,
    /// How many virtual logs its lanes share.
    virtual_logs_max: usize,
    /// The longest run of its virtual logs.
    run_bytes_max: usize,
    layout: RwLock<Layout>,
    /// The lanes that have a state. One is added before it takes anything: an append to a lane that is not in the list
    /// comes after all changes before the list was read.
    made: Mutex<Vec<Arc<LaneState>>>,
    /// The lanes of producers with duplicate detection: a producer stays on its lane when the stream
    /// grows, since the lane knows its sequence.
    producer_lanes: Mutex<ProducerLanes>,
    /// The lane for the next chunk without a producer.
    next_lane: AtomicUsize,
}

#[derive(Debug, Default)]
struct Layout {
    shapes: Vec<Shape>,
    streamlets: Vec<Streamlet>,
    /// By partition: in the order in which the stream grew.
    lanes: Vec<LaneSlot>,
    /// Made with the first lane of each.
    virtual_logs: Vec<Arc<VirtualLog>>,
}

#[derive(Debug)]
struct Streamlet {
    shared: Arc<StreamletShared>,
    /// The partitions of its lanes.
    partitions: Vec<u32>,
}

/// A lane, whose state is made when it is first needed: that takes more than a kilobyte.
#[derive(Debug)]
struct LaneSlot {
    streamlet: StreamletIndex,
    lane: LaneIndex,
    state: OnceLock<Arc<LaneState>>,
}

impl StreamState {
    /// A stream with the lanes of `shapes`; `stored` returns the state that recovery found of each.
    pub fn new(
        named: StreamIdentity<'_>,
        kind: StreamKind,
        config: StreamConfig,
        shapes: &[Shape],
        limits: Limits,
        mut stored: impl FnMut(LaneId) -> StoredLane,
    ) -> StreamState {
        let stream = StreamState {
            virtual_logs_max: config.virtual_logs as usize,
            run_bytes_max: limits.run_bytes_max,
            shared: Arc::new(StreamShared {
                id: named.id,
                uuid: named.uuid,
                name: named.name.to_owned(),
                durability: config.durability,
                limits: LiveLimits::new(limits),
                config: RwLock::new(config),
                durable_moved: Event::new(),
                grown: Event::new(),
                removed: AtomicBool::new(false),
                partitions: AtomicU32::new(0),
                keyed: KeyedState::default(),
                holds: StreamHolds::default(),
                has_shared_groups: AtomicBool::new(false),
            }),
            kind,
            layout: RwLock::default(),
            made: Mutex::default(),
            producer_lanes: Mutex::default(),
            next_lane: AtomicUsize::new(0),
        };
        for shape in shapes {
            stream.grow(*shape, &mut stored);
        }
        stream
    }

    /// Adds the streamlets and lanes that `shape` has more than the last one.
    pub fn grow(&self, shape: Shape, mut stored: impl FnMut(LaneId) -> StoredLane) {
        let mut layout = self.layout.write();
        while layout.streamlets.len() < shape.streamlets as usize {
            layout.streamlets.push(Streamlet {
                shared: Arc::new(StreamletShared {
                    next_group: AtomicU64::new(1),
                }),
                partitions: Vec::new(),
            });
        }
        layout.shapes.push(shape);
        for streamlet in 0..layout.streamlets.len() {
            while layout.streamlets[streamlet].partitions.len() < shape.lanes as usize {
                let partition = layout.lanes.len();
                let partitions = &mut layout.streamlets[streamlet].partitions;
                let id = LaneId {
                    stream: self.shared.id,
                    streamlet: StreamletIndex(streamlet as u32),
                    lane: LaneIndex(partitions.len() as u32),
                };
                partitions.push(partition as u32);
                if partition < self.virtual_logs_max {
                    let new = VirtualLog::new(self.run_bytes_max, self.shared.durability);
                    layout.virtual_logs.push(Arc::new(new));
                } else {
                    layout.virtual_logs[partition % self.virtual_logs_max].set_shared();
                }
                layout.lanes.push(LaneSlot {
                    streamlet: id.streamlet,
                    lane: id.lane,
                    state: OnceLock::new(),
                });
                let stored = stored(id);
                if !stored.is_empty() {
                    self.restore(&layout, partition, stored);
                }
            }
        }
        let count = layout.lanes.len() as u32;
        self.shared.partitions.store(count, Ordering::Release);
    }

    /// Makes a lane of which recovery found something.
    fn restore(&self, layout: &Layout, partition: usize, stored: StoredLane) {
        let LaneSlot {
            streamlet, lane, ..
        } = layout.lanes[partition];
        if let Some(GroupId(last)) = stored.last_group {
            let streamlet = &layout.streamlets[streamlet.0 as usize];
            let next_group = &streamlet.shared.next_group;
            next_group.fetch_max(last + 1, Ordering::Relaxed);
        }
        let state = self.make(layout, partition, stored);
        let mut producer_lanes = self.producer_lanes.lock();
        for producer in state.producer_ids() {
            producer_lanes.lanes.insert((streamlet, producer), lane);
        }
    }

    /// Returns the lane of an existing partition.
    fn made(&self, layout: &Layout, partition: usize) -> Arc<LaneState> {
        match layout.lanes[partition].state.get() {
            Some(state) => Arc::clone(state),
            None => self.make(layout, partition, StoredLane::default()),
        }
    }

    fn make(&self, layout: &Layout, partition: usize, stored: StoredLane) -> Arc<LaneState> {
        let slot = &layout.lanes[partition];
        let state = slot.state.get_or_init(|| {
            let id = LaneId {
                stream: self.shared.id,
                streamlet: slot.streamlet,
                lane: slot.lane,
            };
            let streamlet = &layout.streamlets[slot.streamlet.0 as usize];
            let state = Arc::new(LaneState::new(
                id,
                partition as u32,
                Arc::clone(&self.shared),
                Arc::clone(&streamlet.shared),
                Arc::clone(&layout.virtual_logs[partition % self.virtual_logs_max]),
                stored,
            ));
            self.made.lock().push(Arc::clone(&state));
            state
        });
        Arc::clone(state)
    }

    /// Whether it is deleted, though perhaps not durably yet.
    pub fn is_removed(&self) -> bool {
        self.shared.removed.load(Ordering::Acquire)
    }

    pub fn shapes(&self) -> Vec<Shape> {
        self.layout.read().shapes.clone()
    }

    /// The lanes that have a state: the others have never been asked for, and hold nothing.
    pub fn made_lanes(&self) -> Vec<Arc<LaneState>> {
        self.made.lock().clone()
    }

    /// Returns the result of `each` for all lanes, by partition; `None` is a lane without a state.
    pub fn each_lane<T>(
        &self,
        each: impl Fn(u32, StreamletIndex, LaneIndex, Option<&LaneState>) -> T,
    ) -> Vec<T> {
        let layout = self.layout.read();
        let lanes = layout.lanes.iter().enumerate();
        let each = |(partition, slot): (usize, &LaneSlot)| {
            let state = slot.state.get().map(|state| &**state);
            each(partition as u32, slot.streamlet, slot.lane, state)
        };
        lanes.map(each).collect()
    }

    pub fn partition_count(&self) -> u32 {
        self.layout.read().lanes.len() as u32
    }

    pub fn lane(&self, streamlet: StreamletIndex, lane: LaneIndex) -> Option<Arc<LaneState>> {
        let layout = self.layout.read();
        let streamlet = layout.streamlets.get(streamlet.0 as usize)?;
        let partition = *streamlet.partitions.get(lane.0 as usize)?;
        Some(self.made(&layout, partition as usize))
    }

    pub fn partition(&self, partition: u32) -> Option<Arc<LaneState>> {
        let layout = self.layout.read();
        let partition = partition as usize;
        (partition < layout.lanes.len()).then(|| self.made(&layout, partition))
    }

    /// The lanes of one streamlet.
    pub fn streamlet(&self, streamlet: StreamletIndex) -> Option<Vec<Arc<LaneState>>> {
        let layout = self.layout.read();
        let streamlet = layout.streamlets.get(streamlet.0 as usize)?;
        let partitions = streamlet.partitions.iter();
        Some(
            partitions
                .map(|partition| self.made(&layout, *partition as usize))
                .collect(),
        )
    }

    /// The lane for a producer's chunk: the entry "producer modulo Q" of the streamlet (kera 6.2.3),
    /// or the one that it has used before; without a producer the next in turn.
    pub fn lane_for(
        &self,
        streamlet: StreamletIndex,
        producer: ProducerId,
    ) -> Option<Arc<LaneState>> {
        let layout = self.layout.read();
        let lanes = &layout.streamlets.get(streamlet.0 as usize)?.partitions;
        let index = if producer == ProducerId::NONE {
            self.next_lane.fetch_add(1, Ordering::Relaxed) % lanes.len()
        } else {
            let modulo = (producer.0.unsigned_abs() % lanes.len() as u64) as u32;
            let mut producer_lanes = self.producer_lanes.lock();
            let known = || known_producers(&self.made_lanes());
            let lane = producer_lanes.lane_of((streamlet, producer), LaneIndex(modulo), known);
            lane.0 as usize
        };
        let partition = *lanes.get(index)?;
        Some(self.made(&layout, partition as usize))
    }
}

fn known_producers(lanes: &[Arc<LaneState>]) -> HashSet<(StreamletIndex, ProducerId)> {
    let of_lane = |lane: &Arc<LaneState>| {
        let streamlet = lane.id.streamlet;
        let producers = lane.producer_ids().into_iter();
        producers.map(move |producer| (streamlet, producer))
    };
    lanes.iter().flat_map(of_lane).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::expiry::KeyedClock;

    #[test]
    fn the_state_of_an_empty_lane_is_created_on_first_use() {
        let named = StreamIdentity {
            id: StreamId(16),
            uuid: Uuid::nil(),
            name: "a",
        };
        let limits = Limits {
            chunk_bytes_max: 1 << 20,
            segment_bytes_max: 1 << 20,
            group_bytes_max: 1 << 20,
            run_bytes_max: 1 << 20,
            needs_keys: false,
            ttl: None,
            keyed_clock: KeyedClock::Wall,
            secondary: Arc::default(),
            intake: None,
        };
        let shape = |streamlets, lanes| Shape { streamlets, lanes };
        let shapes = [shape(100, 1), shape(100, 3)];
        let found = |id: LaneId| StoredLane {
            last_group: None,
            next_offset: millstream_base::Offset(u64::from(id.streamlet == StreamletIndex(7))),
            ..StoredLane::default()
        };
        let (kind, config) = (StreamKind::Stream, StreamConfig::default());
        let stream = StreamState::new(named, kind, config, &shapes, limits, found);
        assert_eq!(
            (stream.partition_count(), stream.made_lanes().len()),
            (300, 3)
        );

        let places = stream.each_lane(|partition, streamlet, lane, state| {
            assert_eq!(state.is_some(), streamlet == StreamletIndex(7));
            (partition, streamlet.0, lane.0)
        });
        assert_eq!((places[99], places[100]), ((99, 99, 0), (100, 0, 1)));
        assert_eq!((places[101], places[102]), ((101, 0, 2), (102, 1, 1)));

        let lane = stream.partition(102).expect("it is there");
        assert_eq!((lane.id.streamlet.0, lane.id.lane.0), (1, 1));
        let again = stream.lane(StreamletIndex(1), LaneIndex(1));
        assert!(Arc::ptr_eq(&lane, &again.expect("it is there")));
        assert_eq!(stream.made_lanes().len(), 4);
        assert!(stream.partition(300).is_none());
    }
}
