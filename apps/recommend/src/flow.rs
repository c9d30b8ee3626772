//! The flow that follows the ratings, and the one that answers requests.

use millstream::flow::{Emit, PartialMatrixOf, RowOf};
use millstream::{Call, Flow, Json, Response, Topic};

use crate::rating::Rating;
use crate::recommendations::{RECOMMENDED_MAX, Recommendations, Replicas};

/// The name of the flow.
pub const FLOW: &str = "recommend";

/// The name of the serving flow.
pub const SERVING: &str = "recommendations";

/// The most pairs that an instance counts in one step. Readers of its replica wait meanwhile.
const PAIRS_MAX: usize = 1_024;

/// An item that a user has begun or ceased to rate, with other items that the user rates.
#[derive(Debug, Clone)]
struct Pairs {
    item: u64,
    /// At most [`PAIRS_MAX`].
    others: Vec<u64>,
    /// The change of the counts: 1 or -1.
    change: f64,
}

/// Adds the program to a flow that reads no topic yet: it reads the ratings of a topic, and serves recommendations. Each rank
/// of a process adds its replicas to the same `replicas`.
pub fn recommend(flow: Flow, ratings: Topic<Json<Rating>>, replicas: &Replicas) -> Flow {
    follow(flow, ratings, replicas).0
}

/// As [`recommend`], with a second flow, [`SERVING`], that answers requests: `/q/recommendations/<user>?n=<count>` has the `count`
/// items with the highest scores for a user, from 1 to [`RECOMMENDED_MAX`], which is also the default. The rank that owns the
/// user answers.
pub fn recommend_and_serve(
    flow: Flow,
    serving: &Flow,
    ratings: Topic<Json<Rating>>,
    replicas: &Replicas,
) -> [Flow; 2] {
    let (flow, recommendations) = follow(flow, ratings, replicas);
    let answers = serving
        .requests()
        .key_by(|call| call.segment(0).unwrap_or_default())
        .map(move |_user, call| call.reply(answer(&recommendations, call)));
    [flow, answers.respond()]
}

fn answer(recommendations: &Recommendations, call: &Call) -> Response {
    if !matches!(call.method(), "GET" | "HEAD") {
        let refused = Response::error(405, "recommendations are only read: use GET");
        return refused.header("Allow", "GET, HEAD");
    }
    let Some(user) = call.segment(0) else {
        return Response::not_found("there is no user in the path: use /q/recommendations/<user>");
    };
    let count = call.query("n").map_or(Ok(RECOMMENDED_MAX), |n| n.parse());
    let Some(count) = count.ok().filter(|n| (1..=RECOMMENDED_MAX).contains(n)) else {
        let refused = format!("n must be a number from 1 to {RECOMMENDED_MAX}");
        return Response::error(400, &refused);
    };
    match recommendations.check().map(|()| recommendations.of(&user)) {
        Ok(Some(found)) => Response::json(&found[..count.min(found.len())]),
        Ok(None) => Response::not_found("this user has rated nothing"),
        Err(error) => Response::error(503, &error.to_string()),
    }
}

/// Adds the program to a flow, and returns the handle of its recommendations, too.
fn follow(
    flow: Flow,
    ratings: Topic<Json<Rating>>,
    replicas: &Replicas,
) -> (Flow, Recommendations) {
    let ratings = flow.read(ratings);
    let engine = flow.engine();
    let user_item = engine.matrices::<String, u64>("user_item");
    let co_occurrence = engine.partial_matrix::<u64, u64>("co_occurrence");
    replicas.add(&co_occurrence);
    let recommendations = Recommendations::new(user_item.clone(), replicas.clone());
    engine.state("recommendations", recommendations.clone());
    let flow = ratings
        .key_by(|rating| rating.user.clone())
        .update("rate", &user_item, |_user, row, rating, emit| {
            rate(row, rating, emit);
        })
        .fold_local("count", &co_occurrence, count);
    (flow, recommendations)
}

/// Sets the rating of an item in the user's row. Only the first rating of an item makes pairs, and only one that is taken
/// back ends them, so a pair has one count for each user that rates both items.
fn rate(mut row: RowOf<'_, String, u64>, rating: &Rating, emit: &mut Emit<'_, Pairs>) {
    let item = rating.item;
    let was_rated = row.get(&item) != 0.0;
    row.set(&item, rating.rating);
    let change = match (was_rated, rating.rating != 0.0) {
        (false, true) => 1.0,
        (true, false) => -1.0,
        _ => return,
    };
    let rated = row.iter().map(|(other, _)| *other);
    let others: Vec<u64> = rated.filter(|other| *other != item).collect();
    for others in others.chunks(PAIRS_MAX) {
        emit(&Pairs {
            item,
            others: others.to_vec(),
            change,
        });
    }
}

/// Counts pairs in the replica of an instance.
fn count(mut replica: PartialMatrixOf<'_, u64, u64>, pairs: &Pairs) {
    for other in &pairs.others {
        replica.add(&pairs.item, other, pairs.change);
        replica.add(other, &pairs.item, pairs.change);
    }
}
