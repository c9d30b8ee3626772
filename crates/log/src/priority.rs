//! The priority of threads that work on old data.

/// The nice value of a background thread: it gets about a tenth of the processor time of a competing foreground thread.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Lowers the priority of the calling thread, so that work on old data gives way to producers and to consumers at the head.
/// Where that is not possible, it goes on as it is.
pub fn lower() {
    // Elsewhere, this would be the priority of the whole process.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, NICE);
}
