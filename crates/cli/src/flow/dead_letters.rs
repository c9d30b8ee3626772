//! `millstream flow dead-letters`: lists the items that flows could not process, and replays them.

mod letters;
mod list;
mod replay;

use anyhow::bail;
use millstream_base::nearest;
use millstream_connect::DEAD_LETTERS_SUFFIX;

use self::letters::Letter;
use crate::args::DeadLettersCommand;
use crate::door::with_server;
use crate::remote::Remote;
use crate::settings::Settings;
use crate::stop::Stop;

pub fn run(
    command: &DeadLettersCommand,
    settings: &Settings,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<()> {
    with_server(settings, |remote| carry_out(command, remote, is_json, stop))
}

fn carry_out(
    command: &DeadLettersCommand,
    remote: &Remote,
    is_json: bool,
    stop: &Stop,
) -> anyhow::Result<()> {
    match command {
        DeadLettersCommand::List(args) => list::run(args, remote, is_json, stop),
        DeadLettersCommand::Replay(args) => replay::run(args, remote, is_json, stop),
    }
}

/// Returns the name of a flow from that name or from the name of its dead-letter stream.
fn flow_of(name: &str) -> &str {
    name.strip_suffix(DEAD_LETTERS_SUFFIX).unwrap_or(name)
}

/// A stream of dead letters.
struct LetterStream {
    name: String,
    /// The flow whose own stream it is; `None` for a stream that flows name, where each letter names its flow.
    flow: Option<String>,
}

impl LetterStream {
    /// Returns the flow's own stream.
    fn of_flow(flow: &str) -> LetterStream {
        LetterStream {
            name: format!("{flow}{DEAD_LETTERS_SUFFIX}"),
            flow: Some(flow.to_owned()),
        }
    }

    /// Returns a stream that flows name, which must exist.
    fn named(remote: &Remote, name: &str) -> anyhow::Result<LetterStream> {
        remote.wait(remote.client().topic(name))?;
        Ok(LetterStream {
            name: name.to_owned(),
            flow: None,
        })
    }

    /// Returns the stream that the flow names, or else its own; it must exist.
    fn find(remote: &Remote, flow: &str, named: Option<&str>) -> anyhow::Result<LetterStream> {
        match named {
            Some(name) => LetterStream::named(remote, name),
            None => check_flow(remote, flow).map(|()| LetterStream::of_flow(flow)),
        }
    }

    /// Returns the flow of a letter.
    fn flow_of<'a>(&'a self, letter: &'a Letter) -> &'a str {
        self.flow.as_deref().unwrap_or(&letter.letter.flow)
    }
}

/// The group that holds the replay position of a flow's dead letters.
fn group_of(flow: &str) -> String {
    format!("{flow}{DEAD_LETTERS_SUFFIX}.replay")
}

/// The flows that have dead letters.
fn flows(remote: &Remote) -> anyhow::Result<Vec<String>> {
    let streams = remote.wait(remote.client().streams(""))?;
    let flows = streams.iter().filter_map(|stream| {
        let flow = stream.name.strip_suffix(DEAD_LETTERS_SUFFIX)?;
        Some(flow.to_owned())
    });
    Ok(flows.collect())
}

/// Fails if a flow has no dead letters; the error names the flows that have some.
fn check_flow(remote: &Remote, flow: &str) -> anyhow::Result<()> {
    let flows = flows(remote)?;
    if flows.iter().any(|known| known == flow) {
        return Ok(());
    }
    let LetterStream { name: stream, .. } = LetterStream::of_flow(flow);
    let elsewhere =
        "if the flow names another stream for them (`Flow::dead_letters`), add `--stream NAME`";
    match nearest(flow, flows.iter().map(String::as_str)) {
        Some(nearest) => bail!(
            "flow {flow} has no dead letters: there is no stream {stream}; did you mean {nearest}? {elsewhere}"
        ),
        None if flows.is_empty() => bail!(
            "flow {flow} has no dead letters: there is no stream {stream}, and no other flow has dead letters; {elsewhere}"
        ),
        None => bail!(
            "flow {flow} has no dead letters: there is no stream {stream}; `millstream flow dead-letters list` shows those \
             of other flows; {elsewhere}"
        ),
    }
}
