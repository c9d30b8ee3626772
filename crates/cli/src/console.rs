//! The output of commands: tables and JSON on stdout, progress on stderr.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::time::{Duration, Instant};

use anyhow::Context;
use comfy_table::CellAlignment;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::termios::tcgetwinsize;
use serde::Serialize;
use tracing::Level;

use crate::events::{is_json_only, write_message};

/// How often the progress line changes on a terminal.
pub const TICK: Duration = Duration::from_millis(200);

/// How often a progress line is printed if stderr is not a terminal.
const PLAIN_LINE_EVERY: Duration = Duration::from_secs(5);

/// Buffered stdout, for many small writes.
pub fn stdout() -> BufWriter<StdoutLock<'static>> {
    BufWriter::new(io::stdout().lock())
}

/// The message of a failed write to stdout.
pub const CANNOT_WRITE: &str = "cannot write to stdout";

/// Prints what `write` writes.
pub fn print(
    write: impl FnOnce(&mut BufWriter<StdoutLock<'static>>) -> io::Result<()>,
) -> anyhow::Result<()> {
    let mut out = stdout();
    write(&mut out)
        .and_then(|()| out.flush())
        .context(CANNOT_WRITE)
}

/// Prints one JSON document.
pub fn print_json(document: &impl Serialize) -> anyhow::Result<()> {
    print(|out| {
        serde_json::to_writer(&mut *out, document)?;
        out.write_all(b"\n")
    })
}

/// Reports the finished action: with a JSON document, or with lines for people. If the report cannot be printed, the
/// error says that the action itself is done.
pub fn report(
    is_json: bool,
    document: &impl Serialize,
    lines: fmt::Arguments<'_>,
) -> anyhow::Result<()> {
    match is_json {
        true => print_json(document),
        false => print(|out| writeln!(out, "{lines}")),
    }
    .context("the command has done its work, but cannot report it")
}

/// Prints a line on stderr. Ignores errors: a command does not fail because its terminal is closed.
pub fn tell(line: fmt::Arguments<'_>) {
    if !write_message(Level::INFO, line) {
        let _ = writeln!(io::stderr(), "{line}");
    }
}

/// Prints the error that ends a command, as [`tell`] prints a line.
pub fn tell_error(error: fmt::Arguments<'_>) {
    if !write_message(Level::ERROR, error) {
        let _ = writeln!(io::stderr(), "error: {error}");
    }
}

/// Returns whether the reader of stdout has closed the pipe.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// The number of spaces between two columns of a table.
const COLUMN_GAP: u16 = 2;

/// A cell of a table that is no longer is never cut, however narrow the terminal is.
const CELL_CHARS_MIN: usize = 60;

/// A table whose columns have headings; numbers are aligned to the right.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

impl Table {
    pub fn new(columns: &[(&'static str, Align)]) -> Table {
        Table {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, with a cell for each column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells = cells.into_iter().map(|cell| printable(&cell));
        self.rows.push(cells.collect());
    }

    pub fn print(&self) -> anyhow::Result<()> {
        print(|out| self.write(out))
    }

    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.write_within(out, terminal_columns())
    }

    /// Writes the table, and cuts long cells if it does not fit in a terminal of this width. A pipe has no width: programs
    /// get all cells whole.
    fn write_within(&self, out: &mut impl Write, columns: Option<usize>) -> io::Result<()> {
        let cell_max = columns.map_or(usize::MAX, |columns| self.cell_max(columns));
        let rows = self.rows.iter();
        let rows = rows.map(|row| row.iter().map(move |cell| cut(cell, cell_max)));
        let mut table = comfy_table::Table::new();
        table
            .load_style(comfy_table::presets::NOTHING)
            .set_header(self.columns.iter().map(|(name, _)| *name))
            .add_rows(rows);
        for (column, (_, align)) in table.column_iter_mut().zip(&self.columns) {
            column.set_padding((0, COLUMN_GAP));
            column.set_cell_alignment(match align {
                Align::Left => CellAlignment::Left,
                Align::Right => CellAlignment::Right,
            });
        }
        writeln!(out, "{}", table.trim_fmt())
    }

    /// Returns the greatest length of cells with which the table fits in this many columns.
    fn cell_max(&self, columns: usize) -> usize {
        let width = |(index, (name, _)): (usize, &(&str, Align))| {
            let cells = self.rows.iter().filter_map(|row| row.get(index));
            let widest = cells.map(|cell| cell.chars().count()).max();
            widest.unwrap_or(0).max(name.len())
        };
        let widths: Vec<usize> = self.columns.iter().enumerate().map(width).collect();
        let gaps = usize::from(COLUMN_GAP) * widths.len().saturating_sub(1);
        let fits = |max: &usize| {
            let cells = widths.iter().map(|width| width.min(max));
            cells.sum::<usize>() + gaps <= columns
        };
        let widest = widths.iter().copied().max().unwrap_or(0);
        let maxima = CELL_CHARS_MIN..=widest.max(CELL_CHARS_MIN);
        maxima.rev().find(fits).unwrap_or(CELL_CHARS_MIN)
    }
}

/// Returns a text without control characters, which the terminal would execute.
fn printable(text: &str) -> String {
    let printable = |char: char| match char.is_control() {
        true => char::REPLACEMENT_CHARACTER,
        false => char,
    };
    text.chars().map(printable).collect()
}

/// Returns a text of at most this many characters, which ends in `…` if it is cut.
fn cut(text: &str, max: usize) -> String {
    if text.chars().nth(max).is_none() {
        return text.to_owned();
    }
    let start = text.chars().take(max.saturating_sub(1));
    start.chain(['…']).collect()
}

/// Returns the width of the terminal that stdout goes to; `None` if it goes elsewhere.
fn terminal_columns() -> Option<usize> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    // Some terminals do not say how wide they are.
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Formats a number with separators between its thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A short time in the unit that fits it, with three digits.
pub fn time(seconds: f64) -> String {
    let (number, unit) = match seconds {
        ..1e-6 => (seconds * 1e9, "ns"),
        ..1e-3 => (seconds * 1e6, "µs"),
        ..1.0 => (seconds * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    let decimals = match number {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{number:.decimals$} {unit}")
}

/// Formats a count with its noun: `1 line`, `2 lines`.
pub fn count_of(number: u64, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{} {noun}{ending}", grouped(number))
}

/// A line on stderr that shows the progress of a command.
#[derive(Debug)]
pub enum Progress {
    Line(ProgressBar),
    /// If stderr is not a terminal: prints a line from time to time.
    Plain {
        last: Instant,
    },
    Silent,
}

impl Progress {
    /// Creates the progress output, which is silent with `--json` unless stderr is a terminal.
    pub fn new(is_json: bool) -> Progress {
        if io::stderr().is_terminal() && !is_json_only() {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}") {
                bar.set_style(style);
            }
            Progress::Line(bar)
        } else if is_json {
            Progress::Silent
        } else {
            Progress::Plain {
                last: Instant::now(),
            }
        }
    }

    /// Shows the current progress.
    pub fn show(&mut self, message: String) {
        match self {
            Progress::Line(bar) => {
                bar.set_message(message);
                bar.tick();
            }
            Progress::Plain { last } if last.elapsed() >= PLAIN_LINE_EVERY => {
                *last = Instant::now();
                tell(format_args!("{message}"));
            }
            Progress::Plain { .. } | Progress::Silent => {}
        }
    }

    /// Prints a line that stays above the progress line.
    pub fn note(&self, message: &str) {
        match self {
            Progress::Line(bar) => bar.println(message),
            Progress::Plain { .. } => tell(format_args!("{message}")),
            Progress::Silent => {}
        }
    }

    /// Prints a line that scripts need, too, so that `--json` does not silence it.
    pub fn insist(&self, message: &str) {
        match self {
            Progress::Silent => tell(format_args!("{message}")),
            Progress::Line(_) | Progress::Plain { .. } => self.note(message),
        }
    }

    pub fn finish(&self) {
        if let Progress::Line(bar) = self {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let all = [0, 7, 999, 1000, 12_345, 1_000_000].map(grouped);
        assert_eq!(all, ["0", "7", "999", "1,000", "12,345", "1,000,000"]);
    }

    #[test]
    fn times_have_three_digits_and_their_unit() {
        let all = [0.0, 1.5e-9, 41.5e-6, 9.996e-3, 0.1234, 99.96, 1234.5].map(time);
        let expected = [
            "0.00 ns", "1.50 ns", "41.5 µs", "10.0 ms", "123 ms", "100 s", "1234 s",
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(printable("\x1b[2Jgrüß"), "\u{fffd}[2Jgrüß");
    }

    #[test]
    fn cells_are_cut_only_where_the_terminal_has_no_room() {
        let written = |columns| {
            let mut table = Table::new(&[("name", Align::Left), ("count", Align::Right)]);
            table.row(["x".repeat(100), "7".to_owned()]);
            let mut text = Vec::new();
            table.write_within(&mut text, columns).unwrap();
            let text = String::from_utf8(text).unwrap();
            let row = text.lines().nth(1).unwrap_or_default();
            row.split_whitespace().next().map(str::to_owned)
        };
        let cut_at = |count: usize| Some(format!("{}…", "x".repeat(count - 1)));
        assert_eq!(written(None), Some("x".repeat(100)));
        assert_eq!(written(Some(107)), Some("x".repeat(100)));
        assert_eq!(written(Some(106)), cut_at(99));
        assert_eq!(written(Some(87)), cut_at(80));
        // The start of a name must stay, even if the lines wrap.
        assert_eq!(written(Some(20)), cut_at(60));
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[("word", Align::Left), ("count", Align::Right)]);
        table.row(["größer".to_owned(), "7".to_owned()]);
        table.row(["a".to_owned(), "1,000,000".to_owned()]);
        // Two columns of the terminal each.
        table.row(["東京".to_owned(), String::new()]);
        let mut text = Vec::new();
        table.write(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(
            text,
            "word        count\ngrößer          7\na       1,000,000\n東京\n"
        );
    }
}
