//! Tests the program from outside. This test also makes `cargo test` build the program, so `make test` can run it
//! without another build.

use std::process::Command;

#[test]
fn an_unknown_command_is_wrong_usage() {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("unknown")
        .output()
        .expect("xtask starts");
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "usage: cargo xtask tidy|circles|requests|tests FILE\n"
    );
}
