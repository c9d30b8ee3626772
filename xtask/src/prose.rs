//! Reads the prose of the project: pages, comments, messages and the names of tests.

use std::iter::Peekable;
use std::str::CharIndices;

/// A piece of prose.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    pub kind: Kind,
    /// The line of its first character, counted from 1.
    pub line: usize,
    /// The text, with the line breaks of the file and without marks of comments. The words of a test's name are
    /// separated by spaces.
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A page in Markdown, without its headings.
    Page,
    Comment,
    /// A string literal of several words in Rust.
    Message,
    TestName,
}

/// The syntax of a language, as far as it concerns prose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Syntax {
    Rust,
    /// Java, JavaScript and Go.
    Braces,
    Python,
    Shell,
}

/// Returns the prose of a file; nothing for a file in another language.
pub fn pieces(path: &str, text: &str) -> Vec<Piece> {
    if path.ends_with(".md") {
        return vec![page(text)];
    }
    let Some(syntax) = syntax(path) else {
        return Vec::new();
    };
    let mut reader = Reader {
        text,
        syntax,
        line: 1,
        chars: text.char_indices().peekable(),
        pieces: Vec::new(),
        whole_line: None,
    };
    reader.read();
    let mut pieces = reader.pieces;
    pieces.extend(test_names(text, syntax));
    pieces.sort_by_key(|piece| piece.line);
    pieces
}

fn page(text: &str) -> Piece {
    let is_heading = |line: &str| line.starts_with('#');
    let lines = text
        .lines()
        .map(|line| if is_heading(line) { "" } else { line });
    Piece {
        kind: Kind::Page,
        line: 1,
        text: lines.collect::<Vec<_>>().join("\n"),
    }
}

fn syntax(path: &str) -> Option<Syntax> {
    match path.rsplit_once('.')?.1 {
        "rs" => Some(Syntax::Rust),
        "java" | "js" | "go" => Some(Syntax::Braces),
        "py" => Some(Syntax::Python),
        "sh" => Some(Syntax::Shell),
        _ => None,
    }
}

struct Reader<'a> {
    text: &'a str,
    syntax: Syntax,
    /// The line of the next character.
    line: usize,
    chars: Peekable<CharIndices<'a>>,
    pieces: Vec<Piece>,
    /// The mark and the line of the last comment that has its line to itself. A comment with the same mark on the next
    /// line continues it.
    whole_line: Option<(&'a str, usize)>,
}

impl<'a> Reader<'a> {
    fn read(&mut self) {
        while let Some((at, c)) = self.next() {
            match (self.syntax, c) {
                (Syntax::Rust | Syntax::Braces, '/') => match self.rest().chars().next() {
                    Some('/') => self.line_comment(at),
                    Some('*') => self.block_comment(),
                    _ => {}
                },
                (Syntax::Python, '#') => self.line_comment(at),
                (Syntax::Shell, '#') if self.begins_word(at) => self.line_comment(at),
                (Syntax::Shell, _) => {}
                (Syntax::Rust, '\'') => self.character(),
                (Syntax::Rust, '"') => self.string(at),
                (Syntax::Rust, 'r') if self.begins_word(at) || self.is_raw_bytes(at) => {
                    self.raw_string()
                }
                (Syntax::Braces, '`') => self.skip_past("`"),
                (Syntax::Python | Syntax::Braces, '"' | '\'') => self.skip_string(at, c),
                _ => {}
            }
        }
    }

    fn next(&mut self) -> Option<(usize, char)> {
        let next = self.chars.next();
        self.line += usize::from(matches!(next, Some((_, '\n'))));
        next
    }

