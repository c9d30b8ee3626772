//! The test programs that cargo has built.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;

use super::limits;

/// A test program.
pub struct Program {
    /// The package and the target, such as `millstream-log catch_up`.
    pub name: String,
    pub path: PathBuf,
    /// The folder of the package. cargo runs tests there.
    pub folder: PathBuf,
    pub limit: Duration,
}

#[derive(Deserialize)]
struct Message {
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Returns the test programs that cargo's messages name.
pub fn programs(messages: &Path) -> anyhow::Result<Vec<Program>> {
    let text = fs::read(messages).with_context(|| format!("cannot read {messages:?}"))?;
    let mut programs = Vec::new();
    for message in serde_json::Deserializer::from_slice(&text).into_iter::<Message>() {
        let message = message.with_context(|| format!("{messages:?} is no output of cargo"))?;
        programs.extend(program(message));
    }
    Ok(programs)
}

/// Returns the test program of a message, if it is about one.
fn program(message: Message) -> Option<Program> {
    if !message.profile?.test {
        return None;
    }
    let folder = message.manifest_path?.parent()?.to_owned();
    let package = folder.file_name()?.to_string_lossy().into_owned();
    let target = message.target?;
    let name = match target.kind[..] {
        [ref kind] if kind == "test" => format!("{package} {}", target.name),
        [ref kind] if kind == "bin" => format!("{package} bin"),
        _ => package,
    };
    Some(Program {
        limit: limits::limit(&name),
        name,
        path: message.executable?,
        folder,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_test_programs() {
        let folder = tempfile::tempdir().unwrap();
        let messages = folder.path().join("messages");
        let lines = r#"
            {"reason":"compiler-artifact","manifest_path":"/p/crates/log/Cargo.toml","target":{"kind":["lib"],"name":"millstream_log"},"profile":{"test":true},"executable":"/t/log-1"}
            {"reason":"compiler-artifact","manifest_path":"/p/crates/log/Cargo.toml","target":{"kind":["lib"],"name":"millstream_log"},"profile":{"test":false},"executable":null}
            {"reason":"compiler-artifact","manifest_path":"/p/crates/log/Cargo.toml","target":{"kind":["test"],"name":"fetch"},"profile":{"test":true},"executable":"/t/fetch-1"}
            {"reason":"compiler-artifact","manifest_path":"/p/crates/cli/Cargo.toml","target":{"kind":["bin"],"name":"millstream"},"profile":{"test":false},"executable":"/t/millstream"}
            {"reason":"build-finished","success":true}
        "#;
        fs::write(&messages, lines).unwrap();
        let programs = programs(&messages).unwrap();
        let found = programs.iter().map(|program| {
            let path = program.path.to_str().unwrap();
            (program.name.as_str(), path)
        });
        let expected = [("log", "/t/log-1"), ("log fetch", "/t/fetch-1")];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn other_text_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let messages = folder.path().join("messages");
        fs::write(&messages, "error: could not compile").unwrap();
        assert!(programs(&messages).is_err());
    }
}
