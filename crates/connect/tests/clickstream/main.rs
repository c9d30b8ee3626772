//! State of a flow over real events: server and flow are killed, and each event still counts once.
//!
//! The events are not in the repository, but in the folder that `MILLSTREAM_TEST_DATA` names, or in `../shared/data`
//! beside the repository. Without them the test is skipped.

mod events;
mod flow;
mod processes;
mod server;

use std::thread;
use std::time::Duration;

use processes::{Process, World, wait_until};

/// The processes that are killed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kill {
    Flow,
    Server,
    Both,
}

/// The most starts of the flow after the last kill, until it ends.
const STARTS_MAX: u32 = 10;

#[test]
fn each_event_counts_once_although_flow_and_server_are_killed() {
    let Some(events) = events::read() else {
        return;
    };
    let world = World::new();
    let mut server = world.start_server();
    world.produce(&events);
    let mut flow = world.start_flow();
    let mut seen = 0;
    let kills = [
        Kill::Flow,
        Kill::Server,
        Kill::Both,
        Kill::Server,
        Kill::Flow,
    ];
    for (number, kill) in (0..).zip(kills) {
        wait_until("a checkpoint has changes", || {
            match flow.ended() {
                None => {}
                Some(true) => panic!("it ended before {kill:?}, kill {number}"),
                // The server was away for too long.
                Some(false) => flow = world.start_flow(),
            }
            world.changes() > seen
        });
        thread::sleep(Duration::from_millis(number * 7));
        if kill != Kill::Server {
            flow.kill();
        }
        if kill != Kill::Flow {
            server.kill();
            server = world.start_server();
        }
        if kill != Kill::Server {
            flow = world.start_flow();
        }
        seen = world.changes();
    }
    let mut starts = 0;
    while !flow.succeeds() {
        starts += 1;
        assert!(starts < STARTS_MAX, "the flow does not come to its end");
        flow = world.start_flow();
    }
    let expected = events::count(&events);
    assert_eq!(world.report(), expected, "in the flow");
    assert_eq!(world.consume(), expected, "in the streams of the state");

    // A flow that resumes has it all, and a server that was killed, too.
    server.kill();
    let _server: Process = world.start_server();
    assert!(world.start_flow().succeeds());
    assert_eq!(world.report(), expected, "in the flow that resumed");
}
