//! Listeners of an application: its process serves Kafka's clients from the data directory that it has open.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use millstream_broker::security::TlsFiles;
use millstream_broker::{BrokerConfig, ListenerConfig, Objective};
use millstream_node::{
    BoundNode, Listeners, Principals, ServedNode, check_exposed, listeners, objective, principals,
};
use millstream_serve::{Options, Server};

use crate::error::Error;
use crate::node::Node;
use crate::running::{Begun, FlowContent, start_http};

/// The options with which an application serves Kafka's clients.
#[derive(Debug, Args)]
#[command(about = None)]
#[group(skip)]
pub struct ListenOptions {
    /// Serve Kafka clients from the data directory while the flow runs, at this address, as HOST:PORT; or at several
    /// separated by `;`, each with the prefix PLAINTEXT://, SSL://, SASL_PLAINTEXT:// or SASL_SSL://
    #[arg(long, value_name = "ADDRESSES", value_parser = listeners, requires = "data", conflicts_with = "server")]
    listen: Option<Listeners>,
    /// Require Kafka clients and visitors of HTTP to log in, as users that `millstream user` adds to the data directory
    #[arg(long, requires = "listen")]
    authentication: bool,
    /// Users, separated by `;`, that may do everything
    #[arg(long, value_name = "USERS", value_parser = principals, requires = "listen")]
    super_users: Option<Principals>,
    /// Encrypt connections with the certificate in this PEM file
    #[arg(long, value_name = "PATH", requires = "listen", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// The certificate's key, in this PEM file
    #[arg(long, value_name = "PATH", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Let clients log in with a certificate that one of the authorities in this PEM file has signed
    #[arg(long, value_name = "PATH", requires = "tls_certificate")]
    tls_authorities: Option<PathBuf>,
    /// Answer 99 % of produce requests within this time, for instance 20ms: while they take longer, flows without requests have
    /// hardly any processor time
    #[arg(long, value_name = "TIME", value_parser = objective, requires = "listen")]
    produce_objective: Option<Objective>,
    /// The same for fetch requests, from the moment at which there are records for them
    #[arg(long, value_name = "TIME", value_parser = objective, requires = "listen")]
    fetch_objective: Option<Objective>,
}

impl ListenOptions {
    /// Returns the settings of the listeners, if there are any.
    pub fn config(&self) -> Result<Option<BrokerConfig>, Error> {
        let Some(listen) = &self.listen else {
            return Ok(None);
        };
        let listeners = listen.configs()?;
        let first = listeners.first().map(|listener| listener.address);
        let first = first.expect("the option names a listener");
        let mut config = BrokerConfig {
            listeners,
            produce_objective: self.produce_objective,
            fetch_objective: self.fetch_objective,
            ..BrokerConfig::new(first)
        };
        config.security.authentication = self.authentication;
        config.security.super_users = self.super_users.clone().unwrap_or_default();
        if let (Some(certificates), Some(key)) = (&self.tls_certificate, &self.tls_key) {
            config.tls = Some(TlsFiles {
                certificates: certificates.clone(),
                key: key.clone(),
                authorities: self.tls_authorities.clone(),
            });
        }
        Ok(Some(config))
    }
}

/// Bound listeners whose clients wait until a node serves them.
pub struct Bound {
    node: BoundNode,
    /// The host names that clients use.
    names: Vec<String>,
}

/// Binds listeners. Only this machine may reach listeners without logins, and an HTTP server at `http` without them.
pub fn bind(config: BrokerConfig, http: Option<SocketAddr>) -> Result<Bound, Error> {
    check_exposed(&config, http, false).map_err(|exposed| Error::Exposed {
        address: exposed.address,
    })?;
    let advertised = config.listeners.iter();
    let names = advertised.filter_map(host_name).collect();
    Ok(Bound {
        node: BoundNode::bind(config, Vec::new)?,
        names,
    })
}

/// Returns the name that a listener advertises.
fn host_name(listener: &ListenerConfig) -> Option<String> {
    let (host, _) = listener.advertised.as_ref()?;
    Some(host.clone())
}

impl Bound {
    /// Serves the flows of this process over HTTP, with the pages of the node. Visitors have the users and the rights of the listeners.
    pub fn serve_http(&self, begun: &Begun, address: SocketAddr) -> Result<Server, Error> {
        let options = Options {
            gate: Some(self.node.gate()),
            hosts: self.names.clone(),
            ..Options::default()
        };
        let content = FlowContent::new(begun, Some(self.node.content()));
        start_http(address, content, options)
    }

    /// Whether connections are encrypted, those of HTTP, too.
    pub fn has_tls(&self) -> bool {
        self.node.has_tls()
    }

    /// Serves the node's log to Kafka's clients.
    pub fn serve(self, node: &Node) -> Result<ServedNode, Error> {
        let log = node.log().ok_or(Error::ListensForServer)?;
        Ok(self.node.serve(log)?)
    }
}
