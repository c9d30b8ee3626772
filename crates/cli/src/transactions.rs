//! `millstream transaction …`

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use millstream_client::TransactionDescription;
use millstream_connect::FlowTransactionId;
use serde_json::json;

use crate::args::{DecideArgs, TransactionCommand};
use crate::console::{Align, Table, count_of, print_json, report, tell, time};
use crate::remote::Remote;
use crate::settings::Settings;
use crate::usage::WrongUsage;

pub fn run(command: TransactionCommand, settings: &Settings, is_json: bool) -> anyhow::Result<()> {
    let remote = Remote::only(settings, "transactions")?;
    match command {
        TransactionCommand::List { all } => list(&remote, all, is_json),
        TransactionCommand::Commit(decide) => end(&remote, &decide, true, is_json),
        TransactionCommand::Abort(decide) => end(&remote, &decide, false, is_json),
    }
}

fn list(remote: &Remote, all: bool, is_json: bool) -> anyhow::Result<()> {
    let found = remote.wait(remote.client().transactions())?;
    let found = found.into_iter().filter(|it| all || it.is_open());
    if is_json {
        let found: Vec<_> = found
            .map(|it| {
                let flow = FlowTransactionId::parse(&it.id);
                json!({
                    "id": it.id,
                    "state": it.state,
                    "flow": flow.as_ref().map(|flow| &flow.flow),
                    "sink": flow.as_ref().map(|flow| &flow.sink),
                    "rank": flow.as_ref().map(|flow| flow.rank),
                    "age_ms": age(&it).map(|age| age.as_millis() as u64),
                    "timeout_ms": it.timeout.map(|timeout| timeout.as_millis() as u64),
                    "partitions": it.partitions.iter().map(|place| json!({
                        "stream": &*place.topic,
                        "partition": place.partition,
                    })).collect::<Vec<_>>(),
                })
            })
            .collect();
        return print_json(&json!({ "transactions": found }));
    }
    let mut table = Table::new(&[
        ("transaction", Align::Left),
        ("state", Align::Left),
        ("flow", Align::Left),
        ("age", Align::Right),
        ("timeout", Align::Right),
        ("partitions", Align::Left),
    ]);
    for it in found {
        let flow = FlowTransactionId::parse(&it.id).map(|flow| flow.flow);
        let seconds = |duration: Duration| time(duration.as_secs_f64());
        let places = it.partitions.iter();
        let places = places.map(|place| format!("{}/{}", place.topic, place.partition));
        table.row([
            it.id.clone(),
            it.state.clone(),
            flow.unwrap_or_default(),
            age(&it).map(seconds).unwrap_or_default(),
            it.timeout.map_or_else(|| "none".to_owned(), seconds),
            places.collect::<Vec<_>>().join(" "),
        ]);
    }
    table.print()
}

/// How long a transaction has been open.
fn age(it: &TransactionDescription) -> Option<Duration> {
    let started = it.started.filter(|_| it.is_open())?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let started = u64::try_from(started.0).ok().map(Duration::from_millis)?;
    Some(now.saturating_sub(started))
}

fn end(
    remote: &Remote,
    decide: &DecideArgs,
    is_committed: bool,
    is_json: bool,
) -> anyhow::Result<()> {
    let id = &decide.id;
    let Some(found) = remote.wait(remote.client().transaction(id))? else {
        bail!(
            "there is no transaction {id}; `millstream transaction list` shows those that are open"
        );
    };
    if !found.is_open() {
        bail!("transaction {id} is not open: its state is {}", found.state);
    }
    let (outcome, risk) = match is_committed {
        true => ("committed", "come twice"),
        false => ("aborted", "be lost"),
    };
    let warning = match FlowTransactionId::parse(id) {
        Some(of) => format!(
            "transaction {id} is of flow \"{}\", which decides it when it is resumed; once it is {outcome} by force, its results may {risk}",
            of.flow
        ),
        None => format!(
            "transaction {id} is its producer's to decide; once it is {outcome} by force, the producer's records may {risk}"
        ),
    };
    if !decide.force {
        return Err(WrongUsage::error(format!(
            "{warning}; if that is what you want, add --force"
        )));
    }
    tell(format_args!("warning: {warning}"));
    let ended = remote
        .client()
        .end_transaction(id, found.identity, is_committed);
    remote.wait(ended)?;
    let count = count_of(found.partitions.len() as u64, "partition");
    report(
        is_json,
        &json!({ "id": id, "outcome": outcome }),
        format_args!("{outcome} transaction {id} in {count}"),
    )
}
