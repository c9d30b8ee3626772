//! Keys and times of records that programs write and read.

use millstream_base::ProducerId;
use millstream_connect::StreamProducer;
use millstream_log::{Log, LogConfig};

use millstream::{Error, Flow, Node, Timestamp, out_of_order, secs, tumbling};

#[test]
fn an_empty_key_is_written_to_a_compacted_topic() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let words = node.topic("words").text().create()?;
    words.send(["tea", "", "tea"])?;
    Flow::new("words")
        .read(words.until_now())
        .event_time(|_| Timestamp(1), out_of_order(secs(1)))
        .key_by(|word| word.clone())
        .window(tumbling(secs(10)))
        .count()
        .serve_as("counts")
        .write(
            node.topic("counts")
                .setting("cleanup.policy", "compact")
                .json(),
        )
        .run()
}

#[test]
fn the_time_function_is_not_called_for_items_that_a_filter_drops() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let times = node.topic("times").json::<Option<i64>>().create()?;
    times.send([Some(1), None, Some(2)])?;
    Flow::new("timed")
        .read(times.until_now())
        .filter(Option::is_some)
        .event_time(
            |time| Timestamp(time.expect("it passed the filter")),
            out_of_order(secs(1)),
        )
        .write(node.topic("copy").json())
        .run()?;
    let letters = node.topic("timed.dead_letters").bytes().read_all();
    let letters = letters.map_or(0, |letters| letters.len());
    assert_eq!(letters, 0, "the filtered item became a dead letter");
    Ok(())
}

#[test]
fn records_without_a_value_become_neither_items_nor_dead_letters() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let log = Log::open(LogConfig::new(dir.path())).expect("the directory is new");
    let node = Node::of_log(&log);
    let words = node
        .topic("words")
        .setting("cleanup.policy", "compact")
        .text()
        .create()?;
    let stream = log.stream("words").expect("it was just made");
    let mut producer =
        StreamProducer::new(&stream, ProducerId::NONE).expect("the stream takes records");
    for value in [Some(&b"tea"[..]), None, Some(b"milk")] {
        let pushed = producer.push(Timestamp(1), Some(b"key"), value, &[]);
        pushed.expect("the log has room");
    }
    producer.flush().expect("the log has room");
    let copied = node.topic("copy").text();
    Flow::new("copied")
        .read(words.until_now())
        .write(copied.clone())
        .run()?;
    assert_eq!(copied.read_all()?, ["tea", "milk"]);
    let letters = node.topic("copied.dead_letters").bytes().read_all();
    assert!(letters.is_err(), "{letters:?}");
    Ok(())
}
