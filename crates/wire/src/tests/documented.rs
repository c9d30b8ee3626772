//! Comparison of docs/protocol.md with the table of requests and the native messages.

use crate::native::described;
use crate::{SUPPORTED, Supported};

const PAGE: &str = include_str!("../../../../docs/protocol.md");

/// The number of fields that all responses begin with; the page describes them once.
const COMMON_FIELDS: usize = 3;

/// The types that have no table of fields.
const PRIMITIVES: [&str; 10] = [
    "int8", "int16", "int32", "int64", "uint32", "uint64", "bool", "string", "bytes", "uuid",
];

/// Name, type and meaning of each field.
type Fields = Vec<[String; 3]>;

/// Returns the rows of the first table in `text`.
fn rows(text: &str) -> Fields {
    let lines = text.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let mut cell = || cells.next().unwrap_or_default();
        let (name, type_name, meaning) = (cell(), cell(), cell());
        [
            name.trim_matches('`').to_owned(),
            type_name.to_owned(),
            without_links(meaning),
        ]
    })
    .collect()
}

/// Replaces Markdown links by their texts.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(&before.replacen('[', "", 1));
        rest = after.split_once(')').expect("the link ends").1;
    }
    plain + rest
}

#[test]
fn the_protocol_page_has_the_table_of_requests() {
    let (_, section) = PAGE.split_once("\n## Requests\n").unwrap();
    let expected = SUPPORTED.iter().map(|supported| {
        let Supported {
            api,
            version_min,
            version_max,
            flexible_from,
        } = supported;
        let versions = match version_min == version_max {
            true => version_min.to_string(),
            false => format!("{version_min}–{version_max}"),
        };
        let flexible = match *flexible_from {
            i16::MAX => "never".to_owned(),
            version => version.to_string(),
        };
        format!("| {} | {api:?} | {versions} | {flexible} |", *api as i16)
    });
    let table = section.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = table.skip(1).take_while(|line| line.starts_with('|'));
    let rows: Vec<String> = rows.map(without_links).collect();
    let expected: Vec<String> = expected.collect();
    assert_eq!(rows.len(), expected.len());
    for (row, begin) in rows.iter().zip(&expected) {
        assert!(row.starts_with(begin), "{row}");
    }
}

#[test]
fn the_protocol_page_has_all_fields_of_the_native_messages() {
    for (name, mut fields) in described() {
        if name.ends_with("Response") {
            let (_, section) = PAGE
                .split_once("\nEvery response begins with the same fields.")
                .expect("the section exists");
            let common: Fields = fields.drain(..COMMON_FIELDS).collect();
            assert_eq!(common, rows(section), "{name}");
        }
        let (_, description) = PAGE.split_once(&format!("\n`{name}`")).expect(name);
        let end = description.find("\n`").unwrap_or(description.len());
        let documented = rows(&description[..end]);
        assert_eq!(documented, fields, "{name}");
    }
}

#[test]
fn the_protocol_page_names_every_native_message() {
    let messages = described();
    for supported in SUPPORTED
        .iter()
        .filter(|supported| supported.api as i16 >= 10_000)
    {
        let api = supported.api;
        assert!(
            PAGE.contains(&format!("\n### {api:?} ({})\n", api as i16)),
            "{api:?}"
        );
        for kind in ["Request", "Response"] {
            assert!(
                messages.contains_key(format!("{api:?}{kind}").as_str()),
                "{api:?}"
            );
        }
    }
    for (name, fields) in &messages {
        for [field, type_name, _] in fields {
            let element = type_name.rsplit(' ').next().unwrap_or_default();
            let is_known = messages.contains_key(element)
                || PRIMITIVES.contains(&element)
                || element == "Cursor";
            assert!(is_known, "{name}.{field}: {type_name}");
        }
    }
}
