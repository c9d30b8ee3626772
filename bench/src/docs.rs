//! `docs/benchmarks.md`: made from a report, but for the remarks between its markers.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::report::{Report, number, verdict};

const REMARKS_START: &str = "<!-- remarks: written by hand, kept when the page is made anew -->";
const REMARKS_END: &str = "<!-- end of remarks -->";

/// Writes the page, keeping the remarks that it has.
pub fn write(path: &Path, report: &Report) -> Result<()> {
    let old = fs::read_to_string(path).unwrap_or_default();
    fs::write(path, page(report, remarks(&old))).with_context(|| format!("cannot write {path:?}"))
}

fn remarks(page: &str) -> &str {
    let after = page.split_once(REMARKS_START);
    let between = after.and_then(|(_, rest)| rest.split_once(REMARKS_END));
    between.map_or("\n\n", |(remarks, _)| remarks)
}

fn page(report: &Report, remarks: &str) -> String {
    let Report {
        name,
        machine,
        date,
        cases,
    } = report;
    let mut page = format!(
        "\
# Benchmarks

Made by `millstream-bench --write-docs` from the results of `make bench NAME={name}`; only the
remarks are written by hand.

Each number stands beside its limit: the same work done by hand with nothing around it, on the same
bytes, in alternating rounds of the same run, or a bound that must be kept. Numbers are medians of
the rounds, a ratio is the median of the rounds' ratios, and above 1 ours is better. The spread is
the distance from the lowest to the highest round, as a part of the median.

## {name}

{date}; {machine}.

| case | unit | ours | spread | limit | ratio | target | |
|---|---|---:|---:|---:|---:|---:|---|
"
    );
    let optional = |value: Option<f64>| value.map(number).unwrap_or_default();
    for case in cases {
        let _ = writeln!(
            page,
            "| {} | {} | {} | {:.0} % | {} | {} | {} | {} |",
            case.case,
            case.unit,
            number(case.ours),
            case.spread * 100.0,
            optional(case.limit),
            optional(case.ratio_to_limit),
            optional(case.target),
            verdict(case),
        );
    }
    page.push_str("\nWhat else was measured:\n\n| case | what | |\n|---|---|---:|\n");
    for case in cases {
        for (name, ratio) in &case.ratio_to_peers {
            let _ = writeln!(
                page,
                "| {} | ratio to {name} | {} |",
                case.case,
                number(*ratio)
            );
        }
        for (name, value) in &case.details {
            let name = name.replace('_', " ");
            let _ = writeln!(page, "| {} | {name} | {} |", case.case, number(*value));
        }
    }
    page + "\n" + REMARKS_START + remarks + REMARKS_END + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Better, Case};

    #[test]
    fn remarks_outlive_the_page() {
        let case = Case::new("append", "MB/s", Better::Higher, vec![100.0]);
        let report = Report::now("log", vec![case.by_hand(vec![125.0]).target(0.7)]);
        let first = page(&report, remarks(""));
        assert!(first.contains("| append | MB/s | 100 | 0 % | 125 | 0.800 | 0.700 | reached |"));
        let edited = first.replace(REMARKS_START, &format!("{REMARKS_START}\n\nSlow disk."));
        assert!(page(&report, remarks(&edited)).contains("\n\nSlow disk.\n\n"));
        assert_eq!(page(&report, remarks(&edited)), edited);
    }
}
