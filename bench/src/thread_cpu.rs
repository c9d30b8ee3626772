//! The processor time of a process, by the names of its threads.

use std::collections::{BTreeMap, HashMap};

use anyhow::Result;

use crate::proc::{cpu_by_thread, thread_name};

/// The kernel keeps this many bytes of a thread's name.
const NAME_BYTES_MAX: usize = 15;

/// Sums up the processor time of a process. It looks from time to time, since the kernel forgets a thread that ends.
pub struct ThreadCpu {
    process: u32,
    /// By thread: its name, and its time at the last look, in nanoseconds.
    threads: HashMap<u32, (String, u64)>,
    /// By name, since the beginning, in nanoseconds.
    spent: BTreeMap<String, u64>,
}

impl ThreadCpu {
    /// Begins to count for a process that runs.
    pub fn of(process: u32) -> Result<ThreadCpu> {
        let mut cpu = ThreadCpu {
            process,
            threads: HashMap::new(),
            spent: BTreeMap::new(),
        };
        cpu.look()?;
        cpu.spent.clear();
        Ok(cpu)
    }

    /// Adds the time since the last look.
    pub fn look(&mut self) -> Result<()> {
        let now = cpu_by_thread(self.process)?;
        self.threads.retain(|thread, _| now.contains_key(thread));
        for (thread, ns) in now {
            if !self.threads.contains_key(&thread) {
                // It may have ended since.
                let Ok(name) = thread_name(self.process, thread) else {
                    continue;
                };
                self.threads.insert(thread, (name, 0));
            }
            if let Some((name, before)) = self.threads.get_mut(&thread) {
                *self.spent.entry(name.clone()).or_default() += ns.saturating_sub(*before);
                *before = ns;
            }
        }
        Ok(())
    }

    /// Returns the time of all threads up to the last look, in seconds.
    pub fn all_s(&self) -> f64 {
        self.sum_s(|_| true)
    }

    /// Returns the time of the threads with this name up to the last look, in seconds.
    pub fn named_s(&self, name: &str) -> f64 {
        let name = &name[..name.len().min(NAME_BYTES_MAX)];
        self.sum_s(|found| found == name)
    }

    fn sum_s(&self, is_counted: impl Fn(&str) -> bool) -> f64 {
        let counted = self.spent.iter().filter(|(name, _)| is_counted(name));
        counted.map(|(_, ns)| *ns as f64 / 1e9).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::hint;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_time_of_a_thread_counts_under_its_name() {
        const LIMIT: Duration = Duration::from_secs(60);
        const NAME: &str = "a busy thread with a long name";
        let stop = AtomicBool::new(false);
        let mut cpu = ThreadCpu::of(std::process::id()).unwrap();
        thread::scope(|scope| {
            let spin = || {
                while !stop.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            };
            let builder = thread::Builder::new().name(NAME.to_owned());
            builder.spawn_scoped(scope, spin).unwrap();
            let since = Instant::now();
            while cpu.named_s(NAME) < 0.01 && since.elapsed() < LIMIT {
                thread::sleep(Duration::from_millis(5));
                cpu.look().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(cpu.named_s(NAME) >= 0.01);
        assert!(cpu.all_s() >= cpu.named_s(NAME));
        assert_eq!(cpu.named_s("another"), 0.0);
        // The thread has ended, and its time stays.
        cpu.look().unwrap();
        assert!(cpu.named_s(NAME) >= 0.01);
    }
}
