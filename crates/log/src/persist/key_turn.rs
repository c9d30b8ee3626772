//! The order in which the lanes of keyed streams are checked for missing key files.

use std::sync::Weak;

use parking_lot::Mutex;

use crate::lane::LaneState;

/// The lanes of keyed streams that the present turn has still to look at.
#[derive(Debug, Default)]
pub struct KeyTurn {
    pub lanes: Mutex<Vec<Weak<LaneState>>>,
}
