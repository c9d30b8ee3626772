//! The commands in a block of a page, and their expected output.

use crate::markdown::Fence;

/// The wildcard for any text in a line, or for any lines.
const ANYTHING: char = '…';
const ANY_LINES: &str = "…";
const CTRL_C: &str = "^C";

#[derive(Debug, PartialEq, Eq)]
pub enum Block {
    Steps(Vec<Step>),
    /// The block is not executed, for this reason.
    NotRun(String),
    NoCommands,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// The line in the block, counted from 1.
    pub line: usize,
    pub command: String,
    /// Whether it runs in the background, beside the page's other commands.
    pub stays: bool,
    /// The expected output; `None` for a script, whose output the page does not show.
    shown: Option<Vec<String>>,
}

impl Block {
    pub fn parse(fence: &Fence) -> Result<Self, String> {
        let (language, mark) = fence
            .info
            .split_once(char::is_whitespace)
            .unwrap_or((&fence.info, ""));
        match language {
            "sh" | "console" => {}
            "bash" | "shell" | "zsh" => {
                return Err(format!(
                    "mark it sh, not {language}, so that it is executed"
                ));
            }
            _ => return Ok(Self::NoCommands),
        }
        match mark.trim().split_once(char::is_whitespace) {
            Some(("no-run", reason)) => Ok(Self::NotRun(reason.trim().to_owned())),
            None if mark == "no-run" => Err("no-run needs a reason after it".to_owned()),
            None if mark == "background" && language == "console" => {
                let mut steps = console_steps(&fence.text)?;
                steps.iter_mut().for_each(|step| step.stays = true);
                Ok(Self::Steps(steps))
            }
            _ if !mark.is_empty() => Err(format!(
                "\"{mark}\" is not a mark; use no-run, or background for a console"
            )),
            _ if language == "sh" => Ok(Self::Steps(vec![Step {
                line: 1,
                command: fence.text.clone(),
                stays: false,
                shown: None,
            }])),
            _ => Ok(Self::Steps(console_steps(&fence.text)?)),
        }
    }
}

fn console_steps(text: &str) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step {
                line: index + 1,
                command: command.to_owned(),
                stays: false,
                shown: Some(Vec::new()),
            });
            continue;
        }
        let Some(step) = steps.last_mut() else {
            return Err("a console block begins with a command: $ …".to_owned());
        };
        let shown = step.shown.get_or_insert_default();
        if step.command.ends_with('\\') && shown.is_empty() {
            step.command.push('\n');
            step.command
                .push_str(line.strip_prefix("> ").unwrap_or(line));
        } else {
            shown.push(line.to_owned());
        }
    }
    Ok(steps)
}

impl Step {
    /// Whether the page shows a Ctrl-C, and above it the lines that the command has printed so far.
    pub fn is_interrupted_at(&self, printed: &str) -> bool {
        self.parts().is_some_and(|(before, after)| {
            let mut shown = before.to_vec();
            shown.push(ANY_LINES.to_owned());
            after.is_some() && lines_fit(&shown, printed)
        })
    }

    /// Whether the page shows the whole output of the command.
    pub fn is_shown_by(&self, printed: &str) -> bool {
        self.parts().is_none_or(|(before, after)| {
            let mut shown = before.to_vec();
            if let Some(after) = after {
                shown.push(ANY_LINES.to_owned());
                shown.extend_from_slice(after);
            }
            lines_fit(&shown, printed)
        })
    }

    /// The shown lines above the Ctrl-C, and the lines below it if there is one.
    fn parts(&self) -> Option<(&[String], Option<&[String]>)> {
        let shown = self.shown.as_deref()?;
        let mut parts = shown.splitn(2, |line| line == CTRL_C);
        Some((parts.next().unwrap_or_default(), parts.next()))
    }
}

fn lines_fit(shown: &[String], printed: &str) -> bool {
    let printed: Vec<&str> = printed.lines().map(str::trim_end).collect();
    fits(
        shown,
        &printed,
        |line| line == ANY_LINES,
        |shown, printed| {
            let shown: Vec<char> = shown.trim_end().chars().collect();
            let printed: Vec<char> = printed.chars().collect();
            fits(&shown, &printed, |c| *c == ANYTHING, |a, b| a == b)
        },
    )
}

