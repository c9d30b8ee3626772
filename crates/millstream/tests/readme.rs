//! README shows the example `totals`.

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
