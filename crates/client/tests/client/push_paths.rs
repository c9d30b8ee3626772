//! Whether client and server share memory, and the paths used otherwise.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use millstream_base::Offset;
use millstream_client::{
    Acl, AclOperation, Client, ClientConfig, ClientError, Consumer, ConsumerConfig, DeliveryPath,
    Isolation, LocalConfig, LocalSource, PatternType, Permission, ResourceType, Start,
};
use millstream_log::SOCKET;

use crate::consuming::{place, values};
use crate::push::{next, pushed, remote};
use crate::push_ends::other_process;
use crate::support::{Node, TIME_MAX, limit_reading, produce};

/// Returns the path on which the only value of a stream arrives.
pub async fn path_of(client: &Client, config: ConsumerConfig) -> DeliveryPath {
    let places = [(place("t", 0), Start::Earliest)];
    let consumer = Consumer::assigned(client, config, &places).await;
    let fetched = next(&mut consumer.unwrap()).await.unwrap();
    assert_eq!(values(&fetched), ["value"]);
    fetched.path()
}

async fn with_value(node: Node) -> Node {
    node.create("t", 1);
    produce(&node.client(), "t", ["value".to_owned()]).await;
    node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_the_same_machine_share_memory_and_others_receive_records() {
    let node = with_value(Node::local()).await;
    assert_eq!(
        path_of(&node.client(), pushed()).await,
        DeliveryPath::Shared
    );
    let without_socket = with_value(Node::start()).await;
    let client = without_socket.client();
    assert_eq!(path_of(&client, pushed()).await, DeliveryPath::Pushed);
    let pulls = ConsumerConfig::default();
    assert_eq!(path_of(&node.client(), pulls).await, DeliveryPath::Pulled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_fetches_from_servers_that_do_not_push() {
    let node = with_value(Node::local()).await;
    let mut config = ClientConfig::new(node.address().to_string());
    config.native = false;
    let kafka = Client::new(config);
    assert_eq!(path_of(&kafka, pushed()).await, DeliveryPath::Pulled);
    let uncommitted = ConsumerConfig {
        isolation: Isolation::Uncommitted,
        ..pushed()
    };
    let path = path_of(&node.client(), uncommitted).await;
    assert_eq!(path, DeliveryPath::Pulled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_a_quota_for_reading_shares_no_memory() {
    let node = with_value(Node::local()).await;
    let client = remote(&node).await;
    assert_eq!(path_of(&client, pushed()).await, DeliveryPath::Pushed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_gets_a_quota_goes_on_without_sharing_memory() {
    let node = with_value(Node::local()).await;
    let client = node.client();
    let places = [(place("t", 0), Start::Earliest)];
    let consumer = Consumer::assigned(&client, pushed(), &places).await;
    let mut consumer = consumer.unwrap();
    let fetched = next(&mut consumer).await.unwrap();
    assert_eq!(fetched.path(), DeliveryPath::Shared);
    drop(fetched);
    limit_reading(&client, &client.config().client_id).await;
    produce(&client, "t", ["more".to_owned()]).await;
    let fetched = next(&mut consumer).await.unwrap();
    assert_eq!(fetched.path(), DeliveryPath::Pushed);
    assert_eq!(values(&fetched), ["more"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_may_not_read_every_stream_shares_no_memory() {
    let node = with_value(Node::local()).await;
    let client = node.client();
    let secret = Acl {
        resource: ResourceType::Stream,
        name: "secret".to_owned(),
        pattern: PatternType::Literal,
        principal: "User:ANONYMOUS".to_owned(),
        host: "*".to_owned(),
        operation: AclOperation::Read,
        permission: Permission::Deny,
    };
    client.create_acl(&secret).await.unwrap();
    assert_eq!(path_of(&client, pushed()).await, DeliveryPath::Pushed);
    let source = LocalSource::Partitions(vec![(place("t", 0), Start::At(Offset(0)))]);
    let refused = client
        .subscribe_local(&LocalConfig::default(), &[source])
        .await;
    assert!(
        matches!(&refused, Err(ClientError::NotShared { why, .. }) if why.contains("every stream")),
        "{refused:?}"
    );
}

/// Listens at the path of a server's socket, as another user; fails if a client sends it any byte.
#[test]
#[ignore = "the other process of the test below"]
fn stranger_process() {
    let listener = UnixListener::bind(SOCKET).unwrap();
    println!("listening");
    std::io::stdout().flush().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
}

/// On another machine another user may listen at the path that a server announces: the client sent it the password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_sends_nothing_to_another_users_socket() {
    let node = with_value(Node::local()).await;
    let folder = node.log().dir();
    std::fs::remove_file(folder.join(SOCKET)).unwrap();
    for open in [folder, folder.parent().unwrap()] {
        std::fs::set_permissions(open, Permissions::from_mode(0o777)).unwrap();
    }
    let mut command = other_process("push_paths::stranger_process");
    command
        .current_dir(folder)
        .uid(65_534)
        .stdout(Stdio::piped());
    let Ok(mut child) = millstream_testing::start(&mut command, TIME_MAX) else {
        eprintln!("skipped: no process of another user can be started here");
        return;
    };
    // Keeps the pipe open, so that the other process can write.
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let listens = |line: String| line.contains("listening");
    if !lines.by_ref().map_while(Result::ok).any(listens) {
        child.wait().unwrap();
        eprintln!("skipped: another user cannot run this test");
        return;
    }
    assert_eq!(
        path_of(&node.client(), pushed()).await,
        DeliveryPath::Pushed
    );
    assert!(child.wait().unwrap().success());
}
