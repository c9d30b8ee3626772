//! The journal of the last run, until the files hold all of it.

use std::sync::Arc;

use millstream_base::Position;

use crate::group::Group;
use crate::journal::old::OldJournal;

/// The journal of the last run.
pub struct UnfinishedRecovery {
    pub journal: OldJournal,
    /// The groups that it holds runs of, with the ends of these; also those whose indexes lack entries.
    pub groups: Vec<(Arc<Group>, Position)>,
    /// Whether the journal stays until a repair: it holds chunks that cannot be appended, since some before them are
    /// missing.
    pub is_retained: bool,
}
