//! `millstream config …`: settings of brokers, streams and groups under Kafka's names.

use anyhow::bail;
use millstream_base::nearest;
use millstream_client::{Setting, SettingsOwner};
use serde_json::{Value, json};

use crate::args::ConfigCommand;
use crate::console::{Align, Table, count_of, print_json, report};
use crate::remote::Remote;
use crate::settings::Settings;
use crate::usage::WrongUsage;
use crate::values::Owner;

pub fn run(command: ConfigCommand, settings: &Settings, is_json: bool) -> anyhow::Result<()> {
    let remote = Remote::only(settings, "these settings")?;
    match command {
        ConfigCommand::Show {
            owner,
            names,
            changed,
        } => {
            let owner = found(owner, &remote)?;
            let mut shown = remote.wait(remote.client().all_settings(&owner))?;
            check_names(&owner, &shown, names.iter().map(String::as_str))?;
            shown.retain(|setting| {
                let is_named = names.is_empty() || names.contains(&setting.name);
                is_named && !(changed && setting.is_default)
            });
            print_settings(&owner, &shown, is_json)
        }
        ConfigCommand::Set {
            owner,
            settings,
            dry_run,
        } => {
            let changes = settings.iter();
            let changes: Vec<(&str, Option<String>)> = changes
                .map(|it| (it.name.as_str(), Some(it.value.clone())))
                .collect();
            change(&remote, owner, &changes, dry_run, is_json)
        }
        ConfigCommand::Unset {
            owner,
            names,
            dry_run,
        } => {
            let changes: Vec<_> = names.iter().map(|name| (name.as_str(), None)).collect();
            change(&remote, owner, &changes, dry_run, is_json)
        }
    }
}

fn found(owner: Owner, remote: &Remote) -> anyhow::Result<SettingsOwner> {
    if let Owner::This(owner) = owner {
        return Ok(owner);
    }
    let servers = remote.wait(remote.client().servers())?;
    let mut numbers = servers.into_keys();
    match (numbers.next(), numbers.next()) {
        (Some(number), None) => Ok(SettingsOwner::Broker(number)),
        _ => Err(WrongUsage::error(
            "the cluster does not have exactly one broker: name one as broker/NUMBER",
        )),
    }
}

/// Refuses names of settings that the owner does not have.
fn check_names<'a>(
    owner: &SettingsOwner,
    known: &[Setting],
    mut names: impl Iterator<Item = &'a str>,
) -> anyhow::Result<()> {
    let is_unknown = |name: &&str| !known.iter().any(|setting| setting.name == *name);
    let Some(unknown) = names.find(is_unknown) else {
        return Ok(());
    };
    match nearest(unknown, known.iter().map(|setting| setting.name.as_str())) {
        Some(nearest) => {
            bail!("{owner} has no setting {unknown}; did you mean {nearest}?")
        }
        None => bail!("{owner} has no setting {unknown}; `millstream config show` lists them"),
    }
}

fn change(
    remote: &Remote,
    owner: Owner,
    changes: &[(&str, Option<String>)],
    dry_run: bool,
    is_json: bool,
) -> anyhow::Result<()> {
    let owner = found(owner, remote)?;
    let client = remote.client();
    let known = remote.wait(client.all_settings(&owner))?;
    check_names(&owner, &known, changes.iter().map(|(name, _)| *name))?;
    remote.wait(client.alter_settings_of(&owner, changes, dry_run))?;
    let mut now = remote.wait(client.all_settings(&owner))?;
    now.retain(|setting| changes.iter().any(|(name, _)| *name == setting.name));
    let document = json!({
        "owner": owner.to_string(),
        "is_dry_run": dry_run,
        "settings": now.iter().map(document).collect::<Vec<_>>(),
    });
    let count = count_of(changes.len() as u64, "setting");
    match dry_run {
        true => report(
            is_json,
            &document,
            format_args!("the server would change {count} of {owner}"),
        ),
        false => report(
            is_json,
            &document,
            format_args!("changed {count} of {owner}"),
        ),
    }
}

fn document(setting: &Setting) -> Value {
    json!({
        "name": setting.name,
        "value": setting.value,
        "is_default": setting.is_default,
        "is_read_only": setting.is_read_only,
        "documentation": setting.documentation,
    })
}

fn print_settings(
    owner: &SettingsOwner,
    settings: &[Setting],
    is_json: bool,
) -> anyhow::Result<()> {
    if is_json {
        let settings: Vec<Value> = settings.iter().map(document).collect();
        return print_json(&json!({ "owner": owner.to_string(), "settings": settings }));
    }
    let mut table = Table::new(&[
        ("setting", Align::Left),
        ("value", Align::Left),
        ("source", Align::Left),
    ]);
    for setting in settings {
        let source = match (setting.is_default, setting.is_read_only) {
            (true, _) => "default",
            (false, true) => "start",
            (false, false) => "changed",
        };
        table.row([
            setting.name.clone(),
            setting.value.clone().unwrap_or_default(),
            source.to_owned(),
        ]);
    }
    table.print()
}
