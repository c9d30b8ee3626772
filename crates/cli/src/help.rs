//! The settings that the help of each command shows: those that the command uses.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use crate::settings::{SETTINGS, Use};

/// The commands that use a global flag: that of a setting, or one that says where settings come from.
fn uses(flag: &str) -> &'static [Use] {
    match flag {
        "json" | "config" => &[Use::Always],
        "profile" => &[Use::Client],
        name => {
            let setting = SETTINGS.iter().find(|setting| setting.name == name);
            setting.map_or(&[], |setting| setting.about.uses)
        }
    }
}

/// Returns whether a command uses a flag, where `used` are the settings of the command.
fn is_used(flag: &str, used: &[Use]) -> bool {
    let is_used = |it: &Use| *it == Use::Always || used.contains(it);
    uses(flag).iter().any(is_used)
}

/// The settings of a verb, or of one of those below it.
fn used(verb: &str, below: Option<&str>) -> &'static [Use] {
    match (verb, below) {
        ("start", _) => &[Use::Log, Use::Broker, Use::Http],
        ("quickstart", _) => &[Use::Log, Use::Http, Use::Flows, Use::Quickstart],
        ("flow", Some("list" | "describe")) | ("completion" | "man", _) => &[],
        ("flow", Some("dead-letters")) => &[Use::Log, Use::Client],
        ("flow", _) => &[Use::Http, Use::Flows],
        ("user", Some("init")) | ("repair", _) => &[Use::Log],
        ("user", None) | ("stream" | "produce" | "consume" | "object" | "kv", _) => {
            &[Use::Log, Use::Client]
        }
        _ => &[Use::Client],
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
    let used = used(verb, below.subcommand_name());
    let deepest = command
        .find_subcommand(verb)
        .and_then(|verb| verb.find_subcommand(below.subcommand_name()?));
    let is_own = |arg: &Arg| deepest.is_some_and(|deepest| has_own(deepest, arg));
    let is_unused = |arg: &&Arg| {
        let id = arg.get_id().as_str();
        let source = matches.value_source(id);
        source == Some(ValueSource::CommandLine)
            && !is_used(id, used)
            && !refused(verb).contains(&id)
            && !is_own(arg)
    };
    let mut settings = command.get_arguments().filter(|arg| arg.is_global_set());
    let flag = settings.find(is_unused)?.get_long()?;
    Some(format!("--{flag}"))
}

/// Returns whether a command has an argument of its own with the name of a setting.
fn has_own(command: &Command, setting: &Arg) -> bool {
    let mut own = command.get_arguments().filter(|arg| !arg.is_global_set());
    own.any(|arg| arg.get_id() == setting.get_id())
}

/// Hides the flags of settings that a command does not use.
pub fn with_used_settings(command: Command) -> Command {
    // Every command uses the others.
    let is_setting =
        |arg: &&Arg| arg.is_global_set() && !uses(arg.get_id().as_str()).contains(&Use::Always);
    let settings: Vec<Arg> = command
        .get_arguments()
        .filter(is_setting)
        .cloned()
        .collect();
    let shown = |command: Command, used: &[Use]| {
        let flags = settings.iter().filter(|arg| !has_own(&command, arg));
        let flags: Vec<Arg> = flags
            .map(|arg| {
                let is_used = is_used(arg.get_id().as_str(), used);
                arg.clone().hide(!is_used)
            })
            .collect();
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
    fn every_global_flag_is_used_by_a_command() {
        let command = with_used_settings(LowArgs::command());
        let globals = command.get_arguments().filter(|arg| arg.is_global_set());
        for arg in globals {
            let id = arg.get_id().as_str();
            let is_shown = |below: &Command| {
                let mut args = below.get_arguments();
                args.any(|arg| arg.get_id() == id && !arg.is_hide_set())
            };
            let is_used =
                uses(id).contains(&Use::Always) || command.get_subcommands().any(is_shown);
            assert!(is_used, "no command uses {id}");
        }
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
