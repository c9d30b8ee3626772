//! The flow in the process of the test, on several workers.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use millstream::flow::FlowSettings;
use millstream::{Error, Flow, Job, Node, Request, RunningFlow};
use millstream_recommend::{
    FLOW, Rating, Recommended, Replicas, SERVING, recommend, recommend_and_serve,
};
use serde_json::{Value, json};

use crate::direct::Direct;
use crate::http::{LIMIT, get, recommendations, request, wait_for_recommendations};
use crate::kills::co_occurrence;

/// The number of instances of an operator.
const INSTANCES: usize = 4;

/// A rating counts within this time, on a machine that has nothing else to do much earlier.
const FRESH_WITHIN: Duration = Duration::from_secs(1);

/// The ratings whose freshness is measured.
const FRESH: usize = 40;

/// Returns ratings of users with names of several scripts: of some items again, and some of them taken back.
pub fn made_ratings() -> Vec<Rating> {
    const RATINGS: usize = 6_000;
    let mut rng = Rng::with_seed(11);
    let rating = |_| Rating {
        user: format!("üser {}", rng.u64(..40)),
        // Low numbers come more often.
        item: rng.u64(..12) * rng.u64(..12),
        rating: match rng.u64(..8) {
            0 => 0.0,
            halves => halves as f64 / 2.0,
        },
    };
    (0..RATINGS).map(rating).collect()
}

fn rating(user: &str, item: u64, rating: f64) -> Rating {
    Rating {
        user: user.to_owned(),
        item,
        rating,
    }
}

/// An empty flow with several instances, which takes checkpoints often and serves HTTP.
pub fn flow() -> Flow {
    let settings = FlowSettings {
        workers: INSTANCES.try_into().expect("it is not zero"),
        ..FlowSettings::default()
    };
    Flow::with_settings(FLOW, settings)
        .checkpoint_interval(Duration::from_millis(5))
        .http(SocketAddr::from(([127, 0, 0, 1], 0)))
}

/// Starts the program over the topic `ratings` of a node.
pub fn run(flow: Flow, node: &Node) -> Result<RunningFlow, Error> {
    recommend(flow, node.topic("ratings").json(), &Replicas::default()).start()
}

fn address(running: &RunningFlow) -> SocketAddr {
    running.http_address().expect("it serves HTTP")
}

#[test]
fn several_instances_count_each_rating_once_although_they_are_interrupted() -> Result<(), Error> {
    let made = made_ratings();
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let ratings = node.topic("ratings").json::<Rating>().create()?;
    let parts: Vec<_> = made.chunks(made.len().div_ceil(3)).collect();
    for part in &parts {
        let (first, second) = part.split_at(part.len() / 2);
        let running = run(flow(), &node)?;
        let kept = || running.checkpoints().map_or(0, |counts| counts.kept);
        let (before, since) = (kept(), Instant::now());
        ratings.send(first.to_vec())?;
        while kept() <= before {
            assert!(since.elapsed() < LIMIT, "{:?}", running.checkpoints());
            thread::sleep(Duration::from_millis(5));
        }
        // The flow ends while it reads these.
        ratings.send(second.to_vec())?;
    }
    let running = run(flow(), &node)?;
    let direct = Direct::of(&made);
    wait_for_recommendations(address(&running), &direct);
    running.stop();
    running.join()?;
    drop(running);
    assert_eq!(co_occurrence(&node)?, direct.co_occurrence());
    let topic = node.topic("recommend.state.co_occurrence").json::<f64>();
    let keys = topic.read_keys::<(u32, (u64, u64))>()?.into_keys();
    let replicas: BTreeSet<u32> = keys.map(|(replica, _)| replica).collect();
    assert!(replicas.len() > 1, "one instance has counted all");
    Ok(())
}

