//! Runs a case with many seeds.

use std::sync::atomic::{AtomicU64, Ordering};

/// Runs cases with seeds from 0 on several threads, or the one that `MILLSTREAM_SEED` names. `MILLSTREAM_CASES` sets another
/// number of cases than `default_count`. Returns how many were run.
///
/// # Panics
/// When a case panics. The seed of that case is printed.
pub fn for_each_seed(default_count: u64, case: impl Fn(u64) + Sync) -> u64 {
    let variable = |name| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    if let Some(seed) = variable("MILLSTREAM_SEED") {
        case(seed);
        return 1;
    }
    let count = variable("MILLSTREAM_CASES").unwrap_or(default_count);
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= count {
                        break;
                    }
                    let run = std::panic::AssertUnwindSafe(|| case(seed));
                    if let Err(panic) = std::panic::catch_unwind(run) {
                        next.store(count, Ordering::Relaxed);
                        eprintln!("failed with MILLSTREAM_SEED={seed}");
                        std::panic::resume_unwind(panic);
                    }
                }
            });
        }
    });
    count
}
