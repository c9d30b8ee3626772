//! The program `millstream`.

mod acls;
mod args;
mod bench;
mod completion;
mod config;
mod console;
mod consume;
mod door;
mod events;
mod exit;
mod flow;
mod groups;
mod health;
mod help;
mod http;
mod input;
mod kv;
mod lines;
mod node;
mod objects;
mod output;
mod produce;
mod profiles;
mod quickstart;
mod quotas;
mod remote;
mod repair;
mod settings;
mod start;
mod stop;
mod streams;
mod transactions;
mod usage;
mod users;
mod values;

use std::process::ExitCode;

use millstream_log::LogError;

use crate::args::{Command, LowArgs};
use crate::console::{is_broken_pipe, tell_error};
use crate::settings::SettingsError;
use crate::settings::profiles::ProfileFile;
use crate::stop::Stop;
use crate::usage::WrongUsage;

/// Prefixes of the names of the log's own threads.
const LOG_THREADS: [&str; 2] = ["millstream-sync", "millstream-persist"];

fn main() -> ExitCode {
    let args = LowArgs::from_command_line();
    end_on_panic_in_storage();
    match run(args) {
        Ok(()) => exit::DONE.into(),
        // The reader of stdout has closed the pipe, as `head` does: that is not a failure.
        Err(error) if is_broken_pipe(&error) => exit::DONE.into(),
        Err(error) => {
            tell_error(format_args!("{error:#}"));
            match is_wrong_usage(&error) {
                true => exit::WRONG_USAGE.into(),
                false => exit::FAILED.into(),
            }
        }
    }
}

fn run(args: LowArgs) -> anyhow::Result<()> {
    let flags = args.settings.clone();
    let profiles = ProfileFile::of_user();
    let profiles = args.command.uses_profiles().then_some(&profiles);
    let settings = args.settings.resolve(variables(), profiles)?;
    events::write_events(
        settings.log_level.unwrap_or_default(),
        settings.log_format.unwrap_or_default(),
    );
    raise_open_files();
    // Commands that do not use it keep the default action of signals, which ends the program.
    let stop = Stop::on_signals;
    match args.command {
        Command::Quickstart(command) => quickstart::run(command, &settings, args.json, &stop()?),
        Command::Start(command) => start::run(command, &settings, args.json, stop),
        Command::Stream(command) => streams::run(command, &settings, args.json),
        Command::Produce(command) => produce::run(command, &settings, args.json, &stop()?),
        Command::Consume(command) => consume::run(command, &settings, args.json, &stop()?),
        Command::User(command) => users::run(command, &settings, args.json),
        Command::Kv(command) => kv::run(command, &settings, args.json),
        Command::Object(command) => objects::run(command, &settings, args.json),
        Command::Group(command) => groups::run(command, &settings, args.json),
        Command::Transaction(command) => transactions::run(command, &settings, args.json),
        Command::Quota(command) => quotas::run(command, &settings, args.json),
        Command::Config(command) => config::run(command, &settings, args.json),
        Command::Health(command) => health::run(&command, &settings, args.json),
        Command::Profile(command) => profiles::run(command, &flags, args.json),
        Command::Completion(command) => {
            completion::complete(command.shell, LowArgs::commands(), args.json)
        }
        Command::Man(command) => completion::man(&command.dir, LowArgs::commands(), args.json),
        Command::Acl(command) => acls::run(command, &settings, args.json),
        Command::Repair(command) => repair::run(command, &settings, args.json),
        Command::Bench(command) => bench::run(command, &settings, args.json, &stop()?),
        Command::Flow(command) => flow::run(command, &settings, args.json, stop),
    }
}

/// Returns whether the error refuses a value from the command line, the environment or the settings' file. The log
/// checks the bounds that hold between several settings.
fn is_wrong_usage(error: &anyhow::Error) -> bool {
    error.is::<SettingsError>()
        || error.is::<WrongUsage>()
        || matches!(
            error.downcast_ref(),
            Some(LogError::BadSetting { .. } | LogError::BadName { .. })
        )
}

/// The environment variables that are UTF-8, as all settings are.
fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?)))
}

/// Raises the limit of open files: groups are files, so the lanes of a busy node need many. The soft limit is low
/// only for programs that use `select`.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the number of open files");
    }
}

/// Aborts the process if a thread of the log panics, since the panic may have left a change half done. Flows catch
/// the panics of their operators.
fn end_on_panic_in_storage() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        if LOG_THREADS.iter().any(|prefix| name.starts_with(prefix)) {
            std::process::abort();
        }
    }));
}
