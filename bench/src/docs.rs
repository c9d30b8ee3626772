//! The pages about benchmarks, and the files with their figures. Between markers the pages have remarks that are written
//! by hand.

mod figures;
mod headlines;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::benchmark::Benchmark;
use crate::catalog::BENCHMARKS;
use crate::report::{Case, Report, number, verdict};

/// The page with the cases that have a target.
const SUMMARY: &str = "benchmarks.md";

/// The page with the remarks.
const DETAILS: &str = "benchmarks-details.md";

/// The folder with a file of all figures for each benchmark.
const FIGURES: &str = "benchmarks";

const SUMMARY_HEAD: &str = "\
# Benchmarks

The figures that readers ask for first. Both sides of a line did the same work on the same machine, in turn. `times as good`
above 1 means that Millstream is better. The sections below have the machine, the date, the spread and more cases.

";

const SUMMARY_TABLES: &str = "
## How to read the tables

`millstream-bench --write-docs` generates this page from the results of `make bench`. The tables show the cases
with a target, or all cases of a benchmark without targets. [Benchmark details](benchmarks-details.md) has the
methods, explanations, and files with all figures.

| column | meaning |
|---|---|
| ours | the median of the rounds |
| spread | the distance from the lowest to the highest round, in percent of the median, and the number of rounds |
| limit | the same work done by hand, on the same bytes and in alternating rounds of the same run; or another program that does the same work; or a bound |
| ratio | the median of the rounds' ratios to the limit; above 1 Millstream is better than the limit |
| target | the lowest ratio that counts as reached |
| ratio to others | the same ratio to each other program, or to another way to do the work |

The line under each table has the commit, the date and the machine. Compare figures of the same commit and machine only.
";

const DETAILS_HEAD: &str = "\
# Benchmark details

The methods of the benchmarks, and explanations. Each section links a file with all figures: for each case ours, the limit,
other programs, and further figures. `millstream-bench --write-docs` writes the files from the results of `make bench`.
[Benchmarks](benchmarks.md#how-to-read-the-tables) explains the columns. Energy is in joules if the machine counts them
(RAPL), and else in CPU-seconds.
";

const REMARKS_START: &str = "<!-- remarks: written by hand, kept when the page is made anew -->";
const REMARKS_END: &str = "<!-- end of remarks -->\n";

/// Writes the pages and the files of figures in the folder `docs` from the reports in the folders of `results`. Keeps the
/// remarks, and the sections and files of benchmarks without a report there.
pub fn write(docs: &Path, results: &Path) -> Result<()> {
    let paths = [SUMMARY, DETAILS].map(|page| docs.join(page));
    let old = paths
        .each_ref()
        .map(|path| fs::read_to_string(path).unwrap_or_default());
    let folder = docs.join(FIGURES);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {folder:?}"))?;
    let mut sections = [String::new(), String::new()];
    let mut all_figures = Vec::new();
    for benchmark in &BENCHMARKS {
        let Benchmark { name, measures, .. } = benchmark;
        let json = results.join(name).join(format!("{name}.json"));
        let file = folder.join(format!("{name}.csv"));
        let [old_summary, old_details] = old.each_ref().map(|page| section_of(page, name));
        if json.exists() {
            let report = Report::read(&json)?;
            figures::write(&file, &figures::rows(&report))?;
            sections[0] += &summary(&report, measures);
            sections[1] += &details(name, remarks(old_details));
        } else {
            sections[0] += old_summary;
            sections[1] += old_details;
        }
        if file.exists() {
            all_figures.push((*name, figures::read(&file)?));
        }
    }
    let [summary, details] = sections;
    let headlines = headlines::table(&all_figures);
    let pages = [
        format!("{SUMMARY_HEAD}{headlines}{SUMMARY_TABLES}{summary}"),
        format!("{DETAILS_HEAD}{details}"),
    ];
    for (path, page) in paths.iter().zip(pages) {
        fs::write(path, page).with_context(|| format!("cannot write {path:?}"))?;
    }
    Ok(())
}

/// Returns the section of one benchmark, from its heading to the heading of the next benchmark.
fn section_of<'p>(page: &'p str, name: &str) -> &'p str {
    let heading = |name: &str| format!("\n## {name}\n");
    let Some((_, section)) = page.split_once(&heading(name)) else {
        return "";
    };
    let ends = BENCHMARKS.iter().map(|other| heading(other.name));
    let end = ends.filter_map(|other| section.find(&other)).min();
    let start = page.len() - section.len() - heading(name).len();
    &page[start..page.len() - section.len() + end.unwrap_or(section.len())]
}

fn remarks(section: &str) -> &str {
    let after = section.split_once(REMARKS_START);
    let between = after.and_then(|(_, rest)| rest.split_once(REMARKS_END));
    between.map_or("\n\n", |(remarks, _)| remarks)
}

fn summary(report: &Report, measures: &str) -> String {
    let name = &report.name;
    let has_targets = report.cases.iter().any(|case| case.target.is_some());
    let is_shown = |case: &&Case| case.target.is_some() || !has_targets;
    format!("\n## {name}\n\n{measures} `make bench NAME={name}`; [details]({DETAILS}#{name}).\n\n")
        + &table(report.cases.iter().filter(is_shown))
        + &stamps(report)
}

fn details(name: &str, remarks: &str) -> String {
    format!(
        "\n## {name}\n\n`make bench NAME={name}`; [all figures]({FIGURES}/{name}.csv).\n\n\
         {REMARKS_START}{remarks}{REMARKS_END}"
    )
}

