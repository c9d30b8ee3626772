//! The table of requests in the page of the protocol. Each row comes from the table in the code and from the sentence
//! above the request's entry in the broker.

use std::collections::BTreeMap;
use std::fs;

use anyhow::Context;

use super::Problem;
use crate::tree::Tree;

const TABLE: &str = "crates/wire/src/table.rs";
const ENTRIES: &str = "crates/broker/src/requests/";
const PAGE: &str = "docs/protocol.md";

/// The lines of the page before and behind the rows.
const BEGIN: &str = "<!-- requests: `cargo xtask requests` writes this table -->\n";
const END: &str = "<!-- end of requests -->\n";

const HEAD: &str = "| key | request | versions | flexible from | effect |\n|---|---|---|---|---|\n";

/// Native requests have a section of their own each, and their keys begin here.
const NATIVE_FROM: u16 = 10_000;

/// The page must have the rows of the table.
pub fn check(tree: &Tree) -> Vec<Problem> {
    match page(tree) {
        Ok(page) if tree.text(PAGE) == Some(page.as_str()) => Vec::new(),
        Ok(_) => {
            let what = "the table of requests is out of date: run `cargo xtask requests`";
            vec![Problem::new(PAGE, what)]
        }
        Err(problems) => problems,
    }
}

/// Writes the rows into the page. Returns the problems that prevent this.
pub fn write(tree: &Tree) -> anyhow::Result<Vec<Problem>> {
    match page(tree) {
        Ok(page) => {
            fs::write(tree.root().join(PAGE), page)
                .with_context(|| format!("cannot write {PAGE}"))?;
            Ok(Vec::new())
        }
        Err(problems) => Ok(problems),
    }
}

/// Returns the page with the rows of the table.
fn page(tree: &Tree) -> Result<String, Vec<Problem>> {
    let text = |path| {
        let missing = || vec![Problem::new(path, "there is no such file")];
        tree.text(path).ok_or_else(missing)
    };
    let (page, table) = (text(PAGE)?, text(TABLE)?);
    let rows = rows(table, &sentences(tree))?;
    let parts = page.split_once(BEGIN);
    let parts = parts.and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let Some((before, behind)) = parts else {
        let what = format!("it lacks the lines\n{BEGIN}{END}");
        return Err(vec![Problem::new(PAGE, what)]);
    };
    Ok([before, BEGIN, HEAD, &rows, END, behind].concat())
}

/// Returns the first sentence above the entry of each request, by the request's name.
fn sentences(tree: &Tree) -> BTreeMap<&str, &str> {
    let files = tree.texts().filter(|(path, _)| path.starts_with(ENTRIES));
    let entries = files.flat_map(|(_, text)| {
        let mut comment = None;
        text.lines().filter_map(move |line| {
            if let Some(sentence) = line.strip_prefix("/// ") {
                comment.get_or_insert(sentence);
                return None;
            }
            let sentence = comment.take()?;
            let name = line.strip_prefix("impl Handle for ")?;
            Some((name.strip_suffix("Request {")?, sentence))
        })
    });
    entries.collect()
}

/// Returns the rows of all requests.
fn rows(table: &str, sentences: &BTreeMap<&str, &str>) -> Result<String, Vec<Problem>> {
    let (mut rows, mut problems) = (String::new(), Vec::new());
    for (index, line) in table.lines().enumerate() {
        let Some(request) = Request::parse(line) else {
            continue;
        };
        match sentences.get(request.name) {
            Some(sentence) => rows.push_str(&request.row(sentence)),
            None => {
                let what = format!(
                    "{} has no entry in {ENTRIES}, or no sentence stands above it",
                    request.name
                );
                problems.push(Problem::at_line(TABLE, index + 1, what));
            }
        }
    }
    match problems.is_empty() {
        true => Ok(rows),
        false => Err(problems),
    }
}

/// A row of the table in the code.
struct Request<'a> {
    name: &'a str,
    key: u16,
    version_min: &'a str,
    version_max: &'a str,
    /// The first version with compact lengths, or an expression for none.
    flexible_from: &'a str,
}

