//! Records that a codec cannot read, in the process and over a server.

mod letters;
mod servers;

use std::thread;
use std::time::{Duration, Instant};

use millstream::log::{Log, LogConfig};
use millstream::{Error, Flow, Node};
use millstream_base::Offset;
use serde::{Deserialize, Serialize};

/// Copies numbers, one of which is none.
fn copy(node: &Node, log: &Log) -> Result<(), Error> {
    let numbers = || node.topic("numbers");
    numbers().text().create()?.send(["1", "x", "3"])?;
    Flow::new("copied")
        .dead_letters("unreadable")
        .read(numbers().json::<u64>().until_now())
        .write(node.topic("copy").json())
        .run()?;
    // A server makes results visible soon after the commit.
    let until = Instant::now() + Duration::from_secs(60);
    while letters::read(log, "unreadable").is_empty() || node.topic("copy").read_all()?.len() < 2 {
        assert!(Instant::now() < until, "a letter and two numbers come");
        thread::sleep(Duration::from_millis(20));
    }
    let found = letters::read(log, "unreadable");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].flow, "copied");
    assert_eq!(found[0].place, Some(("numbers".to_owned(), 0, Offset(1))));
    let original = found[0].original.as_ref().expect("it holds the record");
    assert_eq!(original.value.as_deref(), Some(b"x".as_slice()));
    assert!(log.stream("copied.dead_letters").is_err(), "it has another");
    Ok(())
}

#[test]
fn an_unreadable_record_goes_to_the_dead_letter_topic_of_the_flow() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let (log, _server) = servers::start(dir.path(), |_, _| {});
    copy(&Node::of_log(&log), &log)
}

#[test]
fn an_unreadable_record_goes_to_the_dead_letter_topic_over_a_server() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let (log, server) = servers::start(dir.path(), |_, _| {});
    copy(&Node::connect(&server.local_address().to_string())?, &log)
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Order {
    id: u64,
    user: String,
}

/// Operators know these texts; `Debug` prints types of the program and quotation marks.
#[test]
fn the_item_of_a_letter_is_the_value_of_the_record() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let log = Log::open(LogConfig::new(dir.path())).expect("the directory is new");
    let node = Node::of_log(&log);
    let orders = node.topic("orders").json::<Order>().create()?;
    let user = || "ada".to_owned();
    orders.send([1, 2].map(|id| Order { id, user: user() }))?;
    Flow::new("typed")
        .read(orders.until_now())
        .map(|order: &Order| {
            assert!(order.id != 2, "refused");
            order.id
        })
        .write(node.topic("ids").json())
        .run()?;
    let words = node.topic("words").text().create()?;
    words.send(["tea", "milk"])?;
    Flow::new("plain")
        .read(words.until_now())
        .map(|word: &String| {
            assert!(word != "milk", "refused");
            word.clone()
        })
        .write(node.topic("copy").text())
        .run()?;
    for (stream, item) in [
        ("typed.dead_letters", r#"{"id":2,"user":"ada"}"#),
        ("plain.dead_letters", "milk"),
    ] {
        let found = letters::read(&log, stream);
        let items: Vec<_> = found.iter().map(|letter| &letter.item[..]).collect();
        assert_eq!(items, [item], "{found:?}");
        assert!(found[0].error.contains("refused"), "{found:?}");
    }
    Ok(())
}

#[test]
fn naming_the_dead_letter_topic_after_read_is_an_error() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let numbers = node.topic("numbers").text().create()?;
    let flow = Flow::new("late");
    let copied = flow
        .read(numbers.until_now())
        .write(node.topic("copy").text());
    let error = copied.dead_letters("unreadable").run().unwrap_err();
    assert_eq!(
        error.to_string(),
        "topic unreadable: the flow reads a topic already: name its dead letters before `read`"
    );
    Ok(())
}
