//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::benchmark::Benchmark;
use crate::catalog::BENCHMARKS;
use crate::{ads, soak, torture};

/// A shorter soak or torture shows nothing.
const LASTS_MIN: Duration = Duration::from_secs(1);

/// The parsed command line.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// All benchmarks without it.
    pub name: Option<String>,
    pub case: Option<String>,
    pub quick: bool,
    pub json: bool,
    pub dir: Option<PathBuf>,
    pub out: Option<PathBuf>,
    pub write_docs: bool,
    /// For the search of each application.
    pub budget: Option<Duration>,
    /// How long soak and torture last.
    pub lasts: Option<Duration>,
    pub soak: soak::Options,
    pub torture: torture::Options,
}

impl Arguments {
    /// Reads the words behind the program's name.
    pub fn parse(words: &[String]) -> Result<Arguments, String> {
        let mut arguments = Arguments::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--case" => arguments.case = Some(value()?.clone()),
                "--dir" => arguments.dir = Some(value()?.into()),
                "--out" => arguments.out = Some(value()?.into()),
                "--for" => arguments.lasts = Some(lasts(value()?)?),
                "--budget" => arguments.budget = Some(budget(value()?)?),
                "--seed" => arguments.torture.set_seed(value()?)?,
                "--trials" => arguments.torture.set_trials(value()?)?,
                "--loop-disk" => arguments.torture.loop_disk = true,
                "--connections" => arguments.soak.set_connections(value()?)?,
                "--no-kill" => arguments.soak.spares_server = true,
                "--quick" => arguments.quick = true,
                "--json" => arguments.json = true,
                "--write-docs" => arguments.write_docs = true,
                name if BENCHMARKS.iter().any(|benchmark| benchmark.name == name) => {
                    arguments.name = Some(name.to_owned());
                }
                name => return Err(format!("unknown word {name:?}")),
            }
        }
        if let Some(case) = &arguments.case
            && arguments.benchmarks().next().is_none()
        {
            return Err(format!("unknown case {case:?}"));
        }
        let is_soak = |benchmark: &Benchmark| benchmark.name == soak::BENCHMARK.name;
        if arguments.soak != soak::Options::default() && !arguments.benchmarks().any(is_soak) {
            return Err("--connections and --no-kill are for soak".to_owned());
        }
        let is_torture = |benchmark: &Benchmark| benchmark.name == torture::BENCHMARK.name;
        if arguments.torture != torture::Options::default()
            && !arguments.benchmarks().any(is_torture)
        {
            return Err("--seed, --trials and --loop-disk are for torture".to_owned());
        }
        if arguments.torture.trials.is_some() && arguments.lasts.is_some() {
            return Err("--for and --trials exclude each other".to_owned());
        }
        let is_either = |benchmark: &Benchmark| is_soak(benchmark) || is_torture(benchmark);
        if arguments.lasts.is_some() && !arguments.benchmarks().any(is_either) {
            return Err("--for is for soak and torture".to_owned());
        }
        let is_search = |benchmark: &Benchmark| {
            let searches = [ads::SWA.name, ads::YSB.name, ads::YSB_STAR.name];
            searches.contains(&benchmark.name)
        };
        if arguments.budget.is_some() && !arguments.benchmarks().any(is_search) {
            return Err("--budget is for swa, ysb and ysb-star".to_owned());
        }
        Ok(arguments)
    }

    /// The benchmarks that are to run.
    pub fn benchmarks(&self) -> impl Iterator<Item = &'static Benchmark> {
        const { &BENCHMARKS }
            .iter()
            .filter(|benchmark| self.name.as_ref().is_none_or(|name| name == benchmark.name))
            .filter(|benchmark| {
                let case = self.case.as_ref();
                case.is_none_or(|case| benchmark.has_case(case))
            })
    }
}

fn lasts(text: &str) -> Result<Duration, String> {
    let lasts = humantime::parse_duration(text);
    let lasts = lasts.map_err(|error| format!("--for {text}: {error}; for instance 5min"))?;
    match lasts < LASTS_MIN {
        true => Err(format!("--for {text}: at least {LASTS_MIN:?}")),
        false => Ok(lasts),
    }
}