    /// Returns the text that is not read yet.
    fn rest(&mut self) -> &'a str {
        let at = self.chars.peek().map_or(self.text.len(), |(at, _)| *at);
        &self.text[at..]
    }

    /// Reads until the text that was not read yet begins at `end`.
    fn skip_to(&mut self, end: usize) {
        while self.chars.peek().is_some_and(|(at, _)| *at < end) {
            self.next();
        }
    }

    /// Reads up to the next `mark` and past it.
    fn skip_past(&mut self, mark: &str) {
        let rest = self.rest();
        let bytes = rest.find(mark).map_or(rest.len(), |at| at + mark.len());
        self.skip_to(self.text.len() - rest.len() + bytes);
    }

    fn begins_word(&self, at: usize) -> bool {
        let before = self.text[..at].chars().next_back();
        before.is_none_or(|c| match self.syntax {
            Syntax::Shell => c.is_whitespace(),
            _ => !c.is_alphanumeric() && c != '_',
        })
    }

    /// Whether the `r` at this place follows the `b` of a byte string, or the `c` of a C string.
    fn is_raw_bytes(&self, at: usize) -> bool {
        self.text[..at].ends_with(['b', 'c']) && self.begins_word(at - 1)
    }

    /// Reads a comment up to the end of its line. `at` is the place of its first character.
    fn line_comment(&mut self, at: usize) {
        let line = self.line;
        let start = self.text[..at].rfind('\n').map_or(0, |end| end + 1);
        let is_alone = self.text[start..at].trim().is_empty();
        let comment = self.text[at..].lines().next().unwrap_or_default();
        self.skip_to(at + comment.len());
        let marks: &[&str] = match self.syntax {
            Syntax::Python | Syntax::Shell => &["#!", "#:", "#"],
            Syntax::Rust | Syntax::Braces => &["//!", "///", "//"],
        };
        let mark = marks.iter().find(|mark| comment.starts_with(**mark));
        let mark = &comment[..mark.map_or(0, |mark| mark.len())];
        let text = &comment[mark.len()..];
        let continues = is_alone && self.whole_line == Some((mark, line - 1));
        match self.pieces.last_mut().filter(|_| continues) {
            Some(piece) => {
                piece.text.push('\n');
                piece.text.push_str(text);
            }
            None => self.add(Kind::Comment, line, text.to_owned()),
        }
        self.whole_line = is_alone.then_some((mark, line));
    }

    fn block_comment(&mut self) {
        let (line, rest) = (self.line, self.rest());
        self.skip_past("*/");
        let comment = &rest[..rest.len() - self.rest().len()];
        let lines = comment.trim_end_matches("*/").lines();
        let lines = lines.map(|line| line.trim_start().trim_start_matches('*'));
        let text = lines.collect::<Vec<_>>().join("\n");
        self.add(Kind::Comment, line, text);
    }

    /// Reads a character, or the quote of a lifetime.
    fn character(&mut self) {
        let mut next = self.rest().chars();
        match (next.next(), next.next()) {
            (Some('\\'), _) => {
                self.next();
                self.next();
                self.skip_past("'");
            }
            (Some(_), Some('\'')) => {
                self.next();
                self.next();
            }
            _ => {}
        }
    }

    /// Reads a string. `at` is the place of its opening quote.
    fn string(&mut self, at: usize) {
        let line = self.line;
        let mut end = self.text.len();
        while let Some((at, c)) = self.next() {
            match c {
                '\\' => {
                    self.next();
                }
                '"' => {
                    end = at;
                    break;
                }
                _ => {}
            }
        }
        self.message(line, &self.text[at + 1..end]);
    }

    /// Reads a raw string, or only the `r` that begins another word.
    fn raw_string(&mut self) {
        let rest = self.rest();
        let content = rest.trim_start_matches('#');
        let Some(content) = content.strip_prefix('"') else {
            return;
        };
        let line = self.line;
        let hashes = &rest[..rest.len() - content.len() - 1];
        let end = format!("\"{hashes}");
        let content = &content[..content.find(&end).unwrap_or(content.len())];
        self.skip_past("\"");
        self.skip_past(&end);
        self.message(line, content);
    }

    /// Adds a string that is text for people: one with several words.
    fn message(&mut self, line: usize, content: &str) {
        let text = without_placeholders(content);
        if text.trim().contains(' ') {
            self.add(Kind::Message, line, text);
        }
    }

    /// Reads a string; a text of Python that stands alone is a comment.
    fn skip_string(&mut self, at: usize, quote: char) {
        let (line, triple) = (self.line, quote.to_string().repeat(3));
        if !self.text[at..].starts_with(&triple) {
            return self.skip_line_string(quote);
        }
        let content = &self.text[at + 3..];
        let content = &content[..content.find(&triple).unwrap_or(content.len())];
        self.skip_to(at + 3 + content.len() + 3);
        let start = self.text[..at].rfind('\n').map_or(0, |end| end + 1);
        if self.syntax == Syntax::Python && self.text[start..at].trim().is_empty() {
            self.add(Kind::Comment, line, content.to_owned());
        }
    }

    /// Reads a string that ends on its line.
    fn skip_line_string(&mut self, quote: char) {
        while let Some((_, c)) = self.next() {
            match c {
                '\\' => {
                    self.next();
                }
                '\n' => return,
                _ if c == quote => return,
                _ => {}
            }
        }
    }

    fn add(&mut self, kind: Kind, line: usize, text: String) {
        self.whole_line = None;
        self.pieces.push(Piece { kind, line, text });
    }
}

/// Returns the content of a string with blanks for its parts that are no prose: escapes, and placeholders of values.
fn without_placeholders(content: &str) -> String {
    let content = content.replace("\\n", "  ").replace("\\\n", " \n");
    let mut depth = 0_u32;
    let keep = |c: char| {
        depth += u32::from(c == '{');
        let is_inside = depth > 0;
        depth -= u32::from(c == '}' && is_inside);
        if is_inside && c != '\n' { '#' } else { c }
    };
    content.chars().map(keep).collect()
}

