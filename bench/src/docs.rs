//! `docs/benchmarks.md`: made from the reports, but for the remarks between its markers.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::benchmark::Benchmark;
use crate::catalog::BENCHMARKS;
use crate::report::{Report, number, verdict};

const HEAD: &str = "\
# Benchmarks

Made by `millstream-bench --write-docs` from the results of `make bench`; only the remarks are
written by hand.

Each number stands beside its limit: the same work done by hand with nothing around it, on the same
bytes, in alternating rounds of the same run; or another program that does the same; or a bound that
must be kept. Numbers are medians of the rounds, a ratio is the median of the rounds' ratios, and
above 1 ours is better; targets are for the ratio to the limit. The spread is the distance from the lowest
to the highest round, as a part of the median, and of how many rounds. Under each table stands the commit that it was
measured at; numbers of different commits or machines are not compared. Energy is in joules where the
machine counts them (RAPL), and else in CPU-seconds.
";

const REMARKS_START: &str = "<!-- remarks: written by hand, kept when the page is made anew -->";
const REMARKS_END: &str = "<!-- end of remarks -->\n";

/// Writes the page from the reports that are in folders of `results`, keeping its remarks, and the
/// tables of benchmarks that have no report there.
pub fn write(path: &Path, results: &Path) -> Result<()> {
    let old = fs::read_to_string(path).unwrap_or_default();
    let mut page = HEAD.to_owned();
    for Benchmark { name, measures, .. } in &BENCHMARKS {
        let json = results.join(name).join(format!("{name}.json"));
        let old = section_of(&old, name);
        if json.exists() {
            page += &section(&Report::read(&json)?, measures, remarks(old));
        } else {
            page += old;
        }
    }
    fs::write(path, page).with_context(|| format!("cannot write {path:?}"))
}

/// Returns the section of one benchmark, from its heading to the end of its remarks.
fn section_of<'p>(page: &'p str, name: &str) -> &'p str {
    let Some(start) = page.find(&format!("\n## {name}\n")) else {
        return "";
    };
    let section = &page[start..];
    let end = section.find(REMARKS_END);
    end.map_or("", |end| &section[..end + REMARKS_END.len()])
}

fn remarks(section: &str) -> &str {
    let after = section.split_once(REMARKS_START);
    let between = after.and_then(|(_, rest)| rest.split_once(REMARKS_END));
    between.map_or("\n\n", |(remarks, _)| remarks)
}

fn section(report: &Report, measures: &str, remarks: &str) -> String {
    let Report { name, cases, .. } = report;
    let mut section = format!(
        "
## {name}

{measures} `make bench NAME={name}`.

| case | unit | ours | spread | limit | ratio | target | | ratio to others |
|---|---|---:|---:|---:|---:|---:|---|---|
"
    );
    let optional = |value: Option<f64>| value.map(number).unwrap_or_default();
    for case in cases {
        let others = case.ratio_to_peers.iter();
        let others = others.map(|(name, ratio)| format!("{name} {}", number(*ratio)));
        let _ = writeln!(
            section,
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
    for line in report.stamps() {
        let _ = writeln!(section, "\n{line}.");
    }
    section.push_str("\nDetails:\n\n| case | what | |\n|---|---|---:|\n");
    for case in cases {
        for (name, value) in &case.details {
            let name = name.replace('_', " ");
            let _ = writeln!(section, "| {} | {name} | {} |", case.case, number(*value));
        }
    }
    section + "\n" + REMARKS_START + remarks + REMARKS_END
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Better, Case};

    #[test]
    fn remarks_outlive_the_page_and_sections_without_results_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("benchmarks.md");
        let store = |name: &str, ours| {
            let case = Case::new("append", "MB/s", Better::Higher, vec![ours]);
            let case = case.by_hand(vec![125.0]).target(0.7).peer("a queue", 50.0);
            let report = Report::now(name, vec![case]);
            fs::create_dir_all(folder.path().join(name)).unwrap();
            let json = folder.path().join(name).join(format!("{name}.json"));
            report.write(&json).unwrap();
        };
        let page = || {
            write(&path, folder.path()).unwrap();
            fs::read_to_string(&path).unwrap()
        };
        store("engine", 200.0);
        assert!(!page().contains("## log"));
        store("log", 100.0);
        let first = page();
        let row =
            "| append | MB/s | 100 | one run | 125 | 0.800 | 0.700 | reached | a queue 2.00 |";
        assert!(first.contains(row), "{first}");
        assert!(first.contains("\n\nCommit "), "{first}");

        // Each has its own remarks.
        let (log, engine) = first.split_once("\n## engine\n").unwrap();
        let remark = |section: &str, text: &str| {
            section.replace(REMARKS_START, &format!("{REMARKS_START}\n\n{text}"))
        };
        let edited = remark(log, "## Disk\n") + "\n## engine\n" + &remark(engine, "Cache.\n");
        fs::write(&path, &edited).unwrap();
        assert_eq!(page(), edited);
        fs::remove_dir_all(folder.path().join("log")).unwrap();
        assert_eq!(page(), edited);
    }
}
