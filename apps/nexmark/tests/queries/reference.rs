//! Events of another generator, and the answers of another program.
//!
//! The data is not in the repository, but in the folder that `MILLSTREAM_TEST_DATA` names, or in `../shared/data` beside the
//! repository. Without it the tests are skipped.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use millstream::{Error, Node};
use millstream_nexmark::Origin;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Returns a file of the data; `None` if it is not on this machine.
fn file(name: &str) -> Option<Vec<u8>> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = std::env::var_os("MILLSTREAM_TEST_DATA").map_or(beside, PathBuf::from);
    let path = folder.join(name);
    let bytes = fs::read(&path);
    if bytes.is_err() {
        let path = path.display();
        eprintln!("skipped: there is no {path}; set MILLSTREAM_TEST_DATA");
    }
    bytes.ok()
}

/// Returns a number as text, with three digits behind the point if it is no integer.
fn text(column: &Value) -> String {
    match column {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            format!("{:.3}", number.as_f64().unwrap_or(f64::NAN))
        }
        other => other.to_string(),
    }
}

/// Runs a query over the events. Compares `columns` of its results, which are names or indexes, with the answers.
fn check(query: &str, columns: &[&str]) -> Result<(), Error> {
    let (Some(packed), Some(answers)) = (
        file("nexmark/gen100k/events.jsonl.zst"),
        file("answers/nexmark_gen100k.json"),
    ) else {
        return Ok(());
    };
    let answers: Value = serde_json::from_slice(&answers).unwrap();
    let lines = BufReader::new(zstd::Decoder::new(&packed[..])?).lines();
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let topic = node.topic("auctions").text().partitions(3).create()?;
    topic.send(lines.collect::<Result<Vec<_>, _>>()?)?;
    super::run(&node, query, Origin::Topic("auctions".to_owned()))?;

    let column = |row: &Value, column: &&str| match column.parse::<usize>() {
        Ok(index) => text(&row[index]),
        Err(_) => text(&row[*column]),
    };
    let found = super::records(&node, query)?;
    let mut rows: Vec<String> = found
        .iter()
        .map(|row| {
            let columns: Vec<_> = columns.iter().map(|name| column(row, name)).collect();
            columns.join("\t")
        })
        .collect();
    rows.sort_unstable();
    let answer = &answers[query];
    assert_eq!(Some(rows.len() as u64), answer["row_count"].as_u64());
    let mut sha = Sha256::new();
    for row in &rows {
        sha.update(row);
        sha.update("\n");
    }
    let sha: String = sha
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(Some(sha.as_str()), answer["sha256"].as_str());
    Ok(())
}

#[test]
fn q0_gives_the_bids_of_the_reference() -> Result<(), Error> {
    check("q0", &["auction", "bidder", "price", "date_time"])
}

#[test]
fn q1_gives_the_prices_of_the_reference() -> Result<(), Error> {
    check("q1", &["0", "1", "2", "3"])
}

#[test]
fn q5_gives_the_auctions_of_the_reference() -> Result<(), Error> {
    check("q5", &["0", "1"])
}

#[test]
fn q7_gives_the_highest_bids_of_the_reference() -> Result<(), Error> {
    check("q7", &["auction", "price", "bidder", "date_time"])
}

#[test]
fn q8_gives_the_sellers_of_the_reference() -> Result<(), Error> {
    check("q8", &["0", "1", "2"])
}
