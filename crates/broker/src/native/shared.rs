//! The state of native requests that all connections share.

use super::applications::Applications;
use super::upload::Uploads;

/// The state of native requests that all connections share.
#[derive(Default)]
pub struct Shared {
    pub uploads: Uploads,
    pub applications: Applications,
}
