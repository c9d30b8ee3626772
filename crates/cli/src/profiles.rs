//! `millstream profile …`: adds, lists, chooses and removes profiles.

use anyhow::bail;
use serde_json::json;

use crate::args::ProfileCommand;
use crate::console::{Align, Table, print_json, report};
use crate::settings::Settings;
use crate::settings::profiles::{ProfileFile, Profiles};
use crate::usage::WrongUsage;

/// Carries out a command. `flags` are the settings on the command line alone.
pub fn run(command: ProfileCommand, flags: &Settings, is_json: bool) -> anyhow::Result<()> {
    let file = ProfileFile::of_user();
    let path = file.path()?;
    let mut all = Profiles::read(path)?;
    let (name, done) = match command {
        ProfileCommand::List => return list(&all, is_json),
        ProfileCommand::Add { name } => {
            let settings = flags.for_profile()?;
            if !settings.contains_key("server") {
                return Err(WrongUsage::error(
                    "a profile names a server: add --server HOST:PORT",
                ));
            }
            if all.profiles.contains_key(&name) {
                bail!("there is a profile {name}; `millstream profile remove {name}` removes it");
            }
            all.profiles.insert(name.clone(), settings);
            (name, "added")
        }
        ProfileCommand::Use { name } => {
            all.get(&name)?;
            all.current = Some(name.clone());
            (name, "commands now use")
        }
        ProfileCommand::Remove { name } => {
            all.get(&name)?;
            all.profiles.remove(&name);
            all.current.take_if(|current| *current == name);
            (name, "removed")
        }
    };
    all.write(path)?;
    report(
        is_json,
        &json!({ "profile": name, "current": all.current, "file": path }),
        format_args!("{done} profile {name}"),
    )
}

fn list(all: &Profiles, is_json: bool) -> anyhow::Result<()> {
    if is_json {
        let profiles = all.profiles.iter().map(|(name, settings)| {
            json!({ "profile": name, "is_current": all.current() == Some(name), "settings": settings })
        });
        return print_json(&json!({ "profiles": profiles.collect::<Vec<_>>() }));
    }
    let mut table = Table::new(&[
        ("profile", Align::Left),
        ("server", Align::Left),
        ("user", Align::Left),
        ("in use", Align::Left),
    ]);
    for (name, settings) in &all.profiles {
        let text = |setting| settings.get(setting).cloned().unwrap_or_default();
        let is_current = all.current() == Some(name);
        table.row([
            name.clone(),
            text("server"),
            text("user"),
            if is_current { "yes" } else { "" }.to_owned(),
        ]);
    }
    table.print()
}
