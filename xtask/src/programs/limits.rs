//! How long a test program may run.

use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(400);

/// The programs that take longer, on two processors that others use as well.
const LONGER: [(&str, Duration); 6] = [
    ("flow flow", Duration::from_secs(1_400)),
    ("flow state", Duration::from_secs(1_400)),
    ("broker server", Duration::from_secs(600)),
    ("sim log", Duration::from_secs(900)),
    ("cli program", Duration::from_secs(900)),
    ("bench quick", Duration::from_secs(1_400)),
];

/// Returns the time limit of a test program.
pub fn limit(name: &str) -> Duration {
    let longer = LONGER.iter().find(|(longer, _)| *longer == name);
    longer.map_or(LIMIT, |(_, limit)| *limit)
}
