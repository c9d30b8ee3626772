//! The HTTP server of running commands.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use millstream_base::TcpNetwork;
use millstream_broker::security::check_exposure;
use millstream_flow::Running;
use millstream_serve::{Content, Metric, Options, Server};
use serde_json::{Value, json};

use crate::console::Progress;
use crate::settings::{Settings, SettingsError};

/// Listens at the address of the settings. Without one, listens at the default, or at a free port if the default is
/// taken; without a default, does not serve HTTP. Users do not log in, so only this machine may reach the address.
pub fn serve(
    settings: &Settings,
    default: Option<SocketAddr>,
    content: Arc<dyn Content>,
    progress: &Progress,
) -> anyhow::Result<Option<Server>> {
    let asked = settings.http;
    let Some(address) = asked.or(default) else {
        return Ok(None);
    };
    check_exposure(address, false, false, false)
        .map_err(|_| SettingsError::HttpExposed { address })?;
    let start = |address| {
        let options = Options {
            hosts: settings.http_hosts(),
            watches: settings.http_watches(),
            ..Options::default()
        };
        Server::start(TcpNetwork, address, Arc::clone(&content), options)
    };
    let mut started = start(address);
    if asked.is_none()
        && let Err(error) = &started
        && error.kind() == ErrorKind::AddrInUse
    {
        progress.note(&format!("{address} is in use; taking a free port"));
        started = start(SocketAddr::new(address.ip(), 0));
    }
    let server = started.map_err(|error| cannot_listen(address, error))?;
    let message = format!("watch it at {}", url(server.local_address(), false));
    match asked == Some(server.local_address()) {
        true => progress.note(&message),
        // The user cannot know the chosen port.
        false => progress.insist(&message),
    }
    Ok(Some(server))
}

/// Serves a flow on its gathering rank, if the user asked for that.
pub fn serve_flow(
    settings: &Settings,
    running: &Arc<Running>,
    is_gathering: bool,
    is_json: bool,
) -> anyhow::Result<Option<Server>> {
    if !is_gathering {
        return Ok(None);
    }
    let content = Arc::new(FlowContent {
        running: Arc::clone(running),
        started_at: Instant::now(),
    });
    serve(settings, None, content, &Progress::new(is_json))
}

/// A flow with no metrics beyond those of every flow.
struct FlowContent {
    running: Arc<Running>,
    started_at: Instant,
}

impl Content for FlowContent {
    fn flows(&self) -> Vec<Arc<Running>> {
        vec![Arc::clone(&self.running)]
    }

    fn overview(&self) -> Value {
        json!({
            "name": "flow run",
            "flow": self.running.name(),
            "uptime_s": self.started_at.elapsed().as_secs_f64(),
        })
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}

pub fn cannot_listen(address: SocketAddr, error: io::Error) -> anyhow::Error {
    let failed: anyhow::Result<()> = Err(error)
        .with_context(|| format!("cannot listen on {address}; choose another with --http"));
    failed.expect_err("it is one")
}

/// The page's address.
pub fn url(address: SocketAddr, has_tls: bool) -> String {
    let scheme = if has_tls { "https" } else { "http" };
    format!("{scheme}://{address}/")
}
