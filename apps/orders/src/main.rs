//! Sums orders by user, finds the best users, and joins orders with payments, in windows of ten seconds.

use std::process::ExitCode;

use millstream::{Timestamp, out_of_order, secs, tumbling};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Order {
    id: u64,
    user: String,
    price: u64,
    time: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Payment {
    order: u64,
    time: Timestamp,
}

fn main() -> ExitCode {
    millstream::main(|app| {
        let (node, flow) = (app.node(), app.flow("orders"));
        let orders = flow
            .read(node.topic("orders").json::<Order>())
            .event_time(|order| order.time, out_of_order(secs(5)));
        let [orders, unpaid] = orders.fork();
        let [totals, ranked] = orders
            .key_by(|order| order.user.clone())
            .window(tumbling(secs(10)))
            .sum(|order| order.price)
            .serve_as("totals") // /state/orders/totals/<user>
            .fork();
        totals.write(node.topic("totals").json());
        ranked
            .top("best", 10, |total| total.value)
            .write(node.topic("best").json());

        let payments = flow
            .read(node.topic("payments").json::<Payment>())
            .event_time(|payment| payment.time, out_of_order(secs(5)))
            .key_by(|payment| payment.order);
        unpaid
            .key_by(|order| order.id)
            .window(tumbling(secs(10)))
            .join("paid", payments, |order, _| order.clone())
            .write(node.topic("paid").json());

        Ok(flow)
    })
}
