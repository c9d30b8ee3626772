//! Subscriptions give only committed records: compares them with a list.

use millstream_base::{Offset, ProducerEpoch, ProducerId};
use millstream_log::Subscription;
use millstream_record::{EndMarker, TransactionEnd};
use proptest::prelude::*;

use crate::{append, chunk, values, with_stream};

/// A step of a test on a lane.
#[derive(Debug, Clone)]
enum Step {
    Plain(u8),
    Transactional { producer: u8, value: u8 },
    End { producer: u8, commits: bool },
    Read,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => any::<u8>().prop_map(Step::Plain),
        4 => (0..3u8, any::<u8>()).prop_map(|(producer, value)| Step::Transactional { producer, value }),
        2 => (0..3u8, any::<bool>()).prop_map(|(producer, commits)| Step::End { producer, commits }),
        2 => Just(Step::Read),
    ]
}

/// A lane, as a list.
#[derive(Default)]
struct Model {
    /// Value, producer of the open transaction, whether it counts.
    records: Vec<(u8, Option<u8>, bool)>,
}

impl Model {
    fn end(&mut self, producer: u8, commits: bool) {
        for record in &mut self.records {
            if record.1 == Some(producer) {
                (record.1, record.2) = (None, commits);
            }
        }
    }

    fn committed(&self) -> Vec<u8> {
        let stable = self.records.iter().take_while(|record| record.1.is_none());
        stable
            .filter(|record| record.2)
            .map(|record| record.0)
            .collect()
    }
}

proptest! {
    /// Both kinds of subscriptions give each committed chunk once and in order, whenever they read.
    #[test]
    fn a_subscription_gives_each_committed_chunk_once(steps in prop::collection::vec(step(), 1..120)) {
        let (_dir, log, stream) = with_stream(1);
        let lane = stream.partition(0).unwrap();
        let mut by_offset = Subscription::of_partitions([(lane.clone(), Offset(0))]);
        let mut by_group =
            Subscription::of_shared_group(&log, &stream, "app", "one".to_owned()).unwrap();
        let (mut seen, mut seen_by_group) = (Vec::new(), Vec::new());
        let mut model = Model::default();
        let mut sequences = [0; 3];
        let wide = |value: u8| vec![value; 2_000];
        for step in steps.into_iter().chain([Step::Read]) {
            match step {
                Step::Plain(value) => {
                    append(&log, &lane, &wide(value));
                    model.records.push((value, None, true));
                }
                Step::Transactional { producer, value } => {
                    let sequence = &mut sequences[producer as usize];
                    let producing = Some((i64::from(producer), *sequence));
                    lane.append(&chunk(producing, true, &wide(value))).unwrap();
                    *sequence += 1;
                    while log.step() {}
                    model.records.push((value, Some(producer), true));
                }
                Step::End { producer, commits } => {
                    let marker = EndMarker {
                        producer_id: ProducerId(producer.into()),
                        producer_epoch: ProducerEpoch(0),
                        end: if commits { TransactionEnd::Commit } else { TransactionEnd::Abort },
                        coordinator_epoch: 0,
                    };
                    lane.append_marker(&marker).unwrap();
                    while log.step() {}
                    model.end(producer, commits);
                }
                Step::Read => {
                    seen.extend(values(&mut by_offset).iter().map(|(_, value)| value[0]));
                    seen_by_group.extend(values(&mut by_group).iter().map(|(_, value)| value[0]));
                    prop_assert_eq!(&seen, &model.committed());
                    prop_assert_eq!(&seen_by_group, &seen);
                }
            }
        }
    }
}
