//! `millstream user`: who may come in through the network door.

use std::io::{self, BufRead, IsTerminal, Read};
use std::sync::Arc;

use anyhow::{Context, bail};
use millstream_base::SystemRandom;
use millstream_broker::set_password;
use serde::Serialize;

use crate::args::UserCommand;
use crate::console::{Progress, print_json};
use crate::node;
use crate::settings::Settings;

/// The longest password, in bytes.
const PASSWORD_BYTES_MAX: u64 = 4096;

/// What `--json` prints.
#[derive(Serialize)]
struct Made<'a> {
    user: &'a str,
}

pub fn run(command: UserCommand, settings: &Settings, is_json: bool) -> anyhow::Result<()> {
    match command {
        UserCommand::Init { name } => init(&name, settings, is_json),
    }
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

/// Asks for a password where somebody can answer; else it is the first line of stdin.
fn read_password(user: &str) -> anyhow::Result<String> {
    if io::stdin().is_terminal() {
        let password = rpassword::prompt_password(format!("password of {user}: "))?;
        if rpassword::prompt_password("once more: ")? != password {
            bail!("these are two different passwords");
        }
        return Ok(password);
    }
    let mut line = String::new();
    let mut stdin = io::stdin().lock().take(PASSWORD_BYTES_MAX);
    let read = stdin.read_line(&mut line);
    read.context("cannot read the password from stdin")?;
    let password = line.trim_end_matches(['\r', '\n']);
    if password.is_empty() {
        bail!("there is no password on stdin: its first line is taken");
    }
    Ok(password.to_owned())
}
