//! The process of the server.

use std::path::PathBuf;
use std::sync::Arc;
use std::{env, fs, thread};

use millstream_base::{ByteSize, SystemRandom, TcpNetwork};
use millstream_broker::{BrokerConfig, Server};
use millstream_log::{Log, LogConfig};

use crate::processes::{ADDRESS, DIR, READY};

/// Serves until it is killed, and says where: no test of its own.
#[test]
#[ignore = "started by each_event_counts_once_although_flow_and_server_are_killed"]
fn server_that_the_test_kills() {
    let (Ok(address), Ok(dir)) = (env::var(ADDRESS), env::var(DIR)) else {
        return;
    };
    let dir = PathBuf::from(dir);
    let log = Log::open(LogConfig::with_pool(dir.join("log"), ByteSize(64 << 20))).unwrap();
    let config = BrokerConfig::new(address.parse().unwrap());
    let clock = Arc::clone(log.clock());
    let random = Arc::new(SystemRandom);
    let server = Server::start(&TcpNetwork, config, log, clock, random).unwrap();
    let unfinished = dir.join("address.new");
    fs::write(&unfinished, server.local_address().to_string()).unwrap();
    fs::rename(unfinished, dir.join(READY)).unwrap();
    loop {
        thread::park();
    }
}