/// Returns the names of the tests in a file.
fn test_names(text: &str, syntax: Syntax) -> Vec<Piece> {
    let mut names = Vec::new();
    let mut is_marked = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let name = match syntax {
            Syntax::Rust => is_marked.then(|| after(line, "fn ")).flatten(),
            Syntax::Braces => after(line, "func Test")
                .or_else(|| is_marked.then(|| after(line, "void ")).flatten())
                .or_else(|| title(line)),
            Syntax::Python => line
                .starts_with("def test_")
                .then(|| after(line, "def test_"))
                .flatten(),
            Syntax::Shell => None,
        };
        if let Some(name) = name {
            names.push(Piece {
                kind: Kind::TestName,
                line: index + 1,
                text: words_of(name),
            });
        }
        let marks = [
            "#[test]",
            "#[tokio::test",
            "@Test",
            "@ParameterizedTest",
            "@RepeatedTest",
        ];
        let is_attribute = line.starts_with("#[") || line.starts_with('@');
        let has_mark = marks.iter().any(|mark| line.starts_with(mark));
        is_marked = has_mark || is_marked && is_attribute;
    }
    names
}

/// Returns the name that follows `mark` in a line.
fn after<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    let name = &line[line.find(mark)? + mark.len()..];
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
    Some(&name[..end.unwrap_or(name.len())])
}

/// Returns the title of a test in JavaScript.
fn title(line: &str) -> Option<&str> {
    line.strip_prefix("test(\"")?.split('"').next()
}

/// Returns the words of a name in snake case or camel case, or of a title.
fn words_of(name: &str) -> String {
    let mut words = String::new();
    for c in name.chars() {
        match c {
            '_' => words.push(' '),
            _ if c.is_uppercase() => {
                words.push(' ');
                words.extend(c.to_lowercase());
            }
            _ => words.push(c),
        }
    }
    words.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str, expected: &[(Kind, usize, &str)]) {
        let pieces = pieces(path, text);
        let found: Vec<_> = pieces
            .iter()
            .map(|piece| (piece.kind, piece.line, piece.text.as_str()))
            .collect();
        assert_eq!(found, expected, "{path}");
    }

    #[test]
    fn comments_and_messages_of_rust_are_found() {
        let text = r####"//! A module
//! of two lines.
use x; // behind code
/* a block
 * of two */
const A: &str = "one { name } text with \"quotes\" // no comment";
const B: [&str; 3] = ["word", r#"raw " text"#, br"more raw"];
const C: char = '"'; const D: char = '\''; fn f<'a>(x: &'a str) {} // the end
"####;
        check(
            "a.rs",
            text,
            &[
                (Kind::Comment, 1, " A module\n of two lines."),
                (Kind::Comment, 3, " behind code"),
                (Kind::Comment, 4, " a block\n of two "),
                (
                    Kind::Message,
                    6,
                    "one ######## text with \\\"quotes\\\" // no comment",
                ),
                (Kind::Message, 7, "raw \" text"),
                (Kind::Message, 7, "more raw"),
                (Kind::Comment, 8, " the end"),
            ],
        );
    }

    #[test]
    fn a_doc_comment_does_not_continue_a_plain_one() {
        let text = "// one\n/// two\n\n/// three\nfn f() {} // four\n// five\n";
        let expected = [
            (Kind::Comment, 1, " one"),
            (Kind::Comment, 2, " two"),
            (Kind::Comment, 4, " three"),
            (Kind::Comment, 5, " four"),
            (Kind::Comment, 6, " five"),
        ];
        check("a.rs", text, &expected);
    }

    #[test]
    fn names_of_tests_are_split_into_words() {
        let rust = "#[tokio::test]\n#[ignore = \"slow\"]\nasync fn a_test() {}\nfn no_test() {}\n";
        check("a.rs", rust, &[(Kind::TestName, 3, "a test")]);
        let java = "@Test\nvoid oneTestOfJava() {}\nvoid helper() {}\n";
        check("A.java", java, &[(Kind::TestName, 2, "one test of java")]);
        let go = "func TestOfGo(t *testing.T) {}\n";
        check("a.go", go, &[(Kind::TestName, 1, "of go")]);
        let python = "def test_of_python():\n    \"\"\"A text.\"\"\"\ndef helper(): # note\n";
        let expected = [
            (Kind::TestName, 1, "of python"),
            (Kind::Comment, 2, "A text."),
            (Kind::Comment, 3, " note"),
        ];
        check("a.py", python, &expected);
        let script = "test(\"a title\", () => {}); // note\n";
        let expected = [(Kind::Comment, 1, " note"), (Kind::TestName, 1, "a title")];
        check("a.js", script, &expected);
    }

    #[test]
    fn strings_of_other_languages_contain_no_comments() {
        check(
            "A.java",
            "String a = \"// \\\" no\"; char b = '\"'; // yes\n",
            &[(Kind::Comment, 1, " yes")],
        );
        check("a.py", "a = '# no' # yes\n", &[(Kind::Comment, 1, " yes")]);
        check(
            "a.sh",
            "echo ${a#b} $# # yes\n",
            &[(Kind::Comment, 1, " yes")],
        );
        check("a.toml", "# no language of these\n", &[]);
    }

    #[test]
    fn a_page_is_one_piece_without_headings() {
        let expected = [(Kind::Page, 1, "\nA text.\n\nMore.")];
        check("a.md", "# Title\nA text.\n## Part\nMore.\n", &expected);
    }
}