fn budget(text: &str) -> Result<Duration, String> {
    let budget = humantime::parse_duration(text);
    let budget = budget.map_err(|error| format!("--budget {text:?}: {error}"))?;
    match budget.is_zero() {
        true => Err("--budget needs some time, such as 16min".to_owned()),
        false => Ok(budget),
    }
}

/// How the program is used.
pub fn usage() -> String {
    let names = BENCHMARKS.map(|benchmark| benchmark.name);
    let cases = BENCHMARKS.map(|benchmark| {
        let cases: Vec<&str> = benchmark.cases.iter().map(|(case, _)| *case).collect();
        format!(
            "\n                  {}: {}",
            benchmark.name,
            cases.join(", ")
        )
    });
    format!(
        "\
usage: millstream-bench [{}] [options]
  --case NAME   run only this case:{}
  --quick       small sizes and few rounds: shows that the benchmarks work, not how fast it is
  --json        print a JSON document for each benchmark instead of a table
  --dir DIR     where the data lies while it runs (default: beside the results)
  --out DIR     where the results go, in a folder for each benchmark (default: target/bench)
  --budget TIME swa, ysb, ysb-star: how long each may search, with all rounds (default: 16min); the report
                names each shortened search
  --for TIME    soak, torture: how long it lasts (default: 60s)
  --seed N      torture: decides what the first trial does, and N + 1 the second (default: at random)
  --trials N    torture: how many trials, instead of a time
  --loop-disk   torture: also cut the power and fill the disk. Needs root and loop devices: a file system in a file is
                mounted where no other process sees it
  --connections N
                soak: how many at once (default: 1000)
  --no-kill     soak: do not kill the server in the middle
  --write-docs  run nothing; write docs/benchmarks.md, docs/benchmarks-details.md and docs/benchmarks/ from the results;
                cases without a result keep the figures of docs/benchmarks/",
        names.join("|"),
        cases.concat()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Arguments::parse(&words)
    }

    #[test]
    fn words_are_read_and_unknown_ones_refused() {
        let arguments = parse("log --case restart --quick --dir data").unwrap();
        assert_eq!(arguments.case.as_deref(), Some("restart"));
        assert_eq!(arguments.dir, Some("data".into()));
        assert!(arguments.quick && !arguments.json);
        let soak = parse("soak --for 90min --connections 200 --no-kill").unwrap();
        assert_eq!(soak.lasts, Some(Duration::from_secs(5400)));
        let torture = parse("torture --for 10m --seed 7").unwrap();
        assert_eq!(torture.lasts, Some(Duration::from_secs(600)));
        assert_eq!(torture.torture.seed, Some(7));
        assert!(!torture.torture.loop_disk);
        let torture = parse("torture --trials 3 --loop-disk").unwrap().torture;
        assert_eq!((torture.trials, torture.loop_disk), (Some(3), true));
        assert!(soak.soak.connections == Some(200) && soak.soak.spares_server);
        let budget = parse("ysb --budget 12min").unwrap().budget;
        assert_eq!(budget, Some(Duration::from_secs(720)));
        for line in [
            "logs",
            "--case",
            "--case speed",
            "engine --case restart",
            "--fast",
            "soak --for 3 days",
            "soak --for 0s",
            "soak --connections 10",
            "log --for 60s",
            "torture --for 0s",
            "torture --seed -1",
            "torture --trials 0",
            "torture --trials 3 --for 60s",
            "soak --loop-disk",
            "torture --no-kill",
            "soak --seed 1",
            "log --budget 60s",
            "ysb --budget 0s",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn everything_runs_unless_names_are_given() {
        let names = |line| {
            let arguments = parse(line).unwrap();
            let benchmarks = arguments.benchmarks();
            benchmarks
                .map(|benchmark| benchmark.name)
                .collect::<Vec<_>>()
        };
        let all = [
            "log",
            "keys",
            "engine",
            "broker",
            "push",
            "swa",
            "ysb",
            "ysb-star",
            "windows",
            "state",
            "nexmark",
            "ranks",
            "serving",
            "slo",
            "soak",
            "torture",
            "librdkafka",
        ];
        assert_eq!(names(""), all);
        assert_eq!(names("engine"), ["engine"]);
        assert_eq!(names("--case restart"), ["log"]);
    }
}
