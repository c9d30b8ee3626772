//! Serving flows and jobs of several flows on several ranks.

mod visitor;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::process::Stdio;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use millstream::flow::serving::CallError;
use millstream::flow::{FlowSettings, Pool};
use millstream::{Error, Flow, Job, Node, Request, Response, RunningJob};
use millstream_exchange::Ranks;

use crate::visitor::get;

/// The longest time of any step.
const LIMIT: Duration = Duration::from_secs(60);

/// Enough users that each of four ranks owns some.
const USERS: u64 = 24;

/// Runs the same on several ranks, each a thread, until all have left. Returns the results by rank.
fn on_ranks<R: Send>(count: u32, run: impl Fn(&Ranks) -> R + Sync) -> Vec<R> {
    let run_rank = |ranks: Ranks| {
        let result = run(&ranks);
        // The test judges failures.
        let _ = ranks.leave();
        result
    };
    let run_rank = &run_rank;
    thread::scope(|scope| {
        let threads: Vec<_> = Ranks::threads(count)
            .into_iter()
            .map(|ranks| scope.spawn(move || run_rank(ranks)))
            .collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.collect()
    })
}

fn flow(name: &str, ranks: &Ranks) -> Flow {
    let workers = NonZeroUsize::new(2).unwrap();
    let settings = FlowSettings {
        workers,
        // Its own: tests of one process take no slots from each other.
        pool: Pool::new(workers),
        ranks: ranks.clone(),
        ..FlowSettings::default()
    };
    Flow::with_settings(name, settings).checkpoint_interval(Duration::from_millis(5))
}

fn user(number: u64) -> String {
    format!("user{number}")
}

/// Returns a job that sums the orders of each user, and answers with the sum from the rank that owns the user.
fn job(ranks: &Ranks, node: &Node) -> Job {
    let sums = flow("sums", ranks);
    let stream = sums.read(node.topic("orders").json::<(String, u64)>());
    let spent = sums.engine().values::<String, u64>("spent");
    let sums =
        stream
            .key_by(|(user, _)| user.clone())
            .fold("spend", &spent, |spent, (_, price)| {
                *spent = Some(spent.unwrap_or(0) + price);
            });
    let serving = flow("spent", ranks)
        .requests()
        .key_by(|call| call.segment(0).unwrap_or_default())
        .map(move |user, call| {
            call.reply(match spent.get(user) {
                Some(spent) => Response::json(&spent),
                None => Response::not_found("no such user"),
            })
        })
        .respond();
    Job::from([sums, serving])
}

