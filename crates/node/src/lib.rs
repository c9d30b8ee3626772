//! A node in the process: its listeners for Kafka's clients, and its pages over HTTP.
//!
//! [`BoundNode`] binds the listeners of a log before the log is open; [`ServedNode`] is the running broker. [`NodeContent`]
//! has the pages of both for an HTTP server, `/kv` included, and [`BoundNode::gate`] admits visitors to them by the users
//! and the access rules of the listeners. The program `millstream` and applications of the library use the same.

mod content;
mod found;
mod gate;
mod keyed;
mod keyed_errors;
mod log_metrics;
mod metrics;
mod served;
mod values;
mod watch;

pub use content::NodeContent;
pub use log_metrics::log_metrics;
pub use served::{BoundNode, ServedNode, check_exposed};
pub use values::{
    Listener, Listeners, NoAddress, OBJECTIVE_MAX, OBJECTIVE_MIN, Principals, host_and_port,
    listeners, objective, principals,
};
