//! The recommender in a child process, and analytics beside it or in another one.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use fastrand::Rng;
use millstream::{Flow, Job, Json, Node, Request, RequestSettings, Topic};
use millstream_flow::{Class, FlowSettings, Objective};
use millstream_recommend::{FLOW, Rating, Replicas, SERVING, recommend_and_serve};
use serde::{Deserialize, Serialize};

use crate::child::{self, hear, report};
use crate::pi;

/// The path of a user's recommendations, without the number of the user.
pub const PATH: &str = "/q/recommendations/user-";

/// The objective of the serving flow: 99 % of the requests are answered within this time.
const WITHIN: Duration = Duration::from_millis(100);

/// Ratings that come in a second, and the interval between two batches of them.
const RATINGS_PER_SECOND: f64 = 500.0;
const BATCH_EVERY: Duration = Duration::from_millis(100);

/// The items, and the number of them that a user rates.
const ITEMS: u64 = 500;
const ITEMS_OF_USER: usize = 20;

/// The longest time until the flow has read all ratings.
const READ_MAX: Duration = Duration::from_secs(300);

/// The place of the analytics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Beside {
    /// There are none, or they are in another process.
    None,
    /// In this process, in the same class as the serving flow, which has no objective.
    SameClass,
    /// In this process, as best-effort work below the serving flow and its objective.
    BestEffort,
}

/// The child process with the recommender.
#[derive(Debug, Serialize, Deserialize)]
pub struct Host {
    /// The first process in it stores the ratings, and later ones go on with them.
    pub dir: PathBuf,
    pub users: u64,
    pub beside: Beside,
}

/// The child process with nothing but analytics.
#[derive(Debug, Serialize, Deserialize)]
pub struct Analytics {}

impl child::Task for Host {
    const NAME: &'static str = "serving/recommender";

    fn run(self) -> Result<()> {
        let is_new = !self.dir.exists();
        let node = Node::embedded(&self.dir)?;
        let ratings = node.topic("ratings").json::<Rating>().create()?;
        if is_new {
            (0..self.users).try_for_each(|user| ratings.send(ratings_of(user)))?;
        }
        let serving = Flow::new(SERVING).request_settings(RequestSettings {
            objective: match self.beside {
                Beside::SameClass => None,
                Beside::None | Beside::BestEffort => Some(Objective::p99(WITHIN)),
            },
            ..RequestSettings::default()
        });
        let flow = Flow::new(FLOW);
        let flows = recommend_and_serve(flow, &serving, ratings.clone(), &Replicas::default());
        let job = Job::from(flows).http(local()).start()?;
        let follows = job.flows().first().context("a flow follows the ratings")?;
        let since = Instant::now();
        while follows.lag_records() != Some(0) {
            ensure!(
                since.elapsed() < READ_MAX,
                "the ratings are not read in time"
            );
            thread::sleep(Duration::from_millis(5));
        }
        // Ratings that were read may not be in the state yet.
        let requests = job.requests(SERVING).context("a flow serves requests")?;
        for user in 0..self.users {
            let known = || {
                let call = requests.call(Request::get(&format!("/{}", name(user))));
                let answer = call.wait();
                answer.is_ok_and(|answer| answer.status_code() == 200)
            };
            while !known() {
                ensure!(since.elapsed() < READ_MAX, "a user is not known in time");
                thread::sleep(Duration::from_millis(5));
            }
        }
        let analytics = match self.beside {
            Beside::None => None,
            Beside::SameClass => Some(Class::Critical),
            Beside::BestEffort => Some(Class::BestEffort),
        };
        let analytics = analytics.map(|class| {
            pi::start(FlowSettings {
                class,
                ..FlowSettings::default()
            })
        });
        let _analytics = analytics.transpose()?;
        let address: SocketAddr = job.http_address().context("it serves HTTP")?;
        report(&address)?;
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let rates = scope.spawn(|| rate_again(&ratings, self.users, &stop));
            let end: Result<Option<()>> = hear();
            stop.store(true, Ordering::Relaxed);
            let rated = rates.join().map_err(|_| anyhow!("the producer panicked"));
            end.and(rated?)
        })
    }
}

impl child::Task for Analytics {
    const NAME: &'static str = "serving/analytics";

    fn run(self) -> Result<()> {
        let _analytics = pi::start(FlowSettings::default())?;
        report(&())?;
        let _end: Option<()> = hear()?;
        Ok(())
    }
}

/// Returns the name of a user, as paths have it.
fn name(user: u64) -> String {
    format!("user-{user}")
}

/// Returns the ratings of a user: always of the same items.
fn ratings_of(user: u64) -> Vec<Rating> {
    let mut rng = Rng::with_seed(user);
    let items = rng.choose_multiple(0..ITEMS, ITEMS_OF_USER).into_iter();
    let mut stars = Rng::with_seed(user + 1);
    items
        .map(|item| Rating {
            user: name(user),
            item,
            rating: stars.u64(1..=5) as f64,
        })
        .collect()
}

/// Sends ratings of items that their users have rated before, so that the state stays as large as it is.
fn rate_again(ratings: &Topic<Json<Rating>>, users: u64, stop: &AtomicBool) -> Result<()> {
    let batch = (RATINGS_PER_SECOND * BATCH_EVERY.as_secs_f64()) as usize;
    let mut rng = Rng::with_seed(1);
    while !stop.load(Ordering::Relaxed) {
        let again = (0..batch).filter_map(|_| {
            let mut of_user = ratings_of(rng.u64(..users));
            let mut rating = of_user.pop()?;
            rating.rating = rng.u64(1..=5) as f64;
            Some(rating)
        });
        ratings.send(again.collect::<Vec<_>>())?;
        thread::sleep(BATCH_EVERY);
    }
    Ok(())
}

/// A free port of this machine.
pub fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}
