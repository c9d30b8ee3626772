//! The report on test programs.

use std::process::ExitCode;

use super::process::{End, Outcome, Running};

/// The sums over all programs.
#[derive(Default)]
pub struct Totals {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// Programs that failed, each with the reason.
    failures: Vec<String>,
}

impl Totals {
    /// Adds a program that has ended, and prints a line about it; of a failed program also its output.
    pub fn add(&mut self, program: &Running, outcome: &Outcome) {
        let name = &program.program.name;
        let counts = Counts::read(&outcome.text);
        self.passed += counts.passed;
        self.failed += counts.failed;
        self.ignored += counts.ignored;
        let (time, cpu) = (outcome.time.as_secs_f64(), outcome.cpu.as_secs_f64());
        let times = format!("{time:6.1} s {cpu:6.1} CPU-s");
        let Some(reason) = failure(program, outcome) else {
            println!("{times}  {name}: {} passed", counts.passed);
            return;
        };
        println!("{}", outcome.text);
        println!("{times}  {name}: FAILED: {reason}");
        // A program that was ended has no count of its own.
        self.failed += u64::from(counts.failed == 0);
        self.failures.push(format!("{name}: {reason}"));
    }

    /// Prints the sums and the failures.
    pub fn print(&self) -> ExitCode {
        for failure in &self.failures {
            println!("FAILED: {failure}");
        }
        println!(
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.ignored
        );
        match self.failures.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        }
    }
}

/// Returns the reason why the program counts as failed.
fn failure(program: &Running, outcome: &Outcome) -> Option<String> {
    match &outcome.end {
        End::Exited(status) if status.success() => None,
        End::Exited(status) => Some(status.to_string()),
        End::TimedOut(tests) => {
            let limit = program.program.limit.as_secs();
            let tests = match tests[..] {
                [] => "its running tests are not known".to_owned(),
                _ => format!("these tests were running: {}", tests.join(", ")),
            };
            Some(format!("ended after its limit of {limit} s; {tests}"))
        }
        End::LeftProcesses(commands) => {
            Some(format!("left processes behind: {}", commands.join("; ")))
        }
    }
}

/// The results in the output of a test program.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Counts {
    /// Reads the last line of results, or the results of the tests that have ended.
    fn read(output: &str) -> Counts {
        let last = output
            .lines()
            .rev()
            .find(|line| line.starts_with("test result: "));
        let Some(last) = last else {
            let count = |result| {
                output
                    .lines()
                    .filter(|line| is_result(line, result))
                    .count()
            };
            return Counts {
                passed: count("ok") as u64,
                failed: count("FAILED") as u64,
                ignored: count("ignored") as u64,
            };
        };
        let number = |word| {
            let mut words = last.split([' ', ';', '.']).filter(|word| !word.is_empty());
            let mut before = None;
            words.find_map(|next| match next == word {
                true => before?,
                false => {
                    before = Some(next.parse().ok());
                    None
                }
            })
        };
        Counts {
            passed: number("passed").unwrap_or(0),
            failed: number("failed").unwrap_or(0),
            ignored: number("ignored").unwrap_or(0),
        }
    }
}

fn is_result(line: &str, result: &str) -> bool {
    line.starts_with("test ") && line.ends_with(&format!(" ... {result}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_from_the_last_line_or_counted() {
        let counts = Counts {
            passed: 3,
            failed: 1,
            ignored: 2,
        };
        let ended = "test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured; 7 filtered out; finished in 0.1s\n";
        assert_eq!(Counts::read(ended), counts);
        let killed = "running 9 tests\ntest a ... ok\ntest b ... FAILED\ntest c ... ok\ntest d has been running\n\
                      test e ... ok\ntest f ... ignored\ntest g ... ignored\n";
        assert_eq!(Counts::read(killed), counts);
    }
}
