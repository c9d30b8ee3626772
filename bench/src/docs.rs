//! The pages about benchmarks, and the files with their figures. Between markers the pages have remarks that are written
//! by hand.

mod figures;
mod headlines;

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use self::figures::Row;
use crate::benchmark::Benchmark;
use crate::catalog::BENCHMARKS;
use crate::report::{Report, Stamp};

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

/// Writes the pages and the files of figures in the folder `docs`. Cases that have a result in a report in the folders of
/// `results` get new figures; all others keep those of the files. Keeps the remarks.
pub fn write(docs: &Path, results: &Path) -> Result<()> {
    let paths = [SUMMARY, DETAILS].map(|page| docs.join(page));
    let old_details = fs::read_to_string(&paths[1]).unwrap_or_default();
    let folder = docs.join(FIGURES);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {folder:?}"))?;
    let mut sections = [String::new(), String::new()];
    let mut all_figures = Vec::new();
    for benchmark in &BENCHMARKS {
        let Benchmark { name, measures, .. } = benchmark;
        let json = results.join(name).join(format!("{name}.json"));
        let file = folder.join(format!("{name}.csv"));
        let mut rows = match file.exists() {
            true => figures::read(&file)?,
            false => Vec::new(),
        };
        if json.exists() {
            rows = updated(name, &rows, &figures::rows(&Report::read(&json)?));
            figures::write(&file, &rows)?;
        }
        if rows.is_empty() {
            continue;
        }
        sections[0] += &summary(name, measures, &rows);
        sections[1] += &details(name, remarks(section_of(&old_details, name)));
        all_figures.push((*name, rows));
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

/// Returns the rows of a benchmark's file, with the cases of a newer report in the place of its own.
fn updated(name: &str, old: &[Row], new: &[Row]) -> Vec<Row> {
    let mut cases: Vec<&[Row]> = figures::by_case(old).collect();
    let mut kept: Vec<&str> = figures::by_case(old)
        .map(|rows| &rows[0].case[..])
        .collect();
    for rows in figures::by_case(new) {
        let case = &rows[0].case;
        kept.retain(|kept| kept != case);
        match cases.iter_mut().find(|old| old[0].case == *case) {
            Some(old) => *old = rows,
            None => cases.push(rows),
        }
    }
    if !kept.is_empty() {
        let kept = kept.join(", ");
        eprintln!("bench: {name}: no new results of these cases, their figures stay: {kept}");
    }
    cases.concat()
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

fn summary(name: &str, measures: &str, rows: &[Row]) -> String {
    let has_targets = rows.iter().any(|row| !row.target.is_empty());
    let is_shown = |case: &&[Row]| !case[0].target.is_empty() || !has_targets;
    format!("\n## {name}\n\n{measures} `make bench NAME={name}`; [details]({DETAILS}#{name}).\n\n")
        + &table(figures::by_case(rows).filter(is_shown))
        + &stamps(rows)
}

fn details(name: &str, remarks: &str) -> String {
    format!(
        "\n## {name}\n\n`make bench NAME={name}`; [all figures]({FIGURES}/{name}.csv).\n\n\
         {REMARKS_START}{remarks}{REMARKS_END}"
    )
}

fn table<'r>(cases: impl Iterator<Item = &'r [Row]>) -> String {
    let mut table = "\
| case | unit | ours | spread | limit | ratio | target | | ratio to others |
|---|---|---:|---:|---:|---:|---:|---|---|
"
    .to_owned();
    for case in cases {
        let ours = &case[0];
        let spread = match ours.spread_percent.is_empty() {
            true => "one run".to_owned(),
            false => format!("{} % of {}", ours.spread_percent, ours.rounds),
        };
        let others = case[1..].iter().filter(|row| !row.ratio.is_empty());
        let others = others.map(|row| format!("{} {}", row.figure, row.ratio));
        let _ = writeln!(
            table,
            "| {} | {} | {} | {spread} | {} | {} | {} | {} | {} |",
            ours.case,
            ours.unit,
            ours.value,
            ours.limit,
            ours.ratio,
            ours.target,
            ours.verdict,
            others.collect::<Vec<_>>().join(", "),
        );
    }
    table
}

/// Returns a line for each run: first for the one with the most cases, then for the others, with the names of their cases.
fn stamps(rows: &[Row]) -> String {
    let mut runs: Vec<(Stamp, Vec<&str>)> = Vec::new();
    for case in figures::by_case(rows) {
        let (stamp, name) = (case[0].stamp(), &case[0].case[..]);
        match runs.iter_mut().find(|(other, _)| *other == stamp) {
            Some((_, names)) => names.push(name),
            None => runs.push((stamp, vec![name])),
        }
    }
    runs.sort_by_key(|(_, names)| Reverse(names.len()));
    let lines = runs.iter().enumerate();
    let lines = lines.map(|(index, (stamp, names))| match index {
        0 => format!("\n{}.\n", stamp.line()),
        _ => format!("\n{}: {}.\n", names.join(", "), stamp.line()),
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::project;
    use crate::report::{Better, Case};

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

        /// Removes the results, as on another day.
        fn forget(&self, name: &str) {
            fs::remove_dir_all(self.0.path().join(name)).unwrap();
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
        let mut lines = file.lines();
        let head = "case,figure,unit,value,spread_percent,rounds,limit,ratio,target,verdict,commit,date,machine";
        assert_eq!(lines.next(), Some(head));
        let Stamp {
            commit,
            date,
            machine,
        } = Report::now("log", Vec::new()).stamp;
        let stamp = format!(",{},{date},\"{machine}\"", commit.unwrap_or_default());
        assert_eq!(
            lines
                .map(|line| line.strip_suffix(&stamp).unwrap())
                .collect::<Vec<_>>(),
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
        pages.forget("broker");
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
        pages.forget("log");
        assert_eq!(pages.write(), [summary, edited]);
    }

    #[test]
    fn pages_without_results_stay_as_they_are() {
        let pages = Pages(tempfile::tempdir().unwrap());
        let open = Case::new("open", "s", Better::Lower, vec![3.0, 3.3, 3.0]);
        let open = open.by_hand(vec![6.0, 6.0, 6.0]).target(1.5);
        let mut read = Case::new("read", "s", Better::Lower, vec![1.0]).bound(2.0);
        read.stamp = Some(Stamp {
            commit: None,
            date: "2026-01-31".to_owned(),
            machine: "one, with a comma".to_owned(),
        });
        let cases = vec![append(100.0).target(0.7), open.detail("cpu_s", 4.0), read];
        pages.store("log", cases);
        pages.store("engine", vec![append(200.0)]);
        let (written, file) = (pages.write(), pages.figures("log"));
        let run = "\n\nread: Commit unknown, 2026-01-31; one, with a comma.\n";
        assert!(written[0].contains(run), "{}", written[0]);
        pages.forget("log");
        pages.forget("engine");
        assert_eq!(pages.write(), written);
        assert_eq!(pages.figures("log"), file);
    }

    #[test]
    fn a_new_result_of_one_case_replaces_only_its_figures() {
        let pages = Pages(tempfile::tempdir().unwrap());
        let open = |ours| Case::new("open", "s", Better::Lower, vec![ours]);
        let at = |mut case: Case, date: &str| {
            case.stamp = Some(Stamp {
                date: date.to_owned(),
                ..Report::now("log", Vec::new()).stamp
            });
            case
        };
        let append = append(100.0).detail("cpu_s", 4.0);
        let old = ["2026-01-31", "2026-01-31"];
        let new = ["2026-01-31", "2026-02-28"];
        let both =
            |ours, dates: [&str; 2]| vec![at(append.clone(), dates[0]), at(open(ours), dates[1])];
        let expected = Pages(tempfile::tempdir().unwrap());
        expected.store("log", both(2.0, new));
        let expected = (expected.write(), expected.figures("log"));

        pages.store("log", both(3.0, old));
        pages.write();
        pages.forget("log");
        pages.store("log", vec![at(open(2.0), new[1])]);
        assert_eq!((pages.write(), pages.figures("log")), expected);
        // A case that the file lacks comes last.
        pages.forget("log");
        let close = Case::new("close", "s", Better::Lower, vec![1.0]);
        pages.store("log", vec![at(close, new[1])]);
        let [summary, _] = pages.write();
        let cases = summary.lines().filter(|line| line.starts_with("| "));
        let names = cases.filter_map(|line| line.split(" | ").next());
        let names: Vec<&str> = names.collect();
        assert!(
            names.ends_with(&["| append", "| open", "| close"]),
            "{names:?}"
        );
    }

    #[test]
    fn the_pages_of_this_project_follow_from_their_files() {
        let docs = project::root().join("docs");
        let pages = Pages(tempfile::tempdir().unwrap());
        let folder = pages.0.path().join(FIGURES);
        fs::create_dir(&folder).unwrap();
        for entry in fs::read_dir(docs.join(FIGURES)).unwrap() {
            let file = entry.unwrap();
            fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        }
        let shown = [SUMMARY, DETAILS].map(|page| fs::read_to_string(docs.join(page)).unwrap());
        fs::write(pages.0.path().join(DETAILS), &shown[1]).unwrap();
        let is_same = pages.write() == shown;
        assert!(is_same, "run `millstream-bench --write-docs`");
    }
}