fn table<'c>(cases: impl Iterator<Item = &'c Case>) -> String {
    let mut table = "\
| case | unit | ours | spread | limit | ratio | target | | ratio to others |
|---|---|---:|---:|---:|---:|---:|---|---|
"
    .to_owned();
    let optional = |value: Option<f64>| value.map(number).unwrap_or_default();
    for case in cases {
        let others = case.ratio_to_peers.iter();
        let others = others.map(|(name, ratio)| format!("{name} {}", number(*ratio)));
        let _ = writeln!(
            table,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            case.case,
            case.unit,
            number(case.ours),
            case.spread_of_rounds(),
            optional(case.limit),
            optional(case.ratio_to_limit),
            optional(case.target),
            verdict(case),
            others.collect::<Vec<_>>().join(", "),
        );
    }
    table
}

fn stamps(report: &Report) -> String {
    let lines = report.stamps().into_iter();
    lines.map(|line| format!("\n{line}.\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Better;

    /// A folder of results and of pages.
    struct Pages(tempfile::TempDir);

    impl Pages {
        fn store(&self, name: &str, cases: Vec<Case>) {
            let folder = self.0.path().join(name);
            fs::create_dir_all(&folder).unwrap();
            let json = folder.join(format!("{name}.json"));
            Report::now(name, cases).write(&json).unwrap();
        }

        fn write(&self) -> [String; 2] {
            write(self.0.path(), self.0.path()).unwrap();
            [SUMMARY, DETAILS].map(|page| fs::read_to_string(self.0.path().join(page)).unwrap())
        }

        fn figures(&self, name: &str) -> String {
            let file = self.0.path().join(FIGURES).join(format!("{name}.csv"));
            fs::read_to_string(file).unwrap()
        }
    }

    fn append(ours: f64) -> Case {
        let case = Case::new("append", "MB/s", Better::Higher, vec![ours]);
        case.by_hand(vec![125.0]).peer("a queue, locked", 50.0)
    }

    const ROW: &str =
        "| append | MB/s | 100 | one run | 125 | 0.800 | 0.700 | reached | a queue, locked 2.00 |";

    #[test]
    fn the_summary_has_the_cases_with_a_target_and_the_file_has_all() {
        let pages = Pages(tempfile::tempdir().unwrap());
        let other = Case::new("open", "s", Better::Lower, vec![3.0]).detail("cpu_s", 4.0);
        pages.store("log", vec![append(100.0).target(0.7), other.clone()]);
        pages.store("engine", vec![other]);
        let [summary, details] = pages.write();
        assert!(summary.contains(ROW), "{summary}");
        assert!(summary.contains("\n\nCommit "), "{summary}");
        assert!(summary.contains("[details](benchmarks-details.md#log)"));
        // Without any target, all cases are shown.
        assert_eq!(summary.matches("| open | s | 3.00 |").count(), 1);
        assert!(details.contains("[all figures](benchmarks/log.csv)"));
        let file = pages.figures("log");
        let mut lines = file
            .lines()
            .map(|line| line.rsplitn(3, ',').nth(2).unwrap());
        let head = "case,figure,unit,value,spread_percent,rounds,limit,ratio,target,verdict";
        assert_eq!(lines.next(), Some(head));
        assert_eq!(
            lines.collect::<Vec<_>>(),
            [
                "append,ours,MB/s,100,,1,125,0.800,0.700,reached",
                "append,\"a queue, locked\",MB/s,50.0,,,,2.00,,",
                "open,ours,s,3.00,,1,,,,",
                "open,cpu s,,4.00,,,,,,",
            ]
        );
    }

    #[test]
    fn the_head_of_the_summary_answers_questions_that_have_a_figure() {
        let pages = Pages(tempfile::tempdir().unwrap());
        let memory = Case::new("resources/memory-idle", "MiB", Better::Lower, vec![16.0]);
        pages.store("broker", vec![memory.by_hand(vec![384.0])]);
        let state = Case::new(
            "throughput/1000000-keys",
            "M events/s",
            Better::Higher,
            vec![20.0],
        );
        pages.store("state", vec![state.peer("Flink with RocksDB", 0.5)]);
        let line =
            "| Memory of a server at rest | 16.0 MiB | Kafka: 384 | 24.0 | [broker](#broker) |\n";
        let other = "| 20.0 M events/s | Flink with RocksDB: 0.500 | 40.0 | [state](#state) |\n";
        let [summary, _] = pages.write();
        let (head, _) = summary.split_once("\n## How to read the tables\n").unwrap();
        assert!(head.contains(line) && head.contains(other), "{head}");
        assert_eq!(head.matches("](#").count(), 2, "{head}");
        // The file has the figure when the result is gone.
        fs::remove_dir_all(pages.0.path().join("broker")).unwrap();
        assert_eq!(pages.write()[0], summary);
    }

    #[test]
    fn rewriting_a_page_keeps_remarks_and_sections_without_results() {
        let pages = Pages(tempfile::tempdir().unwrap());
        pages.store("engine", vec![append(200.0)]);
        assert!(pages.write().iter().all(|page| !page.contains("## log")));
        pages.store("log", vec![append(100.0)]);
        let [summary, details] = pages.write();

        // Each benchmark has its own remarks.
        let (log, engine) = details.split_once("\n## engine\n").unwrap();
        let remark = |section: &str, text: &str| {
            section.replace(REMARKS_START, &format!("{REMARKS_START}\n\n{text}"))
        };
        let edited = remark(log, "## Disk\n") + "\n## engine\n" + &remark(engine, "Cache.\n");
        fs::write(pages.0.path().join(DETAILS), &edited).unwrap();
        assert_eq!(pages.write(), [summary.clone(), edited.clone()]);
        fs::remove_dir_all(pages.0.path().join("log")).unwrap();
        assert_eq!(pages.write(), [summary, edited]);
    }
}
