//! Counts the edits of a wiki by user and by page: the path from a topic over the state of a flow to an answer.
//!
//! The topic `edits` has a JSON record for each edit. The flow's state answers at `/state/edits/by_user/<user>` and
//! `/state/edits/by_page/<page>`, and the keyed topics `edits.state.by_user` and `edits.state.by_page` hold it as of the
//! last checkpoint.
//!
//! ```text
//! edits --server localhost:9092 --http 127.0.0.1:8081
//! ```

use std::process::ExitCode;

use serde::{Deserialize, Serialize};

/// The fields of an edit that count.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Edit {
    user: String,
    page: String,
}

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    millstream::main(|app| {
        let flow = app.flow("edits");
        let edits = flow.read(app.node().topic("edits").json::<Edit>());
        let [by_user, by_page] = edits.fork();
        by_user
            .key_by(|edit| edit.user.clone())
            .state("by_user")
            .count();
        by_page
            .key_by(|edit| edit.page.clone())
            .state("by_page")
            .count();
        Ok(flow)
    })
}
