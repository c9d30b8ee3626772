//! The fingerprint that all ranks must have in common.

use std::sync::Arc;

use crate::error::cut;

/// The length, in bytes, to which a fingerprint's description is truncated.
pub const DESCRIPTION_BYTES_MAX: usize = 64 << 10;

/// The length, in bytes, to which the name of a fingerprint's program is truncated.
pub const PROGRAM_BYTES_MAX: usize = 256;

/// The length, in bytes, to which lines of descriptions are truncated in the message about a difference.
const LINE_BYTES_MAX: usize = 200;

/// The program and the graph of a rank. They must be the same on all ranks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Name, version and hash of the program; see [`PROGRAM_BYTES_MAX`].
    pub program: String,
    /// A hash of the graph.
    pub graph: u64,
    /// The graph in words, a line for each part, so that an error can name the difference; see
    /// [`DESCRIPTION_BYTES_MAX`].
    pub description: String,
}

/// The first announcement of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The number of ranks.
    pub ranks: u32,
    /// Its part of the seed.
    pub random: u64,
    pub fingerprint: Arc<Fingerprint>,
}

impl Hello {
    pub fn new(ranks: u32, random: u64, mut fingerprint: Fingerprint) -> Hello {
        let Fingerprint {
            program,
            description,
            ..
        } = &mut fingerprint;
        program.truncate(cut(program, PROGRAM_BYTES_MAX).len());
        description.truncate(cut(description, DESCRIPTION_BYTES_MAX).len());
        Hello {
            ranks,
            random,
            fingerprint: Arc::new(fingerprint),
        }
    }

    fn agrees(&self, other: &Hello) -> bool {
        self.ranks == other.ranks && self.fingerprint == other.fingerprint
    }

    /// Returns its difference from the hello of the rank `usual`.
    fn difference(&self, other: &Hello, usual: u32) -> String {
        let (mine, others) = (&self.fingerprint, &other.fingerprint);
        if self.ranks != other.ranks {
            return format!(
                "it counts {} ranks, and rank {usual} {}",
                self.ranks, other.ranks
            );
        }
        if mine.program != others.program {
            return format!(
                "it runs the program \"{}\", and rank {usual} \"{}\"",
                mine.program, others.program
            );
        }
        let place = differing_lines(&mine.description, &others.description).map_or_else(
            || "their descriptions are equal".to_owned(),
            |(line, mine, others)| format!("line {line} is \"{mine}\" here and \"{others}\" there"),
        );
        format!("its graph differs from rank {usual}'s: {place}")
    }
}

/// Returns the number of the first line that differs, and that line of both.
fn differing_lines<'a>(mine: &'a str, others: &'a str) -> Option<(usize, &'a str, &'a str)> {
    let (mut mine, mut others) = (mine.lines(), others.lines());
    for number in 1.. {
        match (mine.next(), others.next()) {
            (None, None) => break,
            (mine, others) if mine == others => {}
            (mine, others) => {
                let line = |line: Option<&'a str>| cut(line.unwrap_or_default(), LINE_BYTES_MAX);
                return Some((number, line(mine), line(others)));
            }
        }
    }
    None
}

/// Returns the first rank that differs from the majority, with the difference. All ranks with the same hellos, in order
/// of the ranks, find the same.
pub fn find_difference<'a>(
    hellos: impl Iterator<Item = &'a Hello> + Clone,
) -> Option<(u32, String)> {
    let ranked = || (0..).zip(hellos.clone());
    let mut kinds: Vec<(u32, &Hello, usize)> = Vec::new();
    for (rank, hello) in ranked() {
        match kinds.iter_mut().find(|(_, known, _)| known.agrees(hello)) {
            Some((_, _, count)) => *count += 1,
            None => kinds.push((rank, hello, 1)),
        }
    }
    // Among kinds with equally many ranks, the kind with the lowest rank wins.
    let (usual, most, _) = kinds.into_iter().rev().max_by_key(|(_, _, count)| *count)?;
    let (rank, other) = ranked().find(|(_, hello)| !hello.agrees(most))?;
    Some((rank, other.difference(most, usual)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(program: &str, graph: u64, description: &str) -> Hello {
        let fingerprint = Fingerprint {
            program: program.to_owned(),
            graph,
            description: description.to_owned(),
        };
        Hello::new(3, graph, fingerprint)
    }

    #[track_caller]
    fn check(hellos: &[Hello], expected: Option<(u32, &str)>) {
        let found = find_difference(hellos.iter());
        assert_eq!(
            found.as_ref().map(|(rank, text)| (*rank, text.as_str())),
            expected
        );
    }

    #[test]
    fn the_error_names_the_rank_that_differs_from_the_majority() {
        let usual = hello("p 1", 7, "source\ncount\nsink");
        check(&[usual.clone(), usual.clone(), usual.clone()], None);
        let other = hello("p 1", 8, "source\nsum\nsink");
        let what = "its graph differs from rank 1's: line 2 is \"sum\" here and \"count\" there";
        check(
            &[other.clone(), usual.clone(), usual.clone()],
            Some((0, what)),
        );
        let what = "its graph differs from rank 0's: line 2 is \"sum\" here and \"count\" there";
        check(&[usual.clone(), other], Some((1, what)));
        let longer = hello("p 1", 9, "source\ncount\nsink\nsink");
        let what = "its graph differs from rank 0's: line 4 is \"sink\" here and \"\" there";
        check(&[usual.clone(), longer], Some((1, what)));
        let hidden = hello("p 1", 10, "source\ncount\nsink");
        let what = "its graph differs from rank 0's: their descriptions are equal";
        check(&[usual.clone(), hidden], Some((1, what)));
        let program = hello("p 2", 7, "source\ncount\nsink");
        let what = "it runs the program \"p 2\", and rank 0 \"p 1\"";
        check(&[usual.clone(), program], Some((1, what)));
        let fewer = Hello {
            ranks: 2,
            ..usual.clone()
        };
        check(
            &[usual, fewer],
            Some((1, "it counts 2 ranks, and rank 0 3")),
        );
    }

    #[test]
    fn long_descriptions_are_truncated_between_characters() {
        let long = hello(&"ä".repeat(1000), 1, &"€".repeat(100_000)).fingerprint;
        assert_eq!(long.program.len(), PROGRAM_BYTES_MAX);
        assert_eq!(long.description.len(), DESCRIPTION_BYTES_MAX / 3 * 3);
    }
}
