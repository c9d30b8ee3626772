//! The pages about benchmarks: the reports as tables, and between markers the remarks that are written by hand.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::benchmark::Benchmark;
use crate::catalog::BENCHMARKS;
use crate::report::{Case, Report, number, verdict};

/// The page with the cases that have a target.
const SUMMARY: &str = "benchmarks.md";

/// The page with all figures and the remarks.
const DETAILS: &str = "benchmarks-details.md";

const SUMMARY_HEAD: &str = "\
# Benchmarks

`millstream-bench --write-docs` generates this page from the results of `make bench`. It shows the cases
with a target; of a benchmark without targets it shows all cases. [Benchmark details](benchmarks-details.md) has
all cases, the methods, and explanations.

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

`millstream-bench --write-docs` generates the tables of this page from the results of `make bench`; the
explanations are written by hand. [Benchmarks](benchmarks.md) explains the columns. Energy is in joules if the
machine counts them (RAPL), and else in CPU-seconds.
";

const REMARKS_START: &str = "<!-- remarks: written by hand, kept when the page is made anew -->";
const REMARKS_END: &str = "<!-- end of remarks -->\n";

/// Writes both pages in the folder `docs` from the reports in the folders of `results`. Keeps the remarks, and the
/// sections of benchmarks without a report there.
pub fn write(docs: &Path, results: &Path) -> Result<()> {
    let paths = [SUMMARY, DETAILS].map(|page| docs.join(page));
    let old = paths
        .each_ref()
        .map(|path| fs::read_to_string(path).unwrap_or_default());
    let mut pages = [SUMMARY_HEAD, DETAILS_HEAD].map(str::to_owned);
    for benchmark in &BENCHMARKS {
        let Benchmark { name, measures, .. } = benchmark;
        let json = results.join(name).join(format!("{name}.json"));
        let [old_summary, old_details] = old.each_ref().map(|page| section_of(page, name));
        if json.exists() {
            let report = Report::read(&json)?;
            pages[0] += &summary(&report, measures);
            pages[1] += &details(&report, measures, remarks(old_details));
        } else {
            pages[0] += old_summary;
            pages[1] += old_details;
        }
    }
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

fn details(report: &Report, measures: &str, remarks: &str) -> String {
    let Report { name, cases, .. } = report;
    let mut section = format!(
        "\n## {name}\n\n{measures} `make bench NAME={name}`.\n\n{REMARKS_START}{remarks}{REMARKS_END}\nAll cases:\n\n"
    );
    section += &table(cases.iter());
    section += &stamps(report);
    section.push_str("\nFurther figures:\n\n| case | figure | |\n|---|---|---:|\n");
    for case in cases {
        for (name, value) in &case.details {
            let name = name.replace('_', " ");
            let _ = writeln!(section, "| {} | {name} | {} |", case.case, number(*value));
        }
    }
    section
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
    }

    fn append(ours: f64) -> Case {
        let case = Case::new("append", "MB/s", Better::Higher, vec![ours]);
        case.by_hand(vec![125.0]).peer("a queue", 50.0)
    }

    const ROW: &str =
        "| append | MB/s | 100 | one run | 125 | 0.800 | 0.700 | reached | a queue 2.00 |";

    #[test]
    fn the_summary_has_the_cases_with_a_target_and_the_details_have_all() {
        let pages = Pages(tempfile::tempdir().unwrap());
        let other = Case::new("open", "s", Better::Lower, vec![3.0]).detail("cpu_s", 4.0);
        pages.store("log", vec![append(100.0).target(0.7), other.clone()]);
        pages.store("engine", vec![other]);
        let [summary, details] = pages.write();
        assert!(summary.contains(ROW) && details.contains(ROW), "{summary}");
        assert!(summary.contains("\n\nCommit "), "{summary}");
        assert!(summary.contains("[details](benchmarks-details.md#log)"));
        // Without any target, all cases are shown.
        assert_eq!(summary.matches("| open | s | 3.00 |").count(), 1);
        assert_eq!(details.matches("| open | s | 3.00 |").count(), 2);
        assert_eq!(details.matches("| open | cpu s | 4.00 |").count(), 2);
    }

    #[test]
    fn remarks_outlive_the_page_and_sections_without_results_stay() {
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
