//! The guide shows this program, which is short.

use std::fs;
use std::io;
use std::path::Path;

/// The folder of the application.
fn app() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn program() -> io::Result<String> {
    fs::read_to_string(app().join("src/main.rs"))
}

#[test]
fn the_guide_shows_the_current_program() -> io::Result<()> {
    let guide = fs::read_to_string(app().join("../../docs/guide.md"))?;
    assert!(guide.contains(&format!("```rust\n{}```\n", program()?)));
    Ok(())
}

#[test]
fn windows_take_at_most_forty_lines_and_a_join_fifteen_more() -> io::Result<()> {
    let program = program()?;
    let (join, windows): (Vec<&str>, Vec<&str>) = program
        .split("\n\n")
        .partition(|paragraph| paragraph.contains("Payment"));
    // A line among those of the windows.
    assert!(program.contains("let [orders, unpaid] = orders.fork();\n"));
    let fork = 1;
    let lines = |paragraphs: &[&str]| -> usize {
        let lines = paragraphs.iter().map(|paragraph| paragraph.lines().count());
        lines.sum()
    };
    let empty = windows.len() - 1;
    let counts = (lines(&windows) + empty - fork, lines(&join) + fork);
    assert!(counts.0 <= 40 && counts.1 <= 15, "{counts:?}");
    assert_eq!(join.len(), 2, "the type and the join");
    Ok(())
}
