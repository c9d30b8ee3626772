//! README shows the example `totals`, and the guide the example `spent`, and that of a join, which is a doc test.

use std::fs;
use std::path::Path;

#[test]
fn the_readme_shows_the_example_program() -> std::io::Result<()> {
    let library = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = fs::read_to_string(library.join("examples/totals.rs"))?;
    let readme = fs::read_to_string(library.join("../../README.md"))?;
    assert!(readme.contains(&format!("```rust\n{program}```\n")));
    Ok(())
}

#[test]
fn the_guide_shows_the_example_of_a_serving_flow() -> std::io::Result<()> {
    let library = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = fs::read_to_string(library.join("examples/spent.rs"))?;
    let guide = fs::read_to_string(library.join("../../docs/guide.md"))?;
    assert!(guide.contains(&format!("```rust\n{program}```\n")));
    Ok(())
}

#[test]
fn the_guide_shows_the_example_of_a_join() -> std::io::Result<()> {
    let library = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = fs::read_to_string(library.join("../../docs/guide.md"))?;
    let joins = guide.split_once("#### Joins\n").unwrap().1;
    let block = joins.split_once("```rust\n").unwrap().1;
    let block = block.split_once("```\n").unwrap().0;
    let lines = block.lines().map(|line| format!("    /// {line}"));
    let lines = lines.map(|line| line.trim_end().to_owned() + "\n");
    let source = fs::read_to_string(library.join("src/topic_joins.rs"))?;
    assert!(source.contains(&lines.collect::<String>()), "{block}");
    Ok(())
}
