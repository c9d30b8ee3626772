//! `millstream flow`: the built-in applications, and the flows of running programs.

mod ads;
mod checkpoints;
mod dead_letters;
mod describe;
mod logparser;
mod observe;
mod ranks;
mod record;
mod words;

use std::io;
use std::sync::Arc;

use clap::CommandFactory;
use millstream_ads::benchmark::App;
use millstream_exchange::cpus_of_task;
use millstream_flow::{FlowSettings, Order, RoundRobin};
use serde_json::json;

use crate::args::{Application, FlowCommand, LowArgs, OrderName, RunArgs, SchedulerName};
use crate::console::{Align, Table, print_json};
use crate::settings::Settings;
use crate::stop::Stop;

pub fn run(
    command: FlowCommand,
    settings: &Settings,
    is_json: bool,
    stop: impl FnOnce() -> io::Result<Stop>,
) -> anyhow::Result<()> {
    match command {
        FlowCommand::Run(Application::Logparser(args)) => {
            logparser::run(&args, settings, is_json, &stop()?)
        }
        FlowCommand::Run(Application::Swa(args)) => {
            ads::run(App::Swa, &args, settings, is_json, &stop()?)
        }
        FlowCommand::Run(Application::Ysb(args)) => {
            ads::run(App::Ysb, &args, settings, is_json, &stop()?)
        }
        FlowCommand::Run(Application::YsbStar(args)) => {
            ads::run(App::YsbStar, &args, settings, is_json, &stop()?)
        }
        FlowCommand::Run(Application::Words(args)) => {
            words::run(&args, settings, is_json, &stop()?)
        }
        FlowCommand::List => list(is_json),
        FlowCommand::Describe(args) => describe::run(&args, is_json),
        FlowCommand::DeadLetters(command) => {
            dead_letters::run(&command, settings, is_json, &stop()?)
        }
    }
}

/// The applications are the subcommands of `flow run`.
fn list(is_json: bool) -> anyhow::Result<()> {
    let command = LowArgs::command();
    let run = command
        .find_subcommand("flow")
        .and_then(|flow| flow.find_subcommand("run"));
    let applications: Vec<(String, String)> = run
        .into_iter()
        .flat_map(|run| run.get_subcommands())
        .map(|application| {
            let about = application.get_about().map(ToString::to_string);
            (application.get_name().to_owned(), about.unwrap_or_default())
        })
        .collect();
    if is_json {
        let applications: Vec<_> = applications
            .iter()
            .map(|(name, about)| json!({ "name": name, "about": about }))
            .collect();
        return print_json(&json!({ "applications": applications }));
    }
    let mut table = Table::new(&[("application", Align::Left), ("purpose", Align::Left)]);
    for (name, about) in applications {
        table.row([name, about]);
    }
    table.print()
}

/// Returns the options of a flow from the flags and settings; `order` is the order that the flow itself needs.
fn flow_settings(args: &RunArgs, settings: &Settings, order: Order) -> FlowSettings {
    let mut flow = FlowSettings::default();
    let given = cpus_of_task().map_or(flow.workers, |cpus| cpus.min(flow.workers));
    flow.workers = settings.workers.unwrap_or(given);
    flow.order = args.order.map_or(order, |name| match name {
        OrderName::Kept => Order::Kept,
        OrderName::Free => Order::Free,
    });
    if args.scheduler == SchedulerName::RoundRobin {
        flow.scheduler = Arc::new(RoundRobin::default());
    }
    flow
}
