//! Topics of each codec, and of one of the application's own, in the process and over a server.

mod letters;
mod servers;

use std::thread;
use std::time::{Duration, Instant};

use millstream::log::Log;
use millstream::{Codec, Encode, Error, Flow, Node, Topic};
use millstream_base::Offset;
use millstream_flow::BoxError;

/// Numbers as decimal text in brackets.
#[derive(Debug, Clone)]
struct Brackets;

impl Codec for Brackets {
    type Item = u64;

    fn decode(&self, value: &[u8]) -> Result<u64, BoxError> {
        let text = std::str::from_utf8(value)?;
        let number = text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'));
        Ok(number.ok_or("it has no brackets")?.parse()?)
    }
}

impl Encode<u64> for Brackets {
    fn encode(&self, item: &u64, value: &mut Vec<u8>) -> Result<(), BoxError> {
        value.extend_from_slice(format!("[{item}]").as_bytes());
        Ok(())
    }
}

type Pair = (u64, String);

/// Waits until a topic has the values, each of which a flow has written.
fn expect<C>(topic: &Topic<C>, expected: &[C::Item]) -> Result<(), Error>
where
    C: Codec<Item: PartialEq>,
{
    // A server makes results visible soon after the commit.
    let until = Instant::now() + Duration::from_secs(60);
    while topic.read_all()?.len() < expected.len() && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(topic.read_all()?, expected);
    Ok(())
}

fn check(node: &Node, log: &Log) -> Result<(), Error> {
    let pairs = [0, 1, 2].map(|number| (number << 40, format!("n{number}")));
    let topic = node.topic("pairs").postcard::<Pair>().create()?;
    topic.send(pairs.clone())?;
    expect(&topic, &pairs)?;
    // A pair with two bytes behind it, and half a pair.
    let unreadable = [&[7, 1, b'x', b'y', b'z'][..], &[7]];
    node.topic("pairs").bytes().send(unreadable)?;

    let flow = Flow::new("numbered");
    let [numbers, copies] = flow.read(topic.until_now()).map(|pair| pair.clone()).fork();
    numbers
        .map(|(number, _)| *number)
        .write(node.topic("numbers").codec(Brackets));
    copies.write(node.topic("copies").json());
    flow.run()?;
    expect(&node.topic("copies").json::<Pair>(), &pairs)?;
    let numbers = pairs.map(|(number, _)| number);
    expect(&node.topic("numbers").codec(Brackets), &numbers)?;
    let texts = numbers.map(|number| format!("[{number}]"));
    expect(&node.topic("numbers").text(), &texts)?;
    expect(
        &node.topic("numbers").bytes(),
        &texts.map(String::into_bytes),
    )?;

    let errors: Vec<_> = letters::read(log, "numbered.dead_letters")
        .into_iter()
        .map(|letter| (letter.place, letter.error))
        .collect();
    let place = |offset| Some(("pairs".to_owned(), 0, Offset(offset)));
    let expected = [
        (place(3), "2 bytes follow the value"),
        (place(4), "Hit the end of buffer, expected more data"),
    ];
    assert_eq!(
        errors,
        expected.map(|(place, error)| (place, error.to_owned()))
    );
    Ok(())
}

#[test]
fn values_round_trip_through_every_codec_in_the_process() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let (log, _server) = servers::start(dir.path(), |_, _| {});
    check(&Node::of_log(&log), &log)
}

#[test]
fn values_round_trip_through_every_codec_over_a_server() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let (log, server) = servers::start(dir.path(), |_, _| {});
    check(&Node::connect(&server.local_address().to_string())?, &log)
}
