//! Jobs that serve Kafka's clients beside their flows: logins on both protocols, and listeners that are refused.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use millstream::broker::security::Principal;
use millstream::broker::{BrokerConfig, set_password};
use millstream::client::{ClientConfig, Hash, Login, Mechanism};
use millstream::log::{Log, LogConfig};
use millstream::{Error, Flow, Job, Node, Request, Response};
use millstream_base::{ByteSize, SystemRandom};

/// The longest time of any step.
const LIMIT: Duration = Duration::from_secs(60);

/// The user `admin` with its password, in HTTP's scheme Basic.
const ADMIN: &str = "authorization: Basic YWRtaW46YSBzZWNyZXQ=\r\n";
const WRONG: &str = "authorization: Basic YWRtaW46d3Jvbmc=\r\n";

fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Returns the status of a GET with these headers.
fn status(address: SocketAddr, path: &str, headers: &str) -> String {
    let mut visitor = TcpStream::connect(address).unwrap();
    visitor.set_read_timeout(Some(LIMIT)).unwrap();
    write!(
        visitor,
        "GET {path} HTTP/1.1\r\nhost: {address}\r\n{headers}connection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    visitor.read_to_string(&mut answer).unwrap();
    answer[9..12].to_owned()
}

/// A flow that copies lines in capitals, and one that answers requests.
fn flows(node: &Node) -> Result<[Flow; 2], Error> {
    let lines = node.topic("lines").text().create()?;
    let upper = Flow::new("upper")
        .checkpoint_interval(Duration::from_millis(5))
        .read(lines)
        .map(|line| line.to_uppercase())
        .write(node.topic("upper").text());
    let echo = Flow::new("echo")
        .requests()
        .map(|call| call.reply(Response::text(call.path())))
        .respond();
    Ok([upper, echo])
}

/// Sends a line, and waits until the flow has copied it behind the others.
fn send(server: &Node, line: &str, expected: &[&str]) -> Result<(), Error> {
    server.topic("lines").text().send([line])?;
    let upper = server.topic("upper").text();
    let until = Instant::now() + LIMIT;
    while upper.read_all()?.len() < expected.len() {
        assert!(Instant::now() < until, "{line} is not copied");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(upper.read_all()?, expected);
    Ok(())
}

#[test]
fn clients_write_the_topics_that_flows_of_the_process_read_and_read_their_results()
-> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let sent = ["one", "two", "three"];
    let copied = ["ONE", "TWO", "THREE"];
    for turn in 0..sent.len() {
        let node = Node::embedded(dir.path())?;
        let job = Job::from(flows(&node)?).listen(&node, BrokerConfig::new(local()));
        let job = job.start()?;
        let addresses = job.listen_addresses().to_vec();
        let [address] = addresses[..] else {
            panic!("one listener: {addresses:?}");
        };
        let server = Node::connect(&address.to_string())?;
        send(&server, sent[turn], &copied[..=turn])?;
        job.stop();
        job.join()?;
        // The broker outlives the flows.
        assert_eq!(server.topic("upper").text().read_all()?, copied[..=turn]);
        drop(job);
        Node::connect(&address.to_string()).map(drop).unwrap_err();
    }
    Ok(())
}

#[test]
fn http_of_a_job_with_listeners_has_their_users_and_rights() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let config = LogConfig::with_pool(dir.path(), ByteSize(64 << 20));
    let log = Log::open(config).expect("the directory is new");
    let (clock, random) = (Arc::clone(log.clock()), Arc::new(SystemRandom));
    set_password(&log, clock, random, "admin", "a secret").expect("it is a password");
    let node = Node::of_log(&log);
    let mut listeners = BrokerConfig::new(local());
    listeners.security.authentication = true;
    let admin = Principal::user("admin").expect("it is a name");
    listeners.security.super_users = [admin].into();
    let job = Job::from(flows(&node)?).listen(&node, listeners);
    let job = job.http(local()).start()?;
    let address = job.listen_addresses()[0].to_string();

    let stranger = Node::connect(&address).and_then(|node| node.topic("lines").text().send(["x"]));
    assert!(stranger.is_err(), "clients have to log in");
    let mut client = ClientConfig::new(&*address);
    client.login = Some(Login {
        mechanism: Mechanism::Scram(Hash::Sha256),
        user: "admin".to_owned(),
        password: "a secret".to_owned(),
    });
    send(&Node::connect_with(client)?, "one", &["ONE"])?;

    let http = job.http_address().expect("it serves HTTP");
    let paths = [
        "/metrics",
        "/api/v1/streams",
        "/api/v1/flows",
        "/state",
        "/q/echo/x",
    ];
    for path in paths {
        assert_eq!(status(http, path, ""), "401", "{path}");
        assert_eq!(status(http, path, WRONG), "401", "{path}");
        assert_eq!(status(http, path, ADMIN), "200", "{path}");
    }
    assert_eq!(status(http, "/kv/lines/x", ""), "401");
    // The topic is not keyed.
    assert_eq!(status(http, "/kv/lines/x", ADMIN), "409");
    assert_eq!(status(http, "/healthz", ""), "200");
    // Callers in the process need no login.
    let requests = job.requests("echo").expect("it takes requests");
    let answer = requests.call(Request::get("/x")).wait().unwrap();
    assert_eq!(answer.body_text(), Some("/x"));
    job.stop();
    job.join()
}

#[test]
fn listeners_that_cannot_be_are_refused_before_a_flow_begins() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let refuse = |listen: SocketAddr, http: Option<SocketAddr>| {
        let [upper, _] = flows(&node).unwrap();
        let job = Job::from(upper).listen(&node, BrokerConfig::new(listen));
        let job = match http {
            Some(http) => job.http(http),
            None => job,
        };
        job.start().err().expect("it is refused").to_string()
    };
    let taken = TcpListener::bind(local())?;
    let error = refuse(taken.local_addr()?, None);
    assert!(error.contains("in use"), "{error}");
    let everywhere = SocketAddr::from(([0, 0, 0, 0], 0));
    for (listen, http) in [(everywhere, None), (local(), Some(everywhere))] {
        let error = refuse(listen, http);
        assert!(
            error.contains("0.0.0.0:0") && error.contains("authentication"),
            "{error}"
        );
    }
    let error = refuse(local(), Some(taken.local_addr()?));
    assert!(error.contains("in use"), "{error}");

    // Nothing holds the node any more, and no flow has read from it.
    let job = Job::from(flows(&node)?).listen(&node, BrokerConfig::new(local()));
    let job = job.start()?;
    let server = Node::connect(&job.listen_addresses()[0].to_string())?;
    send(&server, "one", &["ONE"])?;
    let other = Job::from(flows(&server)?).listen(&server, BrokerConfig::new(local()));
    let error = other.start().err().expect("it is refused").to_string();
    assert!(error.contains("the node is a server"), "{error}");
    Ok(())
}
