//! Recommends items to users by their ratings: online collaborative filtering (iwo, algorithm 4).
//!
//! Each record of a topic is a [`Rating`]. Two state elements of the flow hold what follows from them: `user_item` has the
//! ratings of each user, and `co_occurrence` counts for each pair of items the users that have rated both. The element
//! `recommendations` has no content of its own. A reader's request multiplies the ratings of the user by the counts, as they
//! are at this moment, so the answer has each rating that the flow has read. The serving flow `recommendations` answers requests
//! with the same: [`recommend_and_serve`].
//!
//! ```
//! use millstream::{Flow, Node};
//! use millstream_recommend::{FLOW, Rating, Replicas, recommend};
//! use serde_json::json;
//!
//! # let dir = tempfile::tempdir()?;
//! let node = Node::embedded(dir.path())?;
//! let ratings = node.topic("ratings").json::<Rating>().create()?;
//! let rating = |user: &str, item, rating| Rating { user: user.to_owned(), item, rating };
//! ratings.send([rating("ann", 1, 4.0), rating("ann", 2, 5.0), rating("ben", 1, 3.0)])?;
//!
//! let running = recommend(Flow::new(FLOW), ratings.until_now(), &Replicas::default()).start()?;
//! running.join()?;
//! // Over HTTP: `/state/recommend/recommendations/ben`.
//! let recommendations = running.state("recommendations").and_then(|state| state.get("ben"));
//! assert_eq!(recommendations, Some(json!([{"item": 2, "score": 3.0}])));
//! # Ok::<(), millstream::Error>(())
//! ```

mod flow;
mod rating;
mod recommendations;

pub use flow::{FLOW, SERVING, recommend, recommend_and_serve};
pub use rating::{BadRating, RATING_MAX, Rating, USER_BYTES_MAX};
pub use recommendations::{RECOMMENDED_MAX, Recommended, Replicas};
