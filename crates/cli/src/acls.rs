//! `millstream acl …`: lists, adds and removes access rules.

use millstream_client::{Acl, AclFilter, PatternType, ResourceType};
use serde_json::{Value, json};

use crate::args::{AclCommand, AclFilterArgs};
use crate::console::{Align, Table, count_of, print_json, report};
use crate::remote::Remote;
use crate::settings::Settings;

/// The name in a rule about all resources, and the protocol's name of the only cluster.
const ALL: &str = "*";
const CLUSTER: &str = "kafka-cluster";

pub fn run(command: AclCommand, settings: &Settings, is_json: bool) -> anyhow::Result<()> {
    let remote = Remote::only(settings, "access rules")?;
    let client = remote.client();
    match command {
        AclCommand::List { filter } => {
            let acls = remote.wait(client.acls(&filter_of(filter)))?;
            print_acls(&acls, is_json)
        }
        AclCommand::Add {
            permission,
            principal,
            operation,
            resource,
            name,
            prefixed,
            host,
        } => {
            let name = match (name, resource) {
                (Some(name), _) => name,
                (None, ResourceType::Cluster) => CLUSTER.to_owned(),
                (None, _) => ALL.to_owned(),
            };
            let acl = Acl {
                resource,
                name,
                pattern: match prefixed {
                    true => PatternType::Prefixed,
                    false => PatternType::Literal,
                },
                principal,
                host: host.unwrap_or_else(|| ALL.to_owned()),
                operation,
                permission,
            };
            remote.wait(client.create_acl(&acl))?;
            report(
                is_json,
                &document(&acl),
                format_args!("added: {}", sentence(&acl)),
            )
        }
        AclCommand::Remove { filter } => {
            let count = remote.wait(client.delete_acls(&filter_of(filter)))? as u64;
            let document = json!({ "removed": count });
            let rules = count_of(count, "rule");
            report(is_json, &document, format_args!("removed {rules}"))
        }
    }
}

fn filter_of(args: AclFilterArgs) -> AclFilter {
    AclFilter {
        resource: args.resource,
        name: args.name,
        pattern: None,
        principal: args.principal,
        host: args.host,
        operation: args.operation,
        permission: args.permission,
    }
}

fn document(acl: &Acl) -> Value {
    json!({
        "permission": acl.permission.text(),
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.text(),
        "resource": acl.resource.text(),
        "name": acl.name,
        "pattern": acl.pattern.text(),
    })
}

fn sentence(acl: &Acl) -> String {
    let Acl {
        resource,
        name,
        pattern,
        principal,
        host,
        operation,
        permission,
    } = acl;
    format!("{permission} {principal} from {host} to {operation} {resource} {name} ({pattern})")
}

fn print_acls(acls: &[Acl], is_json: bool) -> anyhow::Result<()> {
    if is_json {
        let acls: Vec<Value> = acls.iter().map(document).collect();
        return print_json(&json!({ "acls": acls }));
    }
    let columns = [
        "permission",
        "principal",
        "host",
        "operation",
        "resource",
        "name",
        "pattern",
    ];
    let mut table = Table::new(&columns.map(|name| (name, Align::Left)));
    for acl in acls {
        table.row([
            acl.permission.to_string(),
            acl.principal.clone(),
            acl.host.clone(),
            acl.operation.to_string(),
            acl.resource.to_string(),
            acl.name.clone(),
            acl.pattern.to_string(),
        ]);
    }
    table.print()
}
