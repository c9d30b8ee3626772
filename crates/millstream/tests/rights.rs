//! A flow over a server whose user has just the rights that the guide names.

mod servers;

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use millstream::client::{
    Acl, AclOperation, Client, ClientConfig, Hash, Login, Mechanism, PatternType, Permission,
    ResourceType,
};
use millstream::connect::Network;
use millstream::{Error, Flow, Node};
use millstream_base::SystemRandom;
use millstream_broker::security::Principal;
use millstream_broker::{Server, set_password};

use AclOperation::{Create, Delete, DescribeConfigs, Read, TwoPhaseCommit, Write};
use PatternType::{Literal, Prefixed};
use ResourceType::{Stream, TransactionalId};

const TIME_MAX: Duration = Duration::from_secs(60);

/// A right to the resources of a name, or of a prefix; `FLOW` stands for the flow's name.
type Right = (ResourceType, PatternType, &'static str, AclOperation);

/// The rights in the guide, under "Rights of a flow over a server".
const RIGHTS: [Right; 17] = [
    (Stream, Literal, "FLOW-numbers", Read),
    (Stream, Literal, "FLOW-copy", Write),
    (Stream, Literal, "FLOW.dead_letters", Create),
    (Stream, Literal, "FLOW.dead_letters", Write),
    (Stream, Literal, "FLOW.state.counts", Create),
    (Stream, Literal, "FLOW.state.counts", DescribeConfigs),
    (Stream, Literal, "FLOW.state.counts", Read),
    (Stream, Literal, "FLOW.state.counts", Write),
    (Stream, Literal, "FLOW.checkpoints", Create),
    (Stream, Literal, "FLOW.checkpoints", DescribeConfigs),
    (Stream, Literal, "FLOW.checkpoints", Read),
    (Stream, Literal, "FLOW.checkpoints", Write),
    (Stream, Prefixed, "FLOW.checkpoint.", Read),
    (Stream, Prefixed, "FLOW.checkpoint.", Write),
    (TransactionalId, Literal, "flow/FLOW", Write),
    (TransactionalId, Prefixed, "flow/FLOW/", Write),
    (TransactionalId, Prefixed, "flow/FLOW/", TwoPhaseCommit),
];

/// Without this one, the flow keeps the shards of earlier checkpoints.
const REMOVES_SHARDS: Right = (Stream, Prefixed, "FLOW.checkpoint.", Delete);

/// With this one, the flow makes the topic that it writes.
const MAKES_COPY: Right = (Stream, Literal, "FLOW-copy", Create);

/// A server with logins, and its administrator.
struct World {
    address: String,
    admin: Client,
    node: Node,
    network: Network,
}

fn config(address: &str, user: &str) -> ClientConfig {
    let mut config = ClientConfig::new(address);
    config.login = Some(Login {
        mechanism: Mechanism::Scram(Hash::Sha256),
        user: user.to_owned(),
        password: format!("{user}'s secret"),
    });
    config
}

impl World {
    /// Makes a user of the flow's name, with these rights.
    fn allow(&self, flow: &str, rights: &[Right]) -> Result<Node, Error> {
        let password = format!("{flow}'s secret");
        let set = self.admin.set_password(flow, Hash::Sha256, &password);
        self.network.wait(set).expect("the administrator may");
        for (resource, pattern, name, operation) in rights {
            let acl = Acl {
                resource: *resource,
                name: name.replace("FLOW", flow),
                pattern: *pattern,
                principal: format!("User:{flow}"),
                host: "*".to_owned(),
                operation: *operation,
                permission: Permission::Allow,
            };
            let created = self.network.wait(self.admin.create_acl(&acl));
            created.expect("the administrator may");
        }
        Node::connect_with(config(&self.address, flow))
    }

    /// Runs a flow as its user until it has copied these numbers, and stops it. It counts them, too.
    fn run(&self, node: &Node, flow: &str, numbers: &[u64]) -> Result<(), Error> {
        let [copied, counted] = Flow::new(flow)
            .read(node.topic(&format!("{flow}-numbers")).json::<u64>())
            .fork();
        copied.write(node.topic(&format!("{flow}-copy")).json());
        let counted = counted.key_by(|number| number % 2).state("counts").count();
        let running = counted.start()?;
        let copy = self.node.topic(&format!("{flow}-copy")).json::<u64>();
        let until = Instant::now() + TIME_MAX;
        // A flow goes on without checkpoints, and ends with their error when it is stopped.
        let fails = || running.checkpoints().is_some_and(|it| it.failed > 0);
        while !running.is_finished() && !fails() && copy.read_all()?.len() < numbers.len() {
            assert!(Instant::now() < until, "{flow} hangs");
            thread::sleep(Duration::from_millis(10));
        }
        running.stop();
        while !running.is_finished() {
            assert!(Instant::now() < until, "{flow} does not stop");
            thread::sleep(Duration::from_millis(10));
        }
        running.join()?;
        assert_eq!(copy.read_all()?, numbers, "{flow}");
        Ok(())
    }

    /// Runs a flow of a new user with these rights, which stops and goes on.
    fn run_twice(&self, flow: &str, rights: &[Right]) -> Result<(), Error> {
        if !rights.contains(&MAKES_COPY) {
            let copy = self.node.topic(&format!("{flow}-copy"));
            copy.json::<u64>().create()?;
        }
        let numbers = self.node.topic(&format!("{flow}-numbers")).text();
        let numbers = numbers.create()?;
        numbers.send(["1", "2", "no number", "3"])?;
        let node = self.allow(flow, rights)?;
        self.run(&node, flow, &[1, 2, 3])?;
        numbers.send(["5"])?;
        self.run(&node, flow, &[1, 2, 3, 5])?;
        // A server shows results soon after the commit.
        let until = Instant::now() + TIME_MAX;
        loop {
            let counts = self.node.topic(&format!("{flow}.state.counts"));
            let counts = counts.json::<u64>().read_keys::<u64>()?;
            let letters = self.node.topic(&format!("{flow}.dead_letters"));
            let letters = letters.text().read_all()?;
            let found = (counts.get(&0), counts.get(&1), &letters[..]);
            if found == (Some(&1), Some(&3), &["no number".to_owned()]) {
                return Ok(());
            }
            assert!(Instant::now() < until, "{flow}: {found:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

fn world(dir: &Path) -> Result<(World, Server), Error> {
    let (_, server) = servers::start(dir, |log, config| {
        let (clock, random) = (Arc::clone(log.clock()), Arc::new(SystemRandom));
        let set = set_password(log, clock, random, "admin", "admin's secret");
        set.expect("the log takes it");
        config.security.authentication = true;
        config.security.super_users = Principal::user("admin").into_iter().collect();
    });
    let address = server.local_address().to_string();
    let config = config(&address, "admin");
    let world = World {
        admin: Client::new(config.clone()),
        node: Node::connect_with(config)?,
        network: Network::start("rights")?,
        address,
    };
    Ok((world, server))
}

#[test]
fn a_flow_runs_and_resumes_with_the_rights_in_the_guide() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let (world, _server) = world(dir.path())?;
    world.run_twice("all", &[&RIGHTS[..], &[REMOVES_SHARDS]].concat())?;
    // The flow keeps shards that it may not remove.
    world.run_twice("keeping", &RIGHTS)?;
    world.run_twice("making", &[&RIGHTS[..], &[MAKES_COPY]].concat())
}

#[test]
fn a_flow_without_one_of_its_rights_ends_with_an_error_that_names_it() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let (world, _server) = world(dir.path())?;
    let mut wrong = Vec::new();
    for (without, missing) in RIGHTS.iter().enumerate() {
        let flow = format!("flow{without}");
        let mut rights = RIGHTS.to_vec();
        rights.remove(without);
        let ended = world.run_twice(&flow, &rights);
        let told = ended
            .as_ref()
            .map_or_else(ToString::to_string, |()| "it runs".to_owned());
        let (_, _, name, operation) = missing;
        let parts = [name.replace("FLOW", &flow), format!("{operation:?}")];
        if parts.iter().any(|part| !told.contains(part)) {
            wrong.push(format!("without {operation:?} to {name}: {told}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
