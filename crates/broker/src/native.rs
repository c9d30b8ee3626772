//! The native requests, and what is not supported.

use std::sync::Arc;

use millstream_wire::{Request, ResponseError, refuse};

use crate::broker::Broker;
use crate::reply::Reply;

/// Works on a native request.
pub fn handle(_broker: &Arc<Broker>, version: i16, request: Request) -> Reply {
    refuse(&request, version, ResponseError::UnsupportedVersion, None).into()
}
