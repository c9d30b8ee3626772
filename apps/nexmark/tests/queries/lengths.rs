//! Queries are short.

use std::fs;
use std::io;
use std::path::Path;

/// The most lines of a query, from its signature to its last brace.
const LINES_MAX: usize = 40;

#[test]
fn each_query_takes_at_most_forty_lines() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/queries");
    let mut queries = 0;
    for entry in fs::read_dir(folder)? {
        let text = fs::read_to_string(entry?.path())?;
        for query in text.split("\npub fn q").skip(1) {
            let (query, _) = query.split_once("\n}\n").expect("a function ends");
            let lines = query.lines().count() + 1;
            assert!(lines <= LINES_MAX, "{lines} lines: q{query}");
            queries += 1;
        }
    }
    assert_eq!(queries, millstream_nexmark::QUERIES.len() - 1);
    Ok(())
}