#[test]
fn a_rating_counts_in_the_next_recommendations() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let ratings = node.topic("ratings").json::<Rating>().create()?;
    ratings.send([rating("ann", 1, 4.0), rating("ann", 2, 5.0)])?;
    let running = run(flow(), &node)?;
    let address = address(&running);
    let mut taken = Vec::new();
    for number in 0..FRESH {
        let user = format!("user {number}");
        assert_eq!(recommendations(address, &user), None);
        ratings.send([rating(&user, 1, 0.5)])?;
        let accepted = Instant::now();
        let served = loop {
            if let Some(served) = recommendations(address, &user) {
                break served;
            }
            assert!(accepted.elapsed() < LIMIT, "the rating does not count");
        };
        taken.push(accepted.elapsed());
        // Only one user has rated both items.
        let expected = Recommended {
            item: 2,
            score: 0.5,
        };
        assert_eq!(served, [expected]);
    }
    taken.sort_unstable();
    let (median, longest) = (taken[FRESH / 2], taken[FRESH - 1]);
    println!(
        "freshness of {FRESH} ratings, from accepted to recommended: median {median:.1?}, longest {longest:.1?}"
    );
    assert!(median < FRESH_WITHIN, "{taken:?}");

    // A rating that is taken back ends its pairs, and another number of an item changes none.
    ratings.send([rating("ben", 2, 1.0), rating("ben", 3, 1.0)])?;
    ratings.send([rating("ben", 2, 3.0), rating("ann", 2, 0.0)])?;
    let expected = Direct::of(&[
        rating("ann", 1, 4.0),
        rating("ben", 2, 3.0),
        rating("ben", 3, 1.0),
    ]);
    wait_for_recommendations(address, &expected);
    let users = get(address, "recommendations?limit=1000").expect("the element is known");
    let users = users.as_array().expect("it is a list").iter();
    let users: BTreeSet<&str> = users.filter_map(|entry| entry["key"].as_str()).collect();
    assert_eq!(users.len(), FRESH + 2);
    assert!(users.contains("ben") && users.contains("user 7"));
    Ok(())
}

#[test]
fn the_serving_flow_answers_with_the_same_recommendations() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let ratings = node.topic("ratings").json::<Rating>().create()?;
    let made = made_ratings();
    ratings.send(made.clone())?;
    let replicas = Replicas::default();
    let flows = recommend_and_serve(flow(), &Flow::new(SERVING), ratings, &replicas);
    let job = Job::from(flows).start()?;
    let address = job.http_address().expect("it serves HTTP");
    let direct = Direct::of(&made);
    wait_for_recommendations(address, &direct);
    let requests = job.requests(SERVING).expect("it takes requests");
    let counts = direct.co_occurrence();
    for user in direct.users() {
        let expected = direct.recommendations(user, &counts);
        let target = format!("/{}", user.replace(' ', "%20"));
        let response = requests.call(Request::get(&target)).wait();
        let response = response.expect("it answers");
        let body = response.body_text().expect("it is JSON");
        let served: Vec<Recommended> = serde_json::from_str(body).expect("they are items");
        assert_eq!(served, expected, "{user}");
    }
    let answer =
        |method: &str, path: &str| request(address, method, &format!("/q/recommendations{path}"));
    let user = direct
        .users()
        .next()
        .expect("there are users")
        .replace('ü', "%C3%BC");
    let user = user.replace(' ', "%20");
    let (status, two) = answer("GET", &format!("/{user}?n=2"));
    let (_, all) = answer("GET", &format!("/{user}"));
    let (two, all) = (two.as_array().unwrap(), all.as_array().unwrap());
    assert_eq!((status, &two[..]), (200, &all[..all.len().min(2)]));
    for (method, path, expected) in [
        ("GET", "/eve", 404),
        ("GET", "/", 404),
        ("GET", "/eve?n=0", 400),
        ("GET", "/eve?n=11", 400),
        ("GET", "/eve?n=x", 400),
        ("POST", "/eve", 405),
    ] {
        assert_eq!(answer(method, path).0, expected, "{method} {path}");
    }
    job.stop();
    job.join()
}

#[test]
fn a_record_that_is_no_rating_becomes_a_dead_letter() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let records = node.topic("ratings").json::<Value>().create()?;
    let bad = [
        json!({"user": "ann", "item": 3, "rating": -1}),
        json!({"user": "ann", "item": -3, "rating": 1}),
        json!({"user": "", "item": 3, "rating": 1}),
        json!({"user": "ann", "item": 3}),
        json!("ann"),
    ];
    records.send([json!({"user": "ann", "item": 1, "rating": 4})])?;
    records.send(bad.clone())?;
    records.send([json!({"user": "ann", "item": 2, "rating": 4})])?;
    records.send([json!({"user": "ben", "item": 2, "rating": 4.5})])?;
    let running = run(flow(), &node)?;
    let direct = Direct::of(&[
        rating("ann", 1, 4.0),
        rating("ann", 2, 4.0),
        rating("ben", 2, 4.5),
    ]);
    wait_for_recommendations(address(&running), &direct);
    running.stop();
    running.join()?;
    let letters = node.topic("recommend.dead_letters").json::<Value>();
    assert_eq!(letters.read_all()?, bad);
    Ok(())
}
