//! The end of the process after a panic of one of the log's threads.

/// Ends the process when a thread of the log panics: a broken invariant of storage must not go on.
pub struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
