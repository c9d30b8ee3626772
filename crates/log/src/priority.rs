//! The priority of threads that work on old data.

/// What such a thread gets of a processor that others want, too: about a tenth as much as one of them.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Lowers the priority of the calling thread, so that work on old data gives way to producers and to consumers at the head.
/// Where that is not possible, it goes on as it is.
pub fn lower() {
    // Elsewhere, this would be the priority of the whole process.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, NICE);
}
