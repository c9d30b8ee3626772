//! Recommends items to users by the ratings in the topic `ratings`.
//!
//! ```text
//! recommend --server localhost:9092 --http 127.0.0.1:8081
//! ```

use std::process::ExitCode;

use millstream_recommend::{FLOW, Replicas, recommend};

fn main() -> ExitCode {
    let replicas = Replicas::default();
    millstream::main(|app| {
        let ratings = app.node().topic("ratings").json();
        let replicas = replicas.of_ranks(app.ranks());
        Ok(recommend(app.flow(FLOW), ratings, &replicas))
    })
}
