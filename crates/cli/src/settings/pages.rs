//! Holds the pages, and the sample of the settings' file, against the table of settings.
//!
//! `WRITE_SETTINGS=1 cargo test -p millstream-cli pages` writes them anew.

use std::fs;
use std::path::Path;

use super::entry::{ByDefault, Setting, Use};
use super::{SETTINGS, Settings};

/// The header of the table of all settings.
const SETTINGS_HEADER: &str = "| setting | default | meaning |";

/// The header of the table of Kafka's names.
const KAFKA_HEADER: &str = "| Kafka | here | default here |";

/// The sample of the settings' file, which the Debian package installs.
const SAMPLE: &str = "packaging/millstream.toml";
const SAMPLE_HEADER: &str = "\
# The settings of the service, as `millstream start --help` explains them. A line without its `#` overrides the
# default. Restart the service afterwards: systemctl restart millstream
";

/// The setting that the sample sets.
const SET_BY_SAMPLE: &str = "data";

/// The first setting of each section of the sample, and the section's comment.
const SECTIONS: [(&str, &str); 6] = [
    (
        "http",
        "# Network. On an address that other machines can reach, set a certificate and authentication as well.",
    ),
    (
        "auto_create_topics",
        "# Topics and groups that clients create.",
    ),
    ("produce_objective", "# Latencies."),
    ("authentication", "# Users."),
    ("pool", "# Memory and disk."),
    (
        "log_level",
        "# Log lines, which `journalctl -u millstream` shows.",
    ),
];

/// Whether `start` uses a setting.
fn is_of_server(setting: &Setting) -> bool {
    let of_server = [Use::Log, Use::Broker, Use::Http, Use::Always];
    let mut uses = setting.about.uses.iter();
    uses.any(|it| of_server.contains(it))
}

fn sample() -> String {
    let mut sample = SAMPLE_HEADER.to_owned();
    sample += "\n";
    for setting in SETTINGS.iter().filter(|it| is_of_server(it)) {
        let name = setting.name;
        if let Some((_, comment)) = SECTIONS.iter().find(|(first, _)| *first == name) {
            sample += &format!("\n{comment}\n");
        }
        let mark = if name == SET_BY_SAMPLE { "" } else { "#" };
        let value = setting.sample();
        let is_bare = value.parse::<bool>().is_ok() || value.parse::<u64>().is_ok();
        let quote = if is_bare { "" } else { "\"" };
        sample += &format!("{mark}{name} = {quote}{value}{quote}\n");
    }
    sample
}

fn default_of(setting: &Setting) -> String {
    match &setting.about.default {
        ByDefault::None => "none".to_owned(),
        ByDefault::Value(value) => format!("`{value}`"),
        ByDefault::Words(words) => words.clone(),
    }
}

fn row(setting: &Setting) -> String {
    let about = &setting.about;
    let bounds = about.bounds.as_ref();
    let bounds = bounds.map(|bounds| format!("Bounds: {bounds}"));
    let more = Some(about.more.to_owned()).filter(|more| !more.is_empty());
    let parts = [Some(about.doc.clone()), bounds, more];
    let meaning: Vec<String> = parts.into_iter().flatten().collect();
    format!(
        "| `{}` | {} | {} |\n",
        setting.name,
        default_of(setting),
        meaning.join(". ")
    )
}

fn kafka_row(setting: &Setting) -> Option<String> {
    let names = setting.about.kafka.iter();
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    let default = default_of(setting);
    let row = format!(
        "| {} | `{}` | {default} |\n",
        names.join(", "),
        setting.name
    );
    (!names.is_empty()).then_some(row)
}

/// Returns the page with these rows in the table with this header.
fn with_rows(page: &str, header: &str, rows: &str) -> String {
    let (before, table) = page.split_once(header).expect("the page has the table");
    let mut lines = table.split_inclusive('\n');
    let head: String = lines.by_ref().take(2).collect();
    let after: String = lines.skip_while(|line| line.starts_with('|')).collect();
    format!("{before}{header}{head}{rows}{after}")
}

/// Checks that a file has this content; or writes it, if the variable asks for that.
#[track_caller]
fn check(path: &str, content: impl Fn(&str) -> String) {
    let full = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path);
    let found = fs::read_to_string(&full).unwrap();
    let expected = content(&found);
    if std::env::var_os("WRITE_SETTINGS").is_some() {
        fs::write(&full, &expected).unwrap();
        return;
    }
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected, "{path} differs from the table of settings");
    }
    assert!(
        found == expected,
        "{path} has other lines than the table of settings"
    );
}

#[test]
fn the_page_of_operations_has_the_row_of_every_setting() {
    let rows: String = SETTINGS.iter().map(row).collect();
    check("docs/operations.md", |page| {
        with_rows(page, SETTINGS_HEADER, &rows)
    });
}

#[test]
fn the_page_of_kafka_has_the_names_of_its_brokers_settings() {
    let rows: String = SETTINGS.iter().filter_map(kafka_row).collect();
    check("docs/kafka.md", |page| with_rows(page, KAFKA_HEADER, &rows));
}

#[test]
fn the_sample_has_a_valid_line_for_every_setting_of_a_server() {
    check(SAMPLE, |_| sample());
    let without_marks: String = sample()
        .lines()
        .filter(|line| line.contains(" = "))
        .map(|line| format!("{}\n", line.trim_start_matches('#')))
        .collect();
    for text in [sample(), without_marks] {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        Settings::default().fill_from_file(file.path()).unwrap();
    }
}

#[test]
fn every_setting_has_a_text_and_a_value_for_the_sample() {
    for setting in SETTINGS.iter() {
        let is_sentence = setting.about.doc.starts_with(char::is_uppercase);
        assert!(
            is_sentence && !setting.sample().is_empty(),
            "{}",
            setting.name
        );
    }
}
