//! Checks that prose names its actors and things: on pages, in comments, in messages, and in the names of tests.

use crate::prose::{self, Kind, Piece};
use crate::tidy::Problem;
use crate::tree::Tree;

/// Phrases that make a sentence a riddle, since they hide the actor or the thing. `_` separates words, so that this
/// list is no prose itself. `^` marks the beginning of a sentence.
const RIDDLES: [&str; 26] = [
    "who",
    "whom",
    "whoever",
    "somebody",
    "someone",
    "anybody",
    "anyone",
    "nobody",
    "everybody",
    "everyone",
    "told",
    "so_many",
    "so_much",
    "so_long",
    "such",
    "look_whether",
    "looks_whether",
    "looked_whether",
    "what_is",
    "what_are",
    "what_was",
    "what_were",
    "what_has",
    "what_it",
    "what_they",
    "^what",
];

/// More riddles at the beginning of a sentence: the thing comes only after them.
const BEGINNINGS: [&str; 3] = ["^that_of", "^those_of", "^whatever"];

/// Longer phrases that contain a riddle and are none.
const FINE: [&str; 2] = ["such_as", "no_such"];

/// Riddles that may stay, each with the file that needs it.
const PERMITTED: [(&str, &str); 0] = [];

/// Reports the riddles in all files, and permissions that no file needs.
pub fn check(tree: &Tree) -> Vec<Problem> {
    check_but(tree, &PERMITTED)
}

fn check_but(tree: &Tree, permitted: &[(&str, &str)]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut used = vec![false; permitted.len()];
    for (path, text) in tree.texts() {
        for (line, kind, riddle) in riddles(path, text) {
            match permitted.iter().position(|entry| *entry == (path, riddle)) {
                Some(index) => used[index] = true,
                None => problems.push(Problem::at_line(path, line, complaint(kind, riddle))),
            }
        }
    }
    let unused = permitted.iter().zip(used).filter(|(_, is_used)| !is_used);
    problems.extend(unused.map(|((path, riddle), _)| {
        Problem::new(
            *path,
            format!("\"{}\" is permitted and not used", shown(riddle)),
        )
    }));
    problems
}

fn complaint(kind: Kind, riddle: &str) -> String {
    let place = match kind {
        Kind::Comment => "the comment",
        Kind::Message => "the message",
        Kind::Page => "the page",
        Kind::TestName => "the name of the test",
    };
    let shown = shown(riddle);
    match riddle.starts_with('^') {
        true => format!("{place} begins a sentence with \"{shown}\": begin with the thing itself"),
        false => format!("{place} has \"{shown}\": name the actor or the thing"),
    }
}

/// Returns a riddle as prose has it.
fn shown(riddle: &str) -> String {
    riddle.trim_start_matches('^').replace('_', " ")
}

/// Returns the riddles of a file, each with its line.
fn riddles(path: &str, text: &str) -> Vec<(usize, Kind, &'static str)> {
    let mut found = Vec::new();
    for piece in &prose::pieces(path, text) {
        let words = words(piece);
        for at in 0..words.len() {
            let begins = |phrase: &&str| matches(&words, at, phrase);
            let all = RIDDLES.iter().chain(&BEGINNINGS);
            let riddles = all.copied().filter(begins);
            let is_fine = |phrase: &&str| {
                let length = phrase.split('_').count();
                let starts = at.saturating_sub(length - 1)..=at;
                starts.into_iter().any(|at| matches(&words, at, phrase))
            };
            if !FINE.iter().any(is_fine) {
                found.extend(riddles.map(|riddle| (words[at].line, piece.kind, riddle)));
            }
        }
    }
    found
}

/// A word of prose.
struct Word {
    line: usize,
    /// In lower case, without punctuation.
    text: String,
    /// Whether it is the first word of a sentence or of a paragraph.
    begins: bool,
    /// Whether punctuation follows it.
    ends: bool,
}

/// Returns the words of a piece, without pieces of code.
fn words(piece: &Piece) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut begins = true;
    let (mut is_code, mut is_fenced) = (false, false);
    for (line, text) in (piece.line..).zip(piece.text.lines()) {
        is_fenced ^= text.trim_start().starts_with("```");
        if is_fenced || text.trim().is_empty() {
            (begins, is_code) = (true, false);
            continue;
        }
        // No phrase goes on behind a piece of code, so that counts as a token without letters.
        for (index, part) in text.split('`').enumerate() {
            is_code ^= index > 0;
            let part = if is_code { "`" } else { part };
            for token in part.split_whitespace() {
                begins = add(&mut words, line, token, begins);
            }
        }
    }
    words
}

