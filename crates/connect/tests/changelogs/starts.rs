//! Starts of a flow that are refused while another run of it goes on over the server.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_connect::{EncodedRecord, StreamSink};
use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{
    Checkpointing, Checkpoints, Flow, FlowError, FlowSettings, Resume, Running, Value, Watermarks,
};
use millstream_log::StreamConfig;

use crate::flows::{check_is_lost, wait_for_checkpoints};
use crate::support::World;

/// Counts numbers for ever, in state with a changelog and in windows.
#[derive(Clone, Copy)]
struct Program {
    resume: Resume,
    state: &'static str,
    window_ms: i64,
    has_sink: bool,
}

const PROGRAM: Program = Program {
    resume: Resume::Always,
    state: "users",
    window_ms: 1_000,
    has_sink: false,
};

impl Program {
    /// Starts it with values of this type.
    fn start<V: Value + Default>(
        self,
        world: &World,
        store: &Arc<dyn Checkpoints>,
        ranks: &Ranks,
    ) -> Result<Running, FlowError> {
        let settings = FlowSettings {
            ranks: ranks.clone(),
            checkpoints: Some(Checkpointing {
                store: Arc::clone(store),
                interval: Some(Duration::from_millis(50)),
                resume: self.resume,
            }),
            ..FlowSettings::default()
        };
        let flow = Flow::with_settings("shop", settings);
        let values = flow.values::<u64, V>(self.state);
        let totals = flow.windowed("totals", Windows::tumbling(self.window_ms), Count);
        let nothing = flow.partial::<u64>("nothing");
        let numbers = || {
            Generator::new(|number| {
                thread::sleep(Duration::from_micros(100));
                number
            })
        };
        flow.source("numbers", numbers())
            .key_by(|number| number % 10)
            .fold("set", &values, |value, _| *value = V::default());
        flow.source("times", numbers())
            .watermarks(
                |time| Timestamp(*time as i64),
                Watermarks::bounded(Duration::ZERO),
            )
            .key_by(|time| time % 10)
            .aggregate("total", &totals, |time| Timestamp(*time as i64))
            .fold_local(&nothing, |_, _| ());
        if self.has_sink {
            let results = world
                .log
                .stream_or_create("results", StreamConfig::default());
            let encode = |number: &u64, record: &mut EncodedRecord| {
                record.value.extend(number.to_le_bytes());
            };
            let sink = StreamSink::new(&results.unwrap(), encode).unwrap();
            flow.source("others", numbers()).sink("results", sink);
        }
        flow.run()
    }
}

fn refusals_on_two_ranks(world: &World, store: &Arc<dyn Checkpoints>) -> String {
    let refusal = |ranks: Ranks| {
        let started = PROGRAM.start::<u64>(world, store, &ranks);
        started.map(drop).unwrap_err().to_string()
    };
    let errors: Vec<String> = thread::scope(|scope| {
        let ranks = Ranks::threads(2).into_iter();
        let threads: Vec<_> = ranks
            .map(|ranks| scope.spawn(move || refusal(ranks)))
            .collect();
        threads.into_iter().map(|it| it.join().unwrap()).collect()
    });
    errors.join("; ")
}

#[test]
fn a_refused_start_does_not_end_the_active_run() {
    let world = World::start(true);
    let alone = Ranks::alone();
    let new = Program {
        resume: Resume::Never,
        ..PROGRAM
    };
    let first = new.start::<u64>(&world, &world.store, &alone).unwrap();
    wait_for_checkpoints(&first, 3);
    let renamed = Program {
        state: "people",
        ..PROGRAM
    };
    let longer = Program {
        window_ms: 2_000,
        ..PROGRAM
    };
    let larger = Program {
        has_sink: true,
        ..PROGRAM
    };
    let store = || world.store_of_another();
    let refused = [
        (
            new.start::<u64>(&world, &store(), &alone),
            "of an earlier run",
        ),
        (
            PROGRAM.start::<String>(&world, &store(), &alone),
            "state \"users\": its keys or values have another type",
        ),
        (
            longer.start::<u64>(&world, &store(), &alone),
            "state \"totals\" has the types (u64, ())",
        ),
        (
            larger.start::<u64>(&world, &store(), &alone),
            "the program has source \"others\", sink \"results\", of which the checkpoint has nothing",
        ),
        (
            renamed.start::<u64>(&world, &store(), &alone),
            "the checkpoint has state \"users\", which the program does not have",
        ),
    ];
    for (refused, expected) in refused {
        let error = refused.map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let errors = refusals_on_two_ranks(&world, &store());
    assert!(errors.contains("on 1 ranks, and this is"), "{errors}");
    let made = world.log.stream("shop.state.people").map(drop);
    made.unwrap_err();
    let kept = first.checkpoints().unwrap().kept;
    wait_for_checkpoints(&first, kept + 3);
    assert!(!first.is_finished());

    // A program that fits takes its place.
    let second = PROGRAM.start::<u64>(&world, &store(), &alone).unwrap();
    check_is_lost(&first);
    second.stop();
    second.join().unwrap();
}
