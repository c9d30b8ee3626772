//! Recommends items to users by the ratings in the topic `ratings`.
//!
//! ```text
//! recommend --server localhost:9092 --http 127.0.0.1:8081
//! ```

use std::process::ExitCode;

use millstream_recommend::{FLOW, Replicas, SERVING, recommend_and_serve};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let replicas = Replicas::default();
    millstream::main(|app| {
        let ratings = app.node().topic("ratings").json();
        let replicas = replicas.of_ranks(app.ranks());
        let (flow, serving) = (app.flow(FLOW), app.flow(SERVING));
        Ok(recommend_and_serve(flow, &serving, ratings, &replicas))
    })
}
