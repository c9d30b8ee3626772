//! The command line.

use std::path::PathBuf;

use crate::log;

/// What the command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    pub case: Option<String>,
    pub quick: bool,
    pub json: bool,
    pub dir: Option<PathBuf>,
    pub out: Option<PathBuf>,
    pub write_docs: bool,
}

impl Arguments {
    /// Reads the words behind the program's name.
    pub fn parse(words: &[String]) -> Result<Arguments, String> {
        let mut arguments = Arguments::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--case" => arguments.case = Some(value()?.clone()),
                "--dir" => arguments.dir = Some(value()?.into()),
                "--out" => arguments.out = Some(value()?.into()),
                "--quick" => arguments.quick = true,
                "--json" => arguments.json = true,
                "--write-docs" => arguments.write_docs = true,
                name if name == log::NAME => {}
                name => return Err(format!("unknown word {name:?}")),
            }
        }
        if let Some(case) = &arguments.case
            && !log::CASES.iter().any(|(name, _)| name == case)
        {
            return Err(format!("unknown case {case:?}"));
        }
        Ok(arguments)
    }
}

/// How the program is used.
pub fn usage() -> String {
    let cases: Vec<&str> = log::CASES.iter().map(|(name, _)| *name).collect();
    format!(
        "\
usage: millstream-bench [{}] [options]
  --case NAME   run only this case: {}
  --quick       small sizes and few rounds: shows that the benchmarks work, not how fast it is
  --json        print one JSON document instead of a table
  --dir DIR     where the data lies while it runs (default: target/bench/log/data)
  --out DIR     where the results go (default: target/bench/log)
  --write-docs  run nothing; write docs/benchmarks.md from the results",
        log::NAME,
        cases.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Arguments::parse(&words)
    }

    #[test]
    fn words_are_read_and_unknown_ones_refused() {
        let arguments = parse("log --case restart --quick --dir data").unwrap();
        assert_eq!(arguments.case.as_deref(), Some("restart"));
        assert_eq!(arguments.dir, Some("data".into()));
        assert!(arguments.quick && !arguments.json);
        for line in ["logs", "--case", "--case speed", "--fast"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
