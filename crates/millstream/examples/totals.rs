//! Sums orders by user, in windows of ten seconds.

use std::process::ExitCode;

use millstream::{Timestamp, out_of_order, secs, tumbling};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Order {
    user: String,
    price: u64,
    time: Timestamp,
}

fn main() -> ExitCode {
    millstream::main(|app| {
        let node = app.node();
        let flow = app.flow("totals");
        Ok(flow
            .read(node.topic("orders").json::<Order>())
            .event_time(|order| order.time, out_of_order(secs(5)))
            .key_by(|order| order.user.clone())
            .window(tumbling(secs(10)))
            .sum(|order| order.price)
            .serve_as("totals") // /state/totals/totals/<user>
            .write(node.topic("totals").json()))
    })
}
