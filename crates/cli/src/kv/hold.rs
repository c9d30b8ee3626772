//! `millstream kv hold …`: holds of a keyed stream.

use millstream_client::Hold;
use serde_json::{Value, json};

use super::common::wait;
use super::history::date;
use crate::args::HoldCommand;
use crate::console::{Align, Table, print, print_json, report};
use crate::remote::Remote;

pub fn hold(command: HoldCommand, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    match command {
        HoldCommand::Create { hold, life } => {
            let stream = remote.client().keyed(&hold.stream);
            let made = stream.create_hold(&hold.name, Some(life));
            let made = wait(remote, &stream, made)?;
            let (name, stream, until) = (&made.name, &hold.stream, date(made.until));
            let done = format_args!("hold {name} of stream {stream} stays until {until}");
            report(is_json, &document(&made), done)
        }
        HoldCommand::List { stream: name } => {
            let stream = remote.client().keyed(&name);
            let holds = wait(remote, &stream, stream.holds())?;
            match is_json {
                true => {
                    let holds: Vec<Value> = holds.iter().map(document).collect();
                    print_json(&json!({ "holds": holds }))
                }
                false => print(|out| table(&holds).write(out)),
            }
        }
        HoldCommand::Delete { hold } => {
            let stream = remote.client().keyed(&hold.stream);
            wait(remote, &stream, stream.delete_hold(&hold.name))?;
            let done = format_args!("deleted hold {} of stream {}", hold.name, hold.stream);
            report(is_json, &json!({ "name": hold.name }), done)
        }
    }
}

fn document(hold: &Hold) -> Value {
    json!({
        "name": hold.name,
        "owner": hold.owner,
        "created": hold.created,
        "until": hold.until,
        "is_whole": hold.is_whole,
        "ends": hold.ends,
    })
}

fn table(holds: &[Hold]) -> Table {
    let mut table = Table::new(&[
        ("hold", Align::Left),
        ("owner", Align::Left),
        ("created", Align::Left),
        ("until", Align::Left),
        ("lacks", Align::Left),
    ]);
    for hold in holds {
        table.row([
            hold.name.clone(),
            hold.owner.clone(),
            date(hold.created),
            date(hold.until),
            match hold.is_whole {
                true => String::new(),
                false => "removed records".to_owned(),
            },
        ]);
    }
    table
}