/// Adds the word of a token, if it has letters. Returns whether the next word begins a sentence.
fn add(words: &mut Vec<Word>, line: usize, token: &str, begins: bool) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || c == '\'';
    let text = token.trim_matches(|c: char| !is_letter(c));
    if text.is_empty() {
        if let Some(word) = words.last_mut() {
            word.ends = true;
        }
        return begins && token != "`";
    }
    words.push(Word {
        line,
        text: text.to_lowercase(),
        begins,
        ends: !token.ends_with(is_letter),
    });
    let token = token.trim_end_matches(['"', ')', '*', '_']);
    token.ends_with(['.', '?', '!'])
}

/// Whether a phrase stands at this place, without punctuation between its words.
fn matches(words: &[Word], at: usize, phrase: &str) -> bool {
    let (phrase, must_begin) = match phrase.strip_prefix('^') {
        Some(phrase) => (phrase, true),
        None => (phrase, false),
    };
    let expected: Vec<&str> = phrase.split('_').collect();
    let Some(found) = words.get(at..at + expected.len()) else {
        return false;
    };
    let is_whole = found[..found.len() - 1].iter().all(|word| !word.ends);
    let is_same = found
        .iter()
        .zip(expected)
        .all(|(word, text)| word.text == text);
    is_same && is_whole && (found[0].begins || !must_begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns prose with spaces for the marks `_`, which keep these tests from being prose themselves.
    fn prose(text: &str) -> String {
        text.replace('_', " ")
    }

    /// Checks the riddles in a file of this text, each with its line.
    fn check(path: &str, text: &str, expected: &[(usize, Kind, &str)]) {
        assert_eq!(riddles(path, &prose(text)), expected, "{text}");
    }

    #[test]
    fn riddles_are_found_in_each_kind_of_prose_with_their_line() {
        use Kind::{Comment, Message, Page, TestName};
        check(
            "a.rs",
            "\n//_There_are_so_many.\n",
            &[(2, Comment, "so_many")],
        );
        check(
            "a.rs",
            "///_There_are_so\n///_many.\n",
            &[(1, Comment, "so_many")],
        );
        check(
            "a.rs",
            "let_x_=_\"read_by_nobody\";\n",
            &[(1, Message, "nobody")],
        );
        check(
            "A.java",
            "@Test\nvoid_nobodyReads()_{}\n",
            &[(2, TestName, "nobody")],
        );
        check(
            "a.py",
            "#_It_prints_what_is_there.\n",
            &[(1, Comment, "what_is")],
        );
        check(
            "a.md",
            "#_Such_a_title\n\nIn_such_cases.\n",
            &[(3, Page, "such")],
        );
        let test = "#[test]\nfn a_fault_is_told() {}\n";
        assert_eq!(riddles("a.rs", test), [(2, TestName, "told")]);
    }

    #[test]
    fn a_sentence_begins_with_the_thing_itself() {
        let found = |line, riddle| [(line, Kind::Comment, riddle)];
        check("a.rs", "///_What_comes_next.", &found(1, "^what"));
        check(
            "a.rs",
            "//_It_ends.\n//_What_comes_next.",
            &found(2, "^what"),
        );
        check("a.rs", "///_That_of_the_stream.", &found(1, "^that_of"));
        check(
            "a.rs",
            "///_First\n///\n///_Those_of_users.",
            &found(3, "^those_of"),
        );
    }

    #[test]
    fn plain_words_and_code_pass() {
        for text in [
            "//_The_broker_reads_whose_record_it_is,_such_as_this_one;_no_such_stream.",
            "//_The_name_is_that_of_the_stream:_those_of_users,_what_comes.",
            "//_Calls_`who`_so,_many_times._`What_is`_stays.",
            "///_```\n///_let_what_is_=_nobody;\n///_```",
            "let_who_=_\"nobody\";_let_told_=_format!(\"{who}_and_{told}\");",
            "fn_nobody_is_told()_{}",
        ] {
            check("a.rs", text, &[]);
        }
        check("a.toml", "#_what_is_told", &[]);
    }

    #[test]
    fn a_permission_holds_for_its_file_and_must_be_used() {
        let text = prose("//_A_user_is_told.\n");
        let tree = Tree::of(&[("a.rs", &text), ("b.rs", &text)]);
        let [found, unused] = ["told", "nobody"];
        let problems = check_but(&tree, &[("a.rs", found), ("b.rs", unused)]);
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let expected = [
            format!("b.rs:1: the comment has \"{found}\": name the actor or the thing"),
            format!("b.rs: \"{unused}\" is permitted and not used"),
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn each_riddle_is_found_alone() {
        for riddle in RIDDLES.iter().chain(&BEGINNINGS) {
            let text = format!("/// {}\n", shown(riddle));
            let found = riddles("a.rs", &text);
            assert!(found.contains(&(1, Kind::Comment, riddle)), "{text}");
        }
    }
}
