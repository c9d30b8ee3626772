//! The rights of visitors to state.

use std::future::{Future, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use millstream_base::{Credentials, TcpNetwork};
use millstream_serve::{Admission, Gate, Options, Server, Visited, Visitor};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::support::{Sample, get};

/// Admits visitors to one element, and to nothing else.
struct OneElement;

impl Gate for OneElement {
    fn tls(&self) -> Option<Arc<ServerConfig>> {
        None
    }

    fn visitor(&self, _: SocketAddr, _: Option<&CertificateDer<'_>>) -> Arc<dyn Visitor> {
        Arc::new(OneElement)
    }
}

impl Visitor for OneElement {
    fn admit(
        self: Arc<Self>,
        visited: Visited,
        _: Option<Credentials>,
    ) -> Pin<Box<dyn Future<Output = Admission> + Send>> {
        let allowed = Visited::State {
            flow: "ads".to_owned(),
            element: "campaign_counts".to_owned(),
        };
        Box::pin(ready(match visited == allowed {
            true => Admission::Allowed,
            false => Admission::Denied,
        }))
    }
}

#[test]
fn each_element_of_state_is_a_right_of_its_own() {
    let options = Options {
        gate: Some(Arc::new(OneElement)),
        hosts: Vec::new(),
        ..Options::default()
    };
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::start(TcpNetwork, address, Sample::new(), options).unwrap();
    for path in [
        "/state/ads/campaign_counts",
        "/state/ads/campaign_counts?limit=3",
        "/state/ads/campaign_counts/campaign-00001",
        "/state/%61ds/campaign%5Fcounts/campaign-00001",
    ] {
        assert_eq!(get(&server, path).status, 200, "{path}");
    }
    let large = "Read on the stream \"ads.state.large\"";
    for (path, right) in [
        ("/state/ads/large", large),
        ("/state/ads/large/campaign-00001", large),
        ("/state/ads/large?watch", large),
        // It would give the values of the other element away.
        ("/state/ads/campaign_counts?by=large&keys=a", large),
        ("/state/ads/campaign_counts?keys=a&by=l%61rge", large),
        ("/state/ads/none", "Read on the stream \"ads.state.none\""),
        ("/state/ads", "Describe on the cluster"),
        ("/state", "Describe on the cluster"),
        ("/api/v1/flows", "Describe on the cluster"),
    ] {
        get(&server, path).check_error(403, right);
    }
}
