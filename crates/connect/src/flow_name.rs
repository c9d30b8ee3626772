//! The names of flows that keep something in a log or at a server.

use millstream_log::is_reserved;

/// The longest name, in characters. Streams have up to 249; the suffixes of a flow's own streams and objects, such as
/// `.state.<element>`, take the rest.
const CHARS_MAX: usize = 150;

/// The name of a flow cannot begin the names of its streams, its checkpoints and its transactions.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a flow cannot be called {name:?}: {why}; a flow's name has 1 to {CHARS_MAX} characters, which are letters (a to z, A \
     to Z), digits, '.', '_' and '-', since the names of its streams begin with it"
)]
pub struct BadFlowName {
    name: String,
    why: String,
}

millstream_base::debug_as_display!(BadFlowName);

/// Checks the name of a flow. A log and a server have the same rule: a name that both accept, and Kafka's clients as well.
///
/// # Errors
/// When the name is not valid.
pub fn check_flow_name(name: &str) -> Result<(), BadFlowName> {
    let is_allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let why = match name {
        "" => "it is empty".to_owned(),
        "." | ".." => "it means a folder".to_owned(),
        name if name.chars().count() > CHARS_MAX => {
            format!("it has {} characters", name.chars().count())
        }
        name if is_reserved(name) => "the server needs names like this for itself".to_owned(),
        name => match name.chars().find(|c| !is_allowed(c)) {
            Some(other) => format!("it contains {other:?}"),
            None => return Ok(()),
        },
    };
    Err(BadFlowName {
        name: name.chars().take(CHARS_MAX).collect(),
        why,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_a_flow_name_says_the_fault_and_the_allowed_characters() {
        let longest = "n".repeat(CHARS_MAX);
        for name in ["orders", "Orders_2.by-user", "...", "__own", &longest] {
            assert_eq!(check_flow_name(name), Ok(()));
        }
        let long = "n".repeat(300);
        for (name, why) in [
            ("", "\"\": it is empty"),
            (".", "a folder"),
            ("..", "a folder"),
            ("a/b", "\"a/b\": it contains '/'"),
            ("a:b", "contains ':'"),
            ("a b", "contains ' '"),
            ("größe", "contains 'ö'"),
            ("a\nb", "\"a\\nb\": it contains '\\n'"),
            (&long, "it has 300 characters"),
            ("__millstream", "for itself"),
        ] {
            let error = check_flow_name(name).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
            let rule =
                "1 to 150 characters, which are letters (a to z, A to Z), digits, '.', '_' and '-'";
            assert!(error.contains(rule), "{error}");
            assert!(error.len() < 500, "{error}");
        }
    }
}
