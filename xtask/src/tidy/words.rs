//! Checks the words of all files: no author's notes, leftovers of debugging or paths of the author's machine, and no
//! riddles in prose.

mod phrases;

use super::Problem;
use crate::tree::Tree;

/// The forbidden words, each in two parts, so that this file does not contain them.
const FORBIDDEN: [(&str, &str); 11] = [
    ("TO", "DO"),
    ("FIX", "ME"),
    ("XX", "X"),
    ("to", "do!"),
    ("unimpl", "emented!"),
    ("db", "g!"),
    ("/ro", "ot/"),
    ("/ho", "me/"),
    ("/Us", "ers/"),
    ("/wo", "rk/"),
    ("/tmp/", "target"),
];

pub fn check(tree: &Tree) -> Vec<Problem> {
    let leftovers = tree.texts().flat_map(|(path, text)| {
        find(text)
            .into_iter()
            .map(move |(line, word)| Problem::at_line(path, line, format!("remove \"{word}\"")))
    });
    leftovers.chain(phrases::check(tree)).collect()
}

/// The forbidden words of a text, each with its line.
fn find(text: &str) -> Vec<(usize, String)> {
    let words = FORBIDDEN.map(|(start, end)| format!("{start}{end}"));
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for word in &words {
            let mut positions = line.match_indices(word.as_str());
            if positions.any(|(start, _)| stands_alone(line, start, word)) {
                found.push((index + 1, word.clone()));
            }
        }
    }
    found
}

/// Whether the word at `start` is not a part of a longer word or path.
fn stands_alone(line: &str, start: usize, word: &str) -> bool {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let before = line[..start].chars().next_back();
    let after = line[start + word.len()..].chars().next();
    let goes_on_before =
        before.is_some_and(|c| is_name(c) || word.starts_with('/') && "-.})".contains(c));
    let goes_on_after = word.ends_with(is_name) && after.is_some_and(is_name);
    !goes_on_before && !goes_on_after
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_stand_alone_are_found() {
        let words = FORBIDDEN.map(|(start, end)| format!("{start}{end}"));
        for word in &words {
            let text = format!("fine\n({word} more)\n");
            assert_eq!(find(&text), [(2, word.clone())]);
        }
        let [note, _, mark, .., path, _] = &words;
        for fine in [
            format!("mktemp {mark}{mark}"),
            format!("{note}S and NO{note}"),
            format!("crates{path}src, ..{path}x, $(HOME){path}x"),
        ] {
            assert_eq!(find(&fine), [], "{fine}");
        }
    }
}
