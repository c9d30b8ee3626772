//! The process of the flow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{env, fs, thread};

use millstream_client::{ClientConfig, ConsumerConfig};
use millstream_connect::{ServerCheckpoints, ServerEnd, ServerSource};
use millstream_flow::{Checkpointing, Emit, Flow, FlowSettings, Resume, StateReader};

use crate::events::{Counts, user_and_page};
use crate::processes::{ADDRESS, REPORT, TOPIC};

/// Events between two pauses, which make the flow slow enough to be killed.
const EVENTS: u64 = 64;
const PAUSE: Duration = Duration::from_millis(5);

/// Counts all events that the server has, and reports the counts: no test of its own.
#[test]
#[ignore = "started by each_event_counts_once_although_flow_and_server_are_killed"]
fn flow_that_the_test_kills() {
    let (Ok(address), Ok(report)) = (env::var(ADDRESS), env::var(REPORT)) else {
        return;
    };
    let server = ClientConfig::new(&address);
    let consumer = ConsumerConfig::default();
    let sources = ServerSource::of_stream(&server, &consumer, TOPIC, 1, ServerEnd::Now);
    let checkpoints = Checkpointing {
        store: Arc::new(ServerCheckpoints::new(&server, "clicks").unwrap()),
        interval: Some(Duration::from_millis(50)),
        resume: Resume::IfAny,
    };
    let settings = FlowSettings {
        checkpoints: Some(checkpoints),
        ..FlowSettings::default()
    };
    let flow = Flow::with_settings("clicks", settings);
    let values = ["users", "pages"].map(|name| flow.values::<String, u64>(name));
    let events = AtomicU64::new(0);
    flow.sources("events", sources.unwrap())
        .each(move |record, emit: &mut Emit<(usize, String)>| {
            if events
                .fetch_add(1, Ordering::Relaxed)
                .is_multiple_of(EVENTS)
            {
                thread::sleep(PAUSE);
            }
            let keys = user_and_page(record.value.unwrap_or_default());
            keys.into_iter().enumerate().for_each(|key| emit(&key));
            Ok(())
        })
        .fork(
            &["users", "pages"],
            |(kind, _)| *kind,
            |kind, keys| {
                let name = ["count users", "count pages"][kind];
                keys.key_by(|(_, key)| key.clone())
                    .count(name, &values[kind])
            },
        );
    flow.run().unwrap().join().unwrap();
    let counts: Counts = values.map(|values| {
        let keys = values.keys(usize::MAX).into_iter();
        let count = |key: &String| values.get(key).unwrap();
        keys.map(|key| (count(&key), key))
            .map(|(count, key)| (key, count))
            .collect()
    });
    fs::write(report, serde_json::to_vec(&counts).unwrap()).unwrap();
}
