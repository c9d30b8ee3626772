//! The settings that the help of each command shows: those that the command uses.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

/// The server, and the user's credentials.
const CLIENT: &[&str] = &[
    "profile",
    "server",
    "user",
    "password_file",
    "token_file",
    "mechanism",
    "tls_certificate",
    "tls_key",
    "tls_authorities",
];

/// The data directory.
const LOG: &[&str] = &[
    "data",
    "pool",
    "journal",
    "journal_file",
    "partitions_max",
    "decompression",
    "compaction_rate",
    "idle_after",
];

/// The network door.
const DOOR: &[&str] = &[
    "listen",
    "advertise",
    "node_id",
    "auto_create_topics",
    "group_min_session_timeout",
    "group_initial_rebalance_delay",
    "partitions",
    "check_compressed",
    "authentication",
    "super_users",
    "token_keys",
    "token_authorities",
    "token_issuer",
    "token_audience",
    "token_user_claim",
    "tls_certificate",
    "tls_key",
    "tls_authorities",
];

/// Flows.
const FLOWS: &[&str] = &["http", "http_hosts", "workers"];

/// The HTTP server.
const HTTP: &[&str] = &["http", "http_hosts"];

/// Shown with every command.
const ALWAYS: [&str; 4] = ["json", "config", "log_level", "log_format"];

/// The settings of a verb, or of one of those below it.
fn used(verb: &str, below: Option<&str>) -> &'static [&'static [&'static str]] {
    match (verb, below) {
        ("start", _) => &[LOG, DOOR, HTTP],
        ("quickstart", _) => &[LOG, FLOWS, &["listen", "partitions", "check_compressed"]],
        ("flow", Some("list")) | ("completion" | "man", _) => &[],
        ("flow", Some("dead-letters")) => &[LOG, CLIENT],
        ("flow", _) => &[FLOWS],
        ("user", Some("init")) | ("repair", _) => &[LOG],
        ("user", None) | ("stream" | "produce" | "consume" | "object" | "kv", _) => &[LOG, CLIENT],
        _ => &[CLIENT],
    }
}

/// Settings that a command does not use, but refuses itself, with a more helpful error.
fn refused(verb: &str) -> &'static [&'static str] {
    match verb {
        "quickstart" => &[
            "authentication",
            "tls_certificate",
            "tls_key",
            "tls_authorities",
        ],
        _ => &["data", "server"],
    }
}

/// Returns a flag on the command line for a setting that the command does not use.
pub fn unused_flag(command: &Command, matches: &ArgMatches) -> Option<String> {
    let (verb, below) = matches.subcommand()?;
    let mut used = used(verb, below.subcommand_name()).to_vec();
    used.extend([&ALWAYS[..], refused(verb)]);
    let is_unused = |arg: &&Arg| {
        let id = arg.get_id().as_str();
        let source = matches.value_source(id);
        source == Some(ValueSource::CommandLine) && !used.iter().any(|names| names.contains(&id))
    };
    let mut settings = command.get_arguments().filter(|arg| arg.is_global_set());
    let flag = settings.find(is_unused)?.get_long()?;
    Some(format!("--{flag}"))
}

/// Hides the flags of settings that a command does not use.
pub fn with_used_settings(command: Command) -> Command {
    let is_setting = |arg: &&Arg| arg.is_global_set() && !ALWAYS.contains(&arg.get_id().as_str());
    let settings: Vec<Arg> = command
        .get_arguments()
        .filter(is_setting)
        .cloned()
        .collect();
    let shown = |command: Command, used: &[&[&str]]| {
        let is_used = |arg: &Arg| {
            used.iter()
                .any(|names| names.contains(&arg.get_id().as_str()))
        };
        let flags = settings.iter().map(|arg| arg.clone().hide(!is_used(arg)));
        // A setting that this level has is not inherited from the level above.
        command.args(flags)
    };
    command.mut_subcommands(|command| {
        let verb = command.get_name().to_owned();
        let command = shown(command, used(&verb, None));
        command.mut_subcommands(|below| {
            let used = used(&verb, Some(below.get_name()));
            shown(below, used)
        })
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::LowArgs;

    #[track_caller]
    fn check(path: &[&str], shown: &[&str], hidden: &[&str]) {
        let mut command = with_used_settings(LowArgs::command());
        command.build();
        let below = path.iter().try_fold(&mut command, |command, name| {
            command.find_subcommand_mut(name)
        });
        let help = below.expect("it exists").render_help().to_string();
        for flag in shown {
            assert!(
                help.contains(&format!("--{flag} ")),
                "{path:?} {flag}: {help}"
            );
        }
        for flag in hidden {
            assert!(
                !help.contains(&format!("--{flag} ")),
                "{path:?} {flag}: {help}"
            );
        }
    }

    #[test]
    fn help_shows_the_settings_that_a_command_uses() {
        check(
            &["start"],
            &["data", "listen", "http", "config"],
            &["server", "workers"],
        );
        check(
            &["quickstart"],
            &["data", "http", "listen"],
            &["server", "user"],
        );
        check(
            &["stream", "list"],
            &["data", "server"],
            &["listen", "workers"],
        );
        check(&["group", "list"], &["server", "user"], &["data", "pool"]);
        check(&["user", "init"], &["data"], &["server"]);
        check(&["user", "set"], &["server"], &["data"]);
        check(
            &["flow", "run", "logparser"],
            &["http"],
            &["data", "server"],
        );
        check(&["flow", "list"], &["config"], &["http"]);
    }

    #[test]
    fn every_setting_is_used_by_a_command_and_is_one() {
        let command = LowArgs::command();
        let is_setting = |arg: &&Arg| arg.is_global_set();
        let mut known: Vec<&str> = [CLIENT, LOG, DOOR, FLOWS, &ALWAYS].concat();
        let mut settings: Vec<&str> = command
            .get_arguments()
            .filter(is_setting)
            .map(|arg| arg.get_id().as_str())
            .collect();
        known.sort_unstable();
        known.dedup();
        settings.sort_unstable();
        assert_eq!(settings, known);
    }

    #[test]
    fn hidden_flags_are_taken_wherever_they_stand() {
        use clap::FromArgMatches;
        for args in [
            &["millstream", "--workers", "3", "group", "list"][..],
            &["millstream", "group", "--workers", "3", "list"],
            &["millstream", "group", "list", "--workers", "3"],
        ] {
            let command = with_used_settings(LowArgs::command());
            let matches = command.try_get_matches_from(args).unwrap();
            let args = LowArgs::from_arg_matches(&matches).unwrap();
            assert_eq!(args.settings.workers.map(|workers| workers.get()), Some(3));
        }
    }
}
