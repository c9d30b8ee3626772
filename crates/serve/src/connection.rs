//! A connection, as handlers see it.

use std::sync::Arc;

use crate::connection_time::ConnectionTime;
use crate::gate::Visitor;

/// The data that all requests of a connection share.
pub struct Connection {
    pub visitor: Arc<dyn Visitor>,
    pub time: Arc<ConnectionTime>,
}
