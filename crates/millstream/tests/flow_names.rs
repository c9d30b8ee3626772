//! Names of flows that cannot be names of streams are refused before anything is made.

mod servers;

use millstream::log::Log;
use millstream::{Error, Flow, Node};

fn refuses_bad_names(node: &Node, log: &Log) -> Result<(), Error> {
    node.topic("numbers").text().create()?.send(["1", "x"])?;
    let long = "n".repeat(300);
    for name in ["a/b", "a:b", "", "..", "größe", "a b", &long] {
        let numbers = node.topic("numbers").json::<u64>().until_now();
        let [copied, counted] = Flow::new(name).read(numbers).fork();
        copied.write(node.topic("copy").json());
        let error = counted
            .key_by(|number| *number)
            .state("counts")
            .count()
            .run()
            .expect_err("it is no name")
            .to_string();
        let shown: String = name.chars().take(150).collect();
        let told = format!("a flow cannot be called {shown:?}");
        assert!(error.starts_with(&told), "{error}");
        assert!(error.contains("digits, '.', '_' and '-'"), "{error}");
    }
    assert_eq!(log.stream_names(), ["numbers"]);
    Ok(())
}

#[test]
fn a_bad_flow_name_is_refused_before_a_topic_is_created() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let (log, _server) = servers::start(dir.path(), |_, _| {});
    refuses_bad_names(&Node::of_log(&log), &log)
}

#[test]
fn a_bad_flow_name_is_refused_over_a_server() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let (log, server) = servers::start(dir.path(), |_, _| {});
    refuses_bad_names(&Node::connect(&server.local_address().to_string())?, &log)
}
