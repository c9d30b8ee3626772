//! Access to a node over HTTP: the users of the Kafka listener, by its access rules.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use millstream_base::Credentials;
use millstream_broker::security::{Principal, Tls, principal_of};
use millstream_broker::{self as broker, Wanted};
use millstream_serve::{Admission, Gate, Visited, Visitor};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::content::NodeContent;

/// The Kafka listener's TLS, users and access rules.
pub struct NodeGate {
    pub tls: Option<Arc<Tls>>,
    pub content: Arc<NodeContent>,
}

impl Gate for NodeGate {
    fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.tls.as_ref().map(|tls| tls.config())
    }

    fn visitor(
        &self,
        from: SocketAddr,
        certificate: Option<&CertificateDer<'_>>,
    ) -> Arc<dyn Visitor> {
        Arc::new(NodeVisitor {
            content: Arc::clone(&self.content),
            from,
            certified: certificate.and_then(principal_of),
            known: OnceLock::new(),
        })
    }
}

struct NodeVisitor {
    content: Arc<NodeContent>,
    from: SocketAddr,
    certified: Option<Principal>,
    /// The connection to the broker, opened by the first request while it served.
    known: OnceLock<broker::Visitor>,
}

impl Visitor for NodeVisitor {
    fn admit(
        self: Arc<Self>,
        visited: Visited,
        credentials: Option<Credentials>,
    ) -> Pin<Box<dyn Future<Output = Admission> + Send>> {
        Box::pin(async move {
            let Some(broker) = self.content.broker() else {
                return Admission::NotReady;
            };
            let certified = || self.certified.clone();
            let visitor = || broker::Visitor::new(&broker, self.from, certified());
            let known = self.known.get_or_init(visitor);
            let topic;
            let wanted = match &visited {
                Visited::Node => Wanted::Describe,
                // The topic of the state, whether the flow keeps it there or not.
                Visited::State { flow, element } => {
                    topic = format!("{flow}.state.{element}");
                    Wanted::Read(&topic)
                }
                Visited::Read(stream) => Wanted::Read(stream),
                Visited::Write(stream) => Wanted::Write(stream),
                // Rules have no rights of flows: a topic stands for the requests to one.
                Visited::Query(flow) => {
                    topic = format!("{flow}.q");
                    Wanted::Read(&topic)
                }
            };
            match known.admit(wanted, credentials).await {
                broker::Admission::Allowed => Admission::Allowed,
                broker::Admission::LogIn { takes_tokens } => Admission::LogIn { takes_tokens },
                broker::Admission::Denied => Admission::Denied,
            }
        })
    }
}