/// Waits until a rank answers with these sums.
fn wait_for_sums(job: &RunningJob, sums: &BTreeMap<String, u64>) {
    let requests = job.requests("spent").expect("it takes requests");
    let since = Instant::now();
    for (user, sum) in sums {
        let expected = sum.to_string();
        loop {
            let request = Request::get(&format!("/{user}"));
            let response = requests.call(request).wait().unwrap();
            if response.body_text() == Some(&expected) {
                break;
            }
            assert!(
                since.elapsed() < LIMIT,
                "{user}: {:?}",
                response.body_text()
            );
            thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn each_rank_answers_with_the_state_of_all_ranks_also_behind_a_resume() -> Result<(), Error> {
    for count in [1, 2, 4] {
        let dir = tempfile::tempdir()?;
        let node = Node::embedded(dir.path())?;
        let orders = node.topic("orders").json::<(String, u64)>().create()?;
        let mut sums = BTreeMap::new();
        for run in 1..=3 {
            let more: Vec<_> = (0..USERS)
                .map(|number| (user(number), number * run))
                .collect();
            for (user, price) in &more {
                *sums.entry(user.clone()).or_default() += price;
            }
            orders.send(more)?;
            let all = on_ranks(count, |ranks| -> Result<(), Error> {
                let job = job(ranks, &node).start()?;
                wait_for_sums(&job, &sums);
                let requests = job.requests("spent").expect("it takes requests");
                let nobody = requests.call(Request::get("/nobody")).wait().unwrap();
                assert_eq!(nobody.status_code(), 404);
                // No rank stops while another one asks.
                let settled = ranks.agree(Default::default(), 0);
                settled.map_err(Error::Ranks)?;
                job.stop();
                job.join()
            });
            all.into_iter().collect::<Result<(), Error>>()?;
        }
    }
    Ok(())
}

#[test]
fn state_that_requests_change_on_any_rank_is_in_checkpoints() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    for run in 0..3 {
        let all = on_ranks(2, |ranks| -> Result<(), Error> {
            let flow = flow("visits", ranks).node(&node);
            let visits = flow.engine().values::<String, u64>("visits");
            let running = flow
                .requests()
                .key_by(|call| call.segment(0).unwrap_or_default())
                .update("count", &visits, |_user, visits, call, emit| {
                    let number = visits.unwrap_or(0) + 1;
                    *visits = Some(number);
                    emit(&call.reply(Response::json(&number)));
                })
                .respond()
                .start()?;
            let requests = running.requests().expect("it takes requests");
            // Each rank has users of its own, so it knows their counts.
            for number in 1..=10 {
                for user in 0..USERS {
                    let path = format!("/{}-{user}", ranks.rank());
                    let response = requests.call(Request::get(&path)).wait().unwrap();
                    let expected = (run * 10 + number).to_string();
                    assert_eq!(response.body_text(), Some(&*expected));
                }
            }
            ranks.agree(Default::default(), 0).map_err(Error::Ranks)?;
            running.stop();
            running.join()?;
            Ok(())
        });
        all.into_iter().collect::<Result<(), Error>>()?;
    }
    Ok(())
}

#[test]
fn a_job_ends_when_its_analytics_have_ended_on_all_ranks() -> Result<(), Error> {
    for count in [1, 2, 4] {
        let dir = tempfile::tempdir()?;
        let node = Node::embedded(dir.path())?;
        let lines = node.topic("lines").text().create()?;
        lines.send((0..100).map(|number| number.to_string()))?;
        let all = on_ranks(count, |ranks| -> Result<(), Error> {
            let copied = flow("copy", ranks).read(lines.clone().until_now());
            let copy = copied.write(node.topic("copy").text());
            let calls = flow("echo", ranks).requests();
            let echo = calls
                .key_by(|call| call.path().to_owned())
                .map(|_, call| call.reply(Response::text(call.path())))
                .respond();
            Job::from([copy, echo]).run()
        });
        all.into_iter().collect::<Result<(), Error>>()?;
        assert_eq!(node.topic("copy").text().read_all()?.len(), 100);
    }
    Ok(())
}

#[test]
fn the_failure_of_a_flow_ends_the_job_on_all_ranks() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let lines = node.topic("lines").text().create()?;
    lines.send(["a"])?;
    let errors = on_ranks(2, |ranks| {
        // It takes checkpoints, on which all ranks have to decide.
        let copied = flow("copy", ranks).read(lines.clone());
        let copy = copied.write(node.topic("copy").text());
        let fails = flow("fails", ranks)
            .requests()
            .key_by(|call| call.path().to_owned())
            .state::<u64>("state")
            .update(|_, _, call, _| assert_ne!(call.path(), "/panic", "a test of a panic"))
            .map(|reply: &millstream::Reply| reply.clone())
            .respond();
        let calls = flow("echo", ranks).requests();
        let replies = calls.map(|call| call.reply(Response::text(call.path())));
        let job = Job::from([copy, fails, replies.respond()]);
        let job = job.start().unwrap();
        if ranks.rank() == 0 {
            let panic = job.requests("fails").unwrap().call(Request::get("/panic"));
            assert!(panic.wait().is_err());
        }
        let error = job.join().expect_err("a flow has failed").to_string();
        for name in ["fails", "echo"] {
            let after = job.requests(name).unwrap().call(Request::get("/"));
            let after = after.wait().unwrap_err();
            let is_end = matches!(after, CallError::Failed { .. } | CallError::Ended { .. });
            assert!(is_end, "{after}");
        }
        error
    });
    for error in errors {
        assert!(error.contains("panicked"), "{error}");
    }
    Ok(())
}

#[test]
fn a_flow_that_cannot_start_on_one_rank_starts_on_none() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let lines = node.topic("lines").text().create()?;
    let copy = |ranks: &Ranks| {
        let topic = match ranks.rank() {
            0 => lines.clone(),
            _ => node.topic("nowhere").text(),
        };
        let copied = flow("copy", ranks).read(topic);
        copied.write(node.topic("copy").text())
    };
    let alone = on_ranks(2, |ranks| copy(ranks).start().err());
    let in_job = on_ranks(2, |ranks| Job::from([copy(ranks)]).start().err());
    for error in alone.into_iter().chain(in_job) {
        let error = error.expect("one rank cannot start").to_string();
        assert!(error.contains("nowhere"), "{error}");
    }
    // An address in use keeps the whole job from starting.
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let errors = on_ranks(2, |ranks| {
        let copied = flow("copy", ranks).read(lines.clone());
        let mut job = Job::from([copied.write(node.topic("copy").text())]);
        if ranks.rank() == 1 {
            job = job.http(taken.local_addr().unwrap());
        }
        job.start().err()
    });
    for error in errors {
        let error = error.expect("one rank cannot start").to_string();
        assert!(error.contains("in use"), "{error}");
    }
    Ok(())
}

