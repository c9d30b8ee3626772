//! `millstream user`: the users that may log in at the server.

use std::io::{self, IsTerminal};
use std::sync::Arc;

use anyhow::bail;
use millstream_base::SystemRandom;
use millstream_broker::set_password;
use millstream_client::{Hash, Mechanism, User};
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::UserCommand;
use crate::console::{Align, Progress, Table, print_json, report};
use crate::node;
use crate::remote::{Remote, password_of};
use crate::settings::Settings;

/// The document that `--json` prints.
#[derive(Serialize)]
struct Made<'a> {
    user: &'a str,
}

pub fn run(command: UserCommand, settings: &Settings, is_json: bool) -> anyhow::Result<()> {
    match command {
        UserCommand::Init { name } => init(&name, settings, is_json),
        UserCommand::Set { name } => set(&name, &remote(settings)?, is_json),
        UserCommand::List => list(&remote(settings)?, is_json),
        UserCommand::Delete { name } => delete(&name, &remote(settings)?, is_json),
    }
}

fn remote(settings: &Settings) -> anyhow::Result<Remote> {
    Remote::only(settings, "users")
}

fn set(name: &str, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    let password = read_password(name)?;
    for hash in [Hash::Sha256, Hash::Sha512] {
        remote.wait(remote.client().set_password(name, hash, &password))?;
    }
    let made = Made { user: name };
    report(
        is_json,
        &made,
        format_args!("user {name} has a password now"),
    )
}

fn list(remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    let users = remote.wait(remote.client().users())?;
    let mechanisms = |user: &User| -> Vec<String> {
        let hashes = user.credentials.iter().filter_map(|info| info.hash);
        hashes
            .map(|hash| Mechanism::Scram(hash).to_string())
            .collect()
    };
    if is_json {
        let users: Vec<Value> = users
            .iter()
            .map(|user| json!({ "user": user.name, "mechanisms": mechanisms(user) }))
            .collect();
        return print_json(&json!({ "users": users }));
    }
    let mut table = Table::new(&[("user", Align::Left), ("mechanisms", Align::Left)]);
    for user in &users {
        table.row([user.name.clone(), mechanisms(user).join(", ")]);
    }
    table.print()
}

fn delete(name: &str, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    let users = remote.wait(remote.client().users())?;
    let Some(user) = users.into_iter().find(|user| user.name == name) else {
        bail!("there is no user {name}");
    };
    let hashes: Vec<Hash> = user
        .credentials
        .iter()
        .filter_map(|info| info.hash)
        .collect();
    remote.wait(remote.client().delete_passwords(name, &hashes))?;
    report(
        is_json,
        &Made { user: name },
        format_args!("deleted user {name}"),
    )
}

fn init(name: &str, settings: &Settings, is_json: bool) -> anyhow::Result<()> {
    let password = read_password(name)?;
    let log = node::open(settings)?;
    let clock = Arc::clone(log.clock());
    set_password(&log, clock, Arc::new(SystemRandom), name, &password)?;
    log.close()?;
    match is_json {
        true => print_json(&Made { user: name })?,
        false => Progress::new(is_json).insist(&format!("user {name} has a password now")),
    }
    Ok(())
}

/// Asks for a password on a terminal; otherwise reads it from the first line of stdin.
fn read_password(user: &str) -> anyhow::Result<String> {
    if io::stdin().is_terminal() {
        let password = rpassword::prompt_password(format!("password of {user}: "))?;
        if rpassword::prompt_password("once more: ")? != password {
            bail!("the two passwords differ; type the same one twice");
        }
        return Ok(password);
    }
    password_of(io::stdin().lock(), "stdin")
}
