//! Serving flows: requests in the process and over HTTP, state by key, jobs, and flows that cannot take requests.

mod visitor;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use millstream::flow::serving::CallError;
use millstream::{Error, Flow, Job, Node, Request, RequestSettings, Response, RunningFlow};

use crate::visitor::get;

/// The longest time of any step.
const LIMIT: Duration = Duration::from_secs(60);

fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

#[track_caller]
fn call(running: &RunningFlow, path: &str) -> String {
    let requests = running.requests().expect("it takes requests");
    let response = requests.call(Request::get(path)).wait().unwrap();
    response.body_text().unwrap().to_owned()
}

/// Starts a flow that counts the requests of each user in state that outlives it.
fn visits(node: &Node) -> Result<RunningFlow, Error> {
    let flow = Flow::new("visits")
        .checkpoint_interval(Duration::from_millis(5))
        .node(node);
    let visits = flow.engine().values::<String, u64>("visits");
    flow.requests()
        .key_by(|call| call.segment(0).unwrap_or_default())
        .update("count", &visits, |_user, visits, call, emit| {
            let number = visits.unwrap_or(0) + 1;
            *visits = Some(number);
            emit(&call.reply(Response::json(&number)));
        })
        .respond()
        .start()
}

#[test]
fn state_that_requests_change_is_in_checkpoints_and_requests_are_not() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    for run in 0..3 {
        let running = visits(&node)?;
        for number in 1..=20 {
            let expected = (run * 20 + number).to_string();
            assert_eq!(call(&running, "/ann"), expected);
            assert_eq!(call(&running, "/ben"), expected);
        }
        let since = Instant::now();
        let kept = || running.checkpoints().map_or(0, |counts| counts.kept);
        let before = kept();
        while kept() <= before + 1 {
            assert!(since.elapsed() < LIMIT, "{:?}", running.checkpoints());
            // Checkpoints come with items.
            call(&running, "/eve");
        }
        running.stop();
        running.join()?;
    }
    Ok(())
}

#[test]
fn a_job_serves_the_state_of_one_flow_by_another_under_one_address() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let orders = node.topic("orders").json::<(String, u64)>().create()?;
    let sums = Flow::new("sums").checkpoint_interval(Duration::from_millis(5));
    let stream = sums.read(orders.clone());
    let spent = sums.engine().values::<String, u64>("spent");
    let sums =
        stream
            .key_by(|(user, _)| user.clone())
            .fold("spend", &spent, |spent, (_, price)| {
                *spent = Some(spent.unwrap_or(0) + price);
            });
    let serving = Flow::new("spent")
        .requests()
        .map(
            move |call| match spent.get(&call.segment(0).unwrap_or_default()) {
                Some(spent) => call.reply(Response::json(&spent)),
                None => call.reply(Response::not_found("no such user")),
            },
        )
        .respond();
    let job = Job::from([sums, serving]).http(local()).start()?;
    let address = job.http_address().expect("it serves HTTP");
    assert_eq!(get(address, "/q/spent/ann").0, 404);
    orders.send([("ann".to_owned(), 3), ("ann".to_owned(), 4)])?;
    let since = Instant::now();
    while get(address, "/q/spent/ann") != (200, "7".to_owned()) {
        assert!(since.elapsed() < LIMIT);
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(get(address, "/state/sums/spent/ann"), (200, "7".to_owned()));
    let (status, unknown) = get(address, "/q/sums/ann");
    assert_eq!(status, 404);
    assert!(
        unknown.contains("those that take requests are spent"),
        "{unknown}"
    );
    let requests = job.requests("spent").expect("it takes requests");
    let ann = requests.call(Request::get("/ann")).wait().unwrap();
    assert_eq!(ann.body_text(), Some("7"));
    assert!(job.requests("sums").is_none());
    job.stop();
    job.join()?;
    assert_eq!(get(address, "/q/spent/ann").0, 503);
    Ok(())
}

#[test]
fn a_job_ends_with_its_analytics_and_when_a_flow_fails() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let lines = node.topic("lines").text().create()?;
    lines.send(["a"])?;
    let copy = || {
        let copied = Flow::new("copy").read(lines.until_now());
        copied.write(node.topic("copy").text())
    };
    let echo = || {
        let calls = Flow::new("echo").requests();
        let replies = calls.map(|call| call.reply(Response::text(call.path())));
        replies.respond()
    };
    Job::from([copy(), echo()]).run()?;
    // Serving alone has no end, so it ends by its failure here.
    let fails = Flow::new("fails")
        .requests()
        .key_by(|call| call.path().to_owned())
        .state::<u64>("state")
        .update(|_, _, call, _| assert_ne!(call.path(), "/panic", "a test of a panic"))
        .map(|reply: &millstream::Reply| reply.clone())
        .respond();
    let job = Job::from(vec![fails, echo()]).start()?;
    let panic = Request::get("/panic");
    let outcome = job.requests("fails").unwrap().call(panic).wait();
    assert!(outcome.is_err());
    let error = job.join().expect_err("a flow has failed").to_string();
    assert!(error.contains("panicked"), "{error}");
    let after = job.requests("echo").unwrap().call(Request::get("/")).wait();
    assert!(matches!(after, Err(CallError::Ended { .. })));
    let failed = job
        .requests("fails")
        .unwrap()
        .call(Request::get("/"))
        .wait();
    assert!(matches!(failed, Err(CallError::Failed { .. })));
    Ok(())
}

#[test]
fn a_flow_without_a_node_goes_on_behind_a_request_that_panics() -> Result<(), Error> {
    let running = Flow::new("echo")
        .request_settings(RequestSettings {
            body_bytes_max: 3,
            ..RequestSettings::default()
        })
        .http(local())
        .requests()
        .map(|call| {
            assert_ne!(call.path(), "/panic", "a test of a panic");
            call.reply(Response::text(call.path()))
        })
        .respond()
        .start()?;
    let address = running.http_address().expect("it serves HTTP");
    assert_eq!(get(address, "/q/echo/panic").0, 500);
    assert_eq!(get(address, "/q/echo/x"), (200, "/x".to_owned()));
    let requests = running.requests().expect("it takes requests");
    let large = requests.call(Request::post("/", "1234")).wait();
    assert!(matches!(
        large,
        Err(CallError::TooLarge { bytes_max: 3, .. })
    ));
    Ok(())
}

#[track_caller]
fn check(started: Result<RunningFlow, Error>, expected: &str) {
    let error = started.err().expect("it does not start").to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn flows_that_cannot_take_requests_do_not_start() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let lines = node.topic("lines").text().create()?;
    let echo = |flow: &Flow| {
        let calls = flow.requests();
        calls.map(|call| call.reply(Response::new(204))).respond()
    };
    let flow = Flow::new("twice");
    echo(&flow);
    check(echo(&flow).start(), "takes requests twice");

    let flow = Flow::new("late");
    echo(&flow);
    let late = flow.read(lines.clone()).write(node.topic("copy").text());
    check(late.start(), "before `requests`");

    let flow = Flow::new("first");
    drop(flow.read(lines.clone()).write(node.topic("copy").text()));
    let first = echo(&flow).start()?;
    let requests = first.requests().expect("it takes requests");
    assert_eq!(
        requests
            .call(Request::get("/"))
            .wait()
            .unwrap()
            .status_code(),
        204
    );
    Ok(())
}