/// Whether the items match the pattern, in which a wildcard stands for any number of items.
fn fits<P, T>(
    pattern: &[P],
    items: &[T],
    is_wildcard: impl Fn(&P) -> bool,
    is_equal: impl Fn(&P, &T) -> bool,
) -> bool {
    let (mut p, mut i) = (0, 0);
    // The positions at which to continue if the last wildcard must take one more item.
    let mut last_wildcard: Option<(usize, usize)> = None;
    while i < items.len() {
        if p < pattern.len() && is_wildcard(&pattern[p]) {
            last_wildcard = Some((p, i));
            p += 1;
        } else if p < pattern.len() && is_equal(&pattern[p], &items[i]) {
            p += 1;
            i += 1;
        } else if let Some((wildcard, taken)) = last_wildcard {
            last_wildcard = Some((wildcard, taken + 1));
            p = wildcard + 1;
            i = taken + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(is_wildcard)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(info: &str, text: &str) -> Result<Block, String> {
        Block::parse(&Fence {
            info: info.to_owned(),
            text: text.to_owned(),
        })
    }

    fn step(line: usize, command: &str, shown: Option<&[&str]>) -> Step {
        Step {
            line,
            command: command.to_owned(),
            stays: false,
            shown: shown.map(|lines| lines.iter().map(|line| (*line).to_owned()).collect()),
        }
    }

    #[test]
    fn blocks_are_scripts_or_transcripts() {
        let check = |info, text, steps| assert_eq!(parse(info, text), Ok(Block::Steps(steps)));
        check("sh", "a\nb\n", vec![step(1, "a\nb\n", None)]);
        check(
            "console",
            "$ a\none\n\n$ b \\\n> c\ntwo\n",
            vec![
                step(1, "a", Some(&["one", ""])),
                step(4, "b \\\nc", Some(&["two"])),
            ],
        );
        let stays = Step {
            stays: true,
            ..step(1, "a", Some(&["one"]))
        };
        check("console background", "$ a\none\n", vec![stays]);
        assert_eq!(parse("rust", "x"), Ok(Block::NoCommands));
        assert_eq!(parse("", "x"), Ok(Block::NoCommands));
        assert_eq!(
            parse("sh no-run too slow", "x"),
            Ok(Block::NotRun("too slow".to_owned()))
        );
    }

    #[test]
    fn a_block_does_not_escape_by_its_mark() {
        for (info, text) in [
            ("bash", "x"),
            ("sh no-run", "x"),
            ("sh norun slow", "x"),
            ("sh background", "x"),
            ("console", "x"),
        ] {
            assert!(parse(info, text).is_err(), "{info} {text}");
        }
    }

    #[test]
    fn dots_stand_for_anything() {
        let check = |shown: &[&str], printed: &str, expect: bool| {
            let step = step(1, "x", Some(shown));
            assert_eq!(step.is_shown_by(printed), expect, "{shown:?} {printed:?}");
        };
        check(&[], "", true);
        check(&[], "a\n", false);
        check(&["a"], "a  \n", true);
        check(&["a"], "", false);
        check(&["1… records, …s"], "1,000 records, 20 s\n", true);
        check(&["1… records, …s"], "1,000 records, 20 m\n", false);
        check(&["…"], "", true);
        check(&["a", "…", "c…"], "a\nb\nc\nb\ncd\n", true);
        check(&["a", "…", "c"], "a\nb\ncd\n", false);
        check(&["a", "^C", "c"], "a\nb\nc\n", true);
    }

    #[test]
    fn ctrl_c_waits_for_the_lines_above_it() {
        let transcript = step(1, "x", Some(&["ready", "…", "rate …", "^C", "done"]));
        assert!(!transcript.is_interrupted_at("ready\n"));
        assert!(transcript.is_interrupted_at("ready\nfirst\nrate 1\nrate 2\n"));
        assert!(!step(1, "x", Some(&["ready"])).is_interrupted_at("ready\n"));
        assert!(!step(1, "x", None).is_interrupted_at(""));
    }
}
