//! Reads the parts of a Markdown page that the checks use.

use pulldown_cmark::{CodeBlockKind, Event, OffsetIter, Options, Parser, Tag, TagEnd};

/// A part of a page, and its line, counted from 1.
#[derive(Debug, PartialEq, Eq)]
pub struct At<T> {
    pub line: usize,
    pub value: T,
}

/// A fenced block of code.
#[derive(Debug, PartialEq, Eq)]
pub struct Fence {
    /// The text after the opening fence.
    pub info: String,
    pub text: String,
}

pub fn fences(page: &str) -> Vec<At<Fence>> {
    let mut fences = Vec::new();
    let mut open: Option<At<Fence>> = None;
    for (event, range) in events(page) {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                open = Some(At {
                    line: line_of(page, range.start),
                    value: Fence {
                        info: info.trim().to_owned(),
                        text: String::new(),
                    },
                });
            }
            Event::Text(text) => {
                if let Some(fence) = &mut open {
                    fence.value.text.push_str(&text);
                }
            }
            Event::End(TagEnd::CodeBlock) => fences.extend(open.take()),
            _ => {}
        }
    }
    fences
}

/// The targets of links and images.
pub fn links(page: &str) -> Vec<At<String>> {
    events(page)
        .filter_map(|(event, range)| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => Some(At {
                line: line_of(page, range.start),
                value: dest_url.into_string(),
            }),
            _ => None,
        })
        .collect()
}

pub fn headings(page: &str) -> Vec<String> {
    let mut headings = Vec::new();
    let mut open = None;
    for (event, _) in events(page) {
        match event {
            Event::Start(Tag::Heading { .. }) => open = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut open {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => headings.extend(open.take()),
            _ => {}
        }
    }
    headings
}

/// The rows of all tables without their heads; each cell is the list of its pieces of code.
pub fn rows(page: &str) -> Vec<At<Vec<Vec<String>>>> {
    let mut rows = Vec::new();
    let mut is_in_cell = false;
    for (event, range) in events(page) {
        match event {
            Event::Start(Tag::TableRow) => rows.push(At {
                line: line_of(page, range.start),
                value: Vec::new(),
            }),
            Event::Start(Tag::TableCell) => {
                is_in_cell = true;
                rows.iter_mut()
                    .last()
                    .into_iter()
                    .for_each(|row: &mut At<Vec<_>>| {
                        row.value.push(Vec::new());
                    });
            }
            Event::End(TagEnd::TableCell) => is_in_cell = false,
            Event::Code(code) if is_in_cell => {
                let cell = rows.last_mut().and_then(|row| row.value.last_mut());
                cell.into_iter()
                    .for_each(|cell| cell.push(code.to_string()));
            }
            _ => {}
        }
    }
    rows
}

/// The pieces of code in the text of a page.
pub fn codes(page: &str) -> Vec<At<String>> {
    let codes = events(page).filter_map(|(event, range)| match event {
        Event::Code(code) => Some(At {
            line: line_of(page, range.start),
            value: code.into_string(),
        }),
        _ => None,
    });
    codes.collect()
}

/// The part of a page from a second-level heading to the next one, and the number of lines before it.
pub fn section<'a>(page: &'a str, heading: &str) -> Option<(usize, &'a str)> {
    let title = format!("## {heading}");
    let mut start = None;
    let mut offset = 0;
    for line in page.split_inclusive('\n') {
        match start {
            None if line.trim_end() == title => start = Some(offset),
            Some(start) if line.starts_with("## ") => {
                return Some((line_of(page, start) - 1, &page[start..offset]));
            }
            _ => {}
        }
        offset += line.len();
    }
    start.map(|start| (line_of(page, start) - 1, &page[start..]))
}

fn events(page: &str) -> OffsetIter<'_> {
    Parser::new_ext(page, Options::ENABLE_TABLES).into_offset_iter()
}

fn line_of(page: &str, offset: usize) -> usize {
    page[..offset].matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# A `page`

[one](docs/a.md) and ![two](b.png), `[no](link)`

```console no-run it is slow
$ ls [no](link)
```

## Map

| path | what |
|---|---|
| `crates/log` | not `this` |
| [`xtask`](x.md) | |

## More

| `other` |
|---|
";

    fn at<T>(line: usize, value: T) -> At<T> {
        At { line, value }
    }

    #[test]
    fn the_parts_of_a_page_are_found() {
        let links_found = [(3, "docs/a.md"), (3, "b.png"), (14, "x.md")];
        assert_eq!(
            links(PAGE),
            links_found.map(|(line, target)| at(line, target.to_owned()))
        );
        assert_eq!(
            fences(PAGE),
            [at(
                5,
                Fence {
                    info: "console no-run it is slow".to_owned(),
                    text: "$ ls [no](link)\n".to_owned()
                }
            )]
        );
        assert_eq!(headings(PAGE), ["A page", "Map", "More"]);
        let codes_found = [
            (1, "page"),
            (3, "[no](link)"),
            (13, "crates/log"),
            (13, "this"),
        ];
        let codes_found = codes_found.map(|(line, code)| at(line, code.to_owned()));
        assert_eq!(codes(PAGE)[..4], codes_found);
    }

    #[test]
    fn the_rows_of_a_section_are_found() {
        let (lines_before, map) = section(PAGE, "Map").unwrap();
        assert_eq!(lines_before, 8);
        let log = vec![vec!["crates/log".to_owned()], vec!["this".to_owned()]];
        let xtask = vec![vec!["xtask".to_owned()], Vec::new()];
        assert_eq!(rows(map), [at(5, log), at(6, xtask)]);
        assert_eq!(section(PAGE, "Mapp"), None);
    }
}
