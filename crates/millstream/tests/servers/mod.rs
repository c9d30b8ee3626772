//! Servers for tests.

use std::path::Path;
use std::sync::Arc;

use millstream::log::{Log, LogConfig};
use millstream_base::{ByteSize, SystemRandom, TcpNetwork};
use millstream_broker::{BrokerConfig, Server};

/// Starts a server over a new log, which `prepare` may give other settings.
pub fn start(dir: &Path, prepare: impl FnOnce(&Log, &mut BrokerConfig)) -> (Log, Server) {
    let config = LogConfig::with_pool(dir, ByteSize(64 << 20));
    let log = Log::open(config).expect("the directory is new");
    let address = "127.0.0.1:0".parse().expect("it is an address");
    let (clock, random) = (Arc::clone(log.clock()), Arc::new(SystemRandom));
    let mut config = BrokerConfig::new(address);
    prepare(&log, &mut config);
    let server = Server::start(&TcpNetwork, config, log.clone(), clock, random);
    (log, server.expect("a port is free"))
}
