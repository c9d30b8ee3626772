//! Recommends items to users by the ratings in the topic `ratings`.
//!
//! ```text
//! recommend --server localhost:9092 --http 127.0.0.1:8081
//! ```

use std::process::ExitCode;

use millstream::Job;
use millstream_recommend::{FLOW, Replicas, SERVING, recommend, recommend_and_serve};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let replicas = Replicas::default();
    millstream::main(|app| {
        let ratings = app.node().topic("ratings").json();
        let replicas = replicas.of_ranks(app.ranks());
        let flow = app.flow(FLOW);
        Ok(match app.ranks() {
            1 => Job::from(recommend_and_serve(
                flow,
                &app.flow(SERVING),
                ratings,
                &replicas,
            )),
            // A serving flow runs on one rank.
            _ => Job::from(recommend(flow, ratings, &replicas)),
        })
    })
}