impl<'a> Request<'a> {
    /// Reads a line such as `Fetch = 1, Request, Response, 4..=18, 12;`.
    fn parse(line: &'a str) -> Option<Request<'a>> {
        let (name, rest) = line.trim().strip_suffix(';')?.split_once(" = ")?;
        let mut cells = rest.split(", ");
        let key = cells.next()?.parse().ok()?;
        let (version_min, version_max) = cells.nth(2)?.split_once("..=")?;
        Some(Request {
            name,
            key,
            version_min,
            version_max,
            flexible_from: cells.next()?,
        })
    }

    fn row(&self, sentence: &str) -> String {
        let Request { name, key, .. } = self;
        let name = match *key {
            NATIVE_FROM.. => format!("[{name}](#{}-{key})", name.to_lowercase()),
            _ => (*name).to_owned(),
        };
        let versions = match self.version_min == self.version_max {
            true => self.version_min.to_owned(),
            false => format!("{}–{}", self.version_min, self.version_max),
        };
        let flexible = match self.flexible_from {
            "i16::MAX" => "never",
            version => version,
        };
        format!("| {key} | {name} | {versions} | {flexible} | {sentence} |\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "    macro_rules! names {\n\
        \x20   Produce = 0, $crate::A, $crate::B, 3..=13, 9;\n\
        \x20   OffsetDelete = 47, $crate::A, $crate::B, 0..=0, i16::MAX;\n\
        \x20   GetKeys = 10021, $crate::A, $crate::B, 0..=0, 0;\n";

    const CODE: &str = "/// A constant.\nconst N: u8 = 1;\n\nimpl Handle for OtherRequest {}\n\
        /// Appends.\n/// Further words.\nimpl Handle for ProduceRequest {\n\
        /// Deletes.\nimpl Handle for OffsetDeleteRequest {\n";

    fn page_of(rows: &str) -> String {
        format!("# Protocol\n\n{BEGIN}{HEAD}{rows}{END}\nrest\n")
    }

    fn tree<'a>(page: &'a str, code: &'a str) -> Tree {
        Tree::of(&[
            (PAGE, page),
            (TABLE, ROWS),
            ("crates/broker/src/requests/a.rs", CODE),
            ("crates/broker/src/requests/keys/b.rs", code),
        ])
    }

    #[test]
    fn rows_come_from_the_table_and_the_entries() {
        let keys = "/// Returns keys.\nimpl Handle for GetKeysRequest {\n";
        let old = page_of("| 1 | Fetch | 4 | 12 | Reads. |\n");
        let tree = tree(&old, keys);
        let new = page_of(
            "| 0 | Produce | 3–13 | 9 | Appends. |\n\
             | 47 | OffsetDelete | 0 | never | Deletes. |\n\
             | 10021 | [GetKeys](#getkeys-10021) | 0 | 0 | Returns keys. |\n",
        );
        assert_eq!(page(&tree).as_deref(), Ok(new.as_str()));
        assert_eq!(check(&tree).len(), 1);
        let current = Tree::of(&[
            (PAGE, &new),
            (TABLE, ROWS),
            ("crates/broker/src/requests/a.rs", CODE),
            ("crates/broker/src/requests/b.rs", keys),
        ]);
        assert_eq!(check(&current), []);
    }

    #[test]
    fn a_request_without_a_sentence_and_a_page_without_a_place_are_problems() {
        let page = page_of("");
        let problems = check(&tree(&page, "impl Handle for GetKeysRequest {\n"));
        let places: Vec<&str> = problems.iter().map(|found| &*found.place).collect();
        assert_eq!(places, ["crates/wire/src/table.rs:4"]);
        let keys = "/// Returns keys.\nimpl Handle for GetKeysRequest {\n";
        let problems = check(&tree("# Protocol\n", keys));
        assert_eq!(problems[0].place, PAGE);
    }
}
