//! The program on a data directory of its own, killed again and again.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use millstream::{Error, Node};
use millstream_recommend::{Rating, Recommended};
use millstream_testing::start;
use serde_json::json;

use crate::direct::{Counts, Direct};
use crate::http::{LIMIT, get, request, segment, wait_for_recommendations};
use crate::running::made_ratings;

/// The time after which each run is killed, in milliseconds.
const KILLED_AFTER_MS: [u64; 3] = [300, 1_400, 700];

fn command(data: &Path, ranks: u32) -> Command {
    let mut command = millstream_testing::command(env!("CARGO_BIN_EXE_recommend"));
    command.arg("--data").arg(data);
    command.args(["--ranks", &ranks.to_string()]);
    command.stdout(Stdio::null());
    command
}

/// Starts the program with HTTP, and returns its address.
fn serve(data: &Path, ranks: u32) -> Result<(Child, SocketAddr), Error> {
    let mut command = command(data, ranks);
    command.args(["--http", "127.0.0.1:0"]);
    let mut run = start(command.stderr(Stdio::piped()), LIMIT)?;
    let stderr = run.stderr.take().expect("it is piped");
    let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
    let address = lines.find_map(|line| {
        let address = line.strip_prefix("watch it at http://")?;
        address.trim_end_matches('/').parse().ok()
    });
    // The program may write more.
    thread::spawn(move || lines.for_each(|line| eprintln!("{line}")));
    Ok((run, address.expect("it names its address")))
}

/// Waits until a checkpoint has ratings, so that the next run resumes in their middle.
fn wait_for_checkpoint(address: SocketAddr) {
    let since = Instant::now();
    let ratings = || get(address, "user_item?committed&limit=1");
    while ratings().is_none_or(|ratings| ratings == json!([])) {
        assert!(since.elapsed() < LIMIT, "no checkpoint is complete");
        thread::sleep(Duration::from_millis(20));
    }
}

fn user_item(node: &Node) -> Result<BTreeMap<(String, u64), f64>, Error> {
    let topic = node.topic("recommend.state.user_item").json::<f64>();
    Ok(topic.read_keys()?.into_iter().collect())
}

/// Returns the counts of pairs, summed over all replicas.
pub fn co_occurrence(node: &Node) -> Result<Counts, Error> {
    let topic = node.topic("recommend.state.co_occurrence").json::<f64>();
    let mut counts = Counts::new();
    for ((_replica, pair), count) in topic.read_keys::<(u32, (u64, u64))>()? {
        *counts.entry(pair).or_default() += count;
    }
    counts.retain(|_, count| *count != 0.0);
    Ok(counts)
}

/// Checks the answers of the serving flow for all users, some owned by each rank.
fn check_serving_flow(address: SocketAddr, direct: &Direct) {
    let counts = direct.co_occurrence();
    for user in direct.users() {
        let path = format!("/q/recommendations/{}", segment(user));
        let (status, answer) = request(address, "GET", &path);
        assert_eq!(status, 200, "{answer}");
        let served: Vec<Recommended> = serde_json::from_value(answer).expect("they are items");
        assert_eq!(served, direct.recommendations(user, &counts), "{user}");
    }
}

fn check(ranks: u32) -> Result<(), Error> {
    let made = made_ratings();
    let (first, second) = made.split_at(made.len() / 2);
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let ratings = node.topic("ratings").json::<Rating>().create()?;
    ratings.send(first.to_vec())?;
    drop((node, ratings));
    for after_ms in KILLED_AFTER_MS {
        let mut run = start(&mut command(dir.path(), ranks), LIMIT)?;
        thread::sleep(Duration::from_millis(after_ms));
        run.kill()?;
        run.wait()?;
    }
    let (mut run, address) = serve(dir.path(), ranks)?;
    wait_for_checkpoint(address);
    run.kill()?;
    run.wait()?;
    let node = Node::embedded(dir.path())?;
    node.topic("ratings")
        .json::<Rating>()
        .send(second.to_vec())?;
    drop(node);

    let direct = Direct::of(&made);
    let (mut run, address) = serve(dir.path(), ranks)?;
    wait_for_recommendations(address, &direct);
    check_serving_flow(address, &direct);
    run.kill()?;
    run.wait()?;
    let status = start(command(dir.path(), ranks).arg("--until-now"), LIMIT)?.wait()?;
    assert!(status.success(), "{status}");

    let node = Node::embedded(dir.path())?;
    assert_eq!(user_item(&node)?, direct.user_item());
    assert_eq!(co_occurrence(&node)?, direct.co_occurrence());
    Ok(())
}

#[test]
fn each_rating_counts_once_however_often_the_application_is_killed() -> Result<(), Error> {
    check(1)
}

#[test]
fn recommendations_need_the_counts_of_two_ranks() -> Result<(), Error> {
    check(2)
}
