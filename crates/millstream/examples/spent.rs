//! Sums orders by user, and answers requests for a sum.

use std::process::ExitCode;

use millstream::{Job, Response};

fn main() -> ExitCode {
    millstream::main(|app| {
        let totals = app.flow("totals");
        let orders = totals.read(app.node().topic("orders").json::<(String, u64)>());
        let spent = totals.engine().values::<String, u64>("spent");
        let totals =
            orders
                .key_by(|(user, _)| user.clone())
                .fold("spend", &spent, |spent, (_, price)| {
                    *spent = Some(spent.unwrap_or(0) + price);
                });
        let serving = app
            .flow("spent")
            .requests()
            .key_by(|call| call.segment(0).unwrap_or_default())
            .read("find", &spent, |_user, sum, call| match sum {
                Some(sum) => call.reply(Response::json(sum)),
                None => call.reply(Response::not_found("no such user")),
            })
            .respond();
        Ok(Job::from([totals, serving]))
    })
}