/// Set in the processes that `mpirun` starts.
const IS_RANK: &str = "MILLSTREAM_TEST_RANK";

/// The exit code of a rank without MPI.
const NO_MPI: i32 = 77;

#[test]
fn ranks_that_are_processes_answer_for_each_other() {
    let mut command = millstream_testing::command("mpirun");
    command
        .args(["--oversubscribe", "-q", "-n", "2"])
        .args(millstream_testing::ENDS_WITH_PARENT)
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "rank_of_mpirun", "--nocapture"])
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env(IS_RANK, "")
        .stdout(Stdio::null());
    let ended = millstream_testing::start(&mut command, LIMIT).and_then(|mut it| it.wait());
    match ended {
        Ok(status) if status.code() != Some(NO_MPI) => assert!(status.success(), "{status}"),
        _ => eprintln!("skipped: mpirun is missing, or the test is built without the feature mpi"),
    }
}

/// A rank of a serving flow: no test of its own.
#[test]
#[ignore = "started by the test of ranks that are processes"]
fn rank_of_mpirun() {
    if std::env::var_os(IS_RANK).is_none() {
        return;
    }
    let Ok(ranks) = Ranks::from_environment() else {
        std::process::exit(NO_MPI);
    };
    let rank = ranks.rank();
    let running = flow("owners", &ranks)
        .requests()
        .key_by(|call| call.segment(0).unwrap_or_default())
        .map(move |_, call| call.reply(Response::json(&(rank, call.path()))))
        .respond()
        .start()
        .unwrap();
    let requests = running.requests().expect("it takes requests");
    let mut owners = BTreeSet::new();
    for number in 0..USERS {
        let path = format!("/{}", user(number));
        let response = requests.call(Request::get(&path)).wait().unwrap();
        let answer = response.body_text().expect("it is text");
        let (owner, answered): (u32, String) = serde_json::from_str(answer).unwrap();
        assert_eq!(answered, path);
        owners.insert(owner);
    }
    assert_eq!(owners.len(), 2, "each rank owns users");
    ranks.agree(Default::default(), 0).unwrap();
    running.stop();
    running.join().unwrap();
    drop(running);
    ranks.leave().unwrap();
}

#[test]
fn http_on_any_rank_answers_from_the_owner_until_the_job_ends() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let orders = node.topic("orders").json::<(String, u64)>().create()?;
    orders.send((0..USERS).map(|number| (user(number), number)))?;
    let addresses = Mutex::new(Vec::new());
    let all = on_ranks(2, |ranks| -> Result<(), Error> {
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let job = job(ranks, &node).http(local).start()?;
        let address = job.http_address().expect("it serves HTTP");
        addresses.lock().unwrap().push(address);
        let since = Instant::now();
        for number in 0..USERS {
            let path = format!("/q/spent/{}", user(number));
            while get(address, &path) != (200, number.to_string()) {
                assert!(since.elapsed() < LIMIT, "{:?}", get(address, &path));
                thread::sleep(Duration::from_millis(5));
            }
        }
        ranks.agree(Default::default(), 0).map_err(Error::Ranks)?;
        job.stop();
        job.join()?;
        assert_eq!(get(address, "/q/spent/user1").0, 503);
        Ok(())
    });
    all.into_iter().collect::<Result<(), Error>>()?;
    assert_eq!(addresses.lock().unwrap().len(), 2);
    Ok(())
}
