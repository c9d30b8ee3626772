//! `millstream transaction …`

use std::io::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use millstream_base::{ProducerEpoch, ProducerId, Timestamp};
use millstream_client::TransactionDescription;
use millstream_connect::FlowTransactionId;
use serde_json::{Value, json};

use crate::args::{DecideArgs, TransactionCommand};
use crate::console::{Align, Table, count_of, print, print_json, report, tell, time};
use crate::door::with_server;
use crate::remote::Remote;
use crate::settings::Settings;
use crate::usage::WrongUsage;

pub fn run(command: TransactionCommand, settings: &Settings, is_json: bool) -> anyhow::Result<()> {
    with_server(settings, |remote| carry_out(command, remote, is_json))
}

fn carry_out(command: TransactionCommand, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    match command {
        TransactionCommand::List { all } => list(remote, all, is_json),
        TransactionCommand::Describe { id } => describe(remote, &id, is_json),
        TransactionCommand::Commit(decide) => end(remote, &decide, true, is_json),
        TransactionCommand::Abort(decide) => end(remote, &decide, false, is_json),
    }
}

fn list(remote: &Remote, all: bool, is_json: bool) -> anyhow::Result<()> {
    let mut found = remote.wait(remote.client().transactions())?;
    found.extend(remote.wait(remote.client().transactions_without_coordinator())?);
    let found = found.into_iter().filter(|it| all || it.is_open());
    if is_json {
        let found: Vec<_> = found.map(|it| document(&it)).collect();
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

fn document(it: &TransactionDescription) -> Value {
    let flow = FlowTransactionId::parse(&it.id);
    json!({
        "id": it.id,
        "state": it.state,
        "flow": flow.as_ref().map(|flow| &flow.flow),
        "sink": flow.as_ref().map(|flow| &flow.sink),
        "rank": flow.as_ref().map(|flow| flow.rank),
        "age_ms": age(it).map(|age| age.as_millis() as u64),
        "timeout_ms": it.timeout.map(|timeout| timeout.as_millis() as u64),
        "partitions": it.partitions.iter().map(|place| json!({
            "stream": &*place.topic,
            "partition": place.partition,
        })).collect::<Vec<_>>(),
    })
}

fn describe(remote: &Remote, id: &str, is_json: bool) -> anyhow::Result<()> {
    let it = found(remote, id)?.transaction;
    let (ProducerId(producer), ProducerEpoch(epoch)) = (it.identity.producer, it.identity.epoch);
    if is_json {
        let mut document = document(&it);
        document["producer_id"] = producer.into();
        document["producer_epoch"] = epoch.into();
        return print_json(&document);
    }
    let mut table = Table::new(&[("stream", Align::Left), ("partition", Align::Right)]);
    for place in &it.partitions {
        table.row([place.topic.to_string(), place.partition.to_string()]);
    }
    let none = || "none".to_owned();
    let seconds = |duration: Duration| time(duration.as_secs_f64());
    print(|out| {
        writeln!(out, "transaction  {}", it.id)?;
        writeln!(out, "state        {}", it.state)?;
        if let Some(of) = FlowTransactionId::parse(&it.id) {
            writeln!(out, "flow         {}", of.flow)?;
        }
        writeln!(out, "producer     {producer}, epoch {epoch}")?;
        writeln!(out, "age          {}", age(&it).map_or_else(none, seconds))?;
        writeln!(
            out,
            "timeout      {}\n",
            it.timeout.map_or_else(none, seconds)
        )?;
        table.write(out)
    })
}

struct Found {
    transaction: TransactionDescription,
    has_coordinator: bool,
}

/// Returns the description of a transaction that the server knows, by the id that `list` shows.
fn found(remote: &Remote, id: &str) -> anyhow::Result<Found> {
    let client = remote.client();
    if let Some(known) = remote.wait(client.transaction(id))? {
        return Ok(Found {
            transaction: known,
            has_coordinator: true,
        });
    }
    let others = remote.wait(client.transactions_without_coordinator())?;
    let found = others.into_iter().find(|other| other.id == id);
    let found = found.map(|transaction| Found {
        transaction,
        has_coordinator: false,
    });
    found.with_context(|| {
        format!(
            "there is no transaction {id}; `millstream transaction list` shows those that are open"
        )
    })
}

/// Returns how long a transaction has been open.
pub fn age(it: &TransactionDescription) -> Option<Duration> {
    since(it.started.filter(|_| it.is_open())?)
}

/// Returns the time since then; `None` if no clock says so.
pub fn since(then: Timestamp) -> Option<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let then = u64::try_from(then.0).ok().map(Duration::from_millis)?;
    Some(now.saturating_sub(then))
}

fn end(
    remote: &Remote,
    decide: &DecideArgs,
    is_committed: bool,
    is_json: bool,
) -> anyhow::Result<()> {
    let id = &decide.id;
    let Found {
        transaction: found,
        has_coordinator,
    } = found(remote, id)?;
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
        None if found.is_in_process() => format!(
            "transaction {id} is of a flow that writes to the log in its own process, and decides it when it is resumed; once it is {outcome} by force, its results may {risk}"
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
    let client = remote.client();
    match has_coordinator {
        true => remote.wait(client.end_transaction(id, found.identity, is_committed))?,
        false => remote.wait(client.end_without_coordinator(&found, is_committed))?,
    }
    let count = count_of(found.partitions.len() as u64, "partition");
    report(
        is_json,
        &json!({ "id": id, "outcome": outcome }),
        format_args!("{outcome} transaction {id} in {count}"),
    )
}
