//! The guide shows this program.

use std::fs;
use std::path::Path;

#[test]
fn the_guide_shows_the_program_as_it_is() -> std::io::Result<()> {
    let app = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = fs::read_to_string(app.join("src/main.rs"))?;
    let guide = fs::read_to_string(app.join("../../docs/guide.md"))?;
    assert!(guide.contains(&format!("```rust\n{program}```\n")));
    // The guide promises a short program: types and windows, and the join behind them.
    let (windows, join) = program.split_once("let payments").unwrap_or_default();
    assert!(windows.lines().count() <= 45 && join.lines().count() <= 15);
    Ok(())
}
