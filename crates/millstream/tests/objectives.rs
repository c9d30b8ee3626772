//! Objectives of produce and fetch beside a flow of the same process.

mod visitor;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use millstream::broker::BrokerConfig;
use millstream::flow::{ObjectiveView, Pool};
use millstream::{Error, Flow, Job, Node, Objective};

use crate::visitor::get;

/// The longest time of any step.
const LIMIT: Duration = Duration::from_secs(60);

/// The names of the objectives in the views of the pool.
const PRODUCE: &str = "broker/produce";
const FETCH: &str = "broker/fetch";

fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn view(name: &str) -> ObjectiveView {
    let views = Pool::of_process().objectives();
    let view = views.into_iter().find(|view| view.name == name);
    view.unwrap_or_else(|| panic!("{name} has no objective"))
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let until = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < until, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn flows_are_withheld_while_produce_is_late_and_come_back_when_no_request_comes()
-> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let lines = node.topic("lines").text().create()?;
    let copy = Flow::new("copy")
        .read(lines)
        .write(node.topic("copy").text());
    let mut config = BrokerConfig::new(local());
    // No disk is that fast, and no fetch is slower than that.
    config.produce_objective = Some(Objective::p99(Duration::from_nanos(1)));
    config.fetch_objective = Some(Objective::p99(Duration::from_secs(60)));
    let job = Job::from(copy)
        .listen(&node, config)
        .http(local())
        .start()?;
    let server = Node::connect(&job.listen_addresses()[0].to_string())?;
    let (lines, pool) = (server.topic("lines").text(), Pool::of_process());
    let mut sent = 0;
    let until = Instant::now() + LIMIT;
    while pool.report().level > 0 {
        assert!(Instant::now() < until, "{:?}", pool.report());
        lines.send([sent.to_string()])?;
        sent += 1;
    }
    let decisions = pool.decisions();
    let objective = decisions.last().and_then(|last| last.objective.clone());
    assert_eq!(objective.as_deref(), Some("broker/produce: p99 within 1ns"));
    let produce = view(PRODUCE);
    assert!(
        produce.late > 0 && produce.late == produce.answered,
        "{produce:?}"
    );

    // The flow goes on slowly, and then as before.
    wait_until("the flow is withheld for ever", || {
        pool.report().level == 100
    });
    let copy = server.topic("copy").text();
    wait_until("not all lines are copied", || {
        copy.read_all().unwrap().len() == sent
    });
    let fetch = view(FETCH);
    assert!(fetch.answered > 0 && fetch.late == 0, "{fetch:?}");
    let http = job.http_address().expect("it serves HTTP");
    let (_, shown) = get(http, "/api/v1/pool");
    assert!(shown.contains(PRODUCE) && shown.contains(FETCH), "{shown}");
    let (_, metrics) = get(http, "/metrics");
    let held = "millstream_objective_held_total{work=\"broker/produce\"}";
    assert!(metrics.contains(held), "{metrics}");
    job.stop();
    job.join()?;
    drop(job);
    assert_eq!(pool.objectives(), [], "the broker has ended");
    Ok(())
}
