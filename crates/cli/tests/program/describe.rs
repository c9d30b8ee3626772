//! `millstream flow describe` shows the checkpoints and the state of the flows of a running program.

use std::net::TcpListener;

use tempfile::tempdir;

use crate::support::{Run, address_of, finish, run, spawn, wait_until};

#[test]
fn flows_of_a_running_program_show_their_checkpoints_and_their_state() {
    let dir = tempdir().unwrap();
    let args = ["quickstart", "--rate", "20000", "--http", "127.0.0.1:0"];
    let mut child = spawn(dir.path(), &args);
    let address = address_of(&mut child);
    let describe = |args: &[&str]| -> Run {
        let args = [&["flow", "describe"], args, &["--at", &address]].concat();
        run(dir.path(), &args).assert_done()
    };
    wait_until("a checkpoint of this run", || {
        let flows = &describe(&["--json"]).json()["flows"];
        flows[0]["checkpoints"]["kept"].as_u64() >= Some(2)
    });
    let flow = &describe(&["ads", "--json"]).json()["flows"][0];
    assert_eq!(flow["flow"], "ads");
    assert_eq!(flow["is_finished"], false);
    let checkpoints = &flow["checkpoints"];
    assert_eq!(checkpoints["failed"], 0);
    let interval = checkpoints["interval_seconds"].as_f64().unwrap();
    assert!((0.01..=10.0).contains(&interval), "{interval}");
    for figure in ["seconds", "pause_seconds", "age_seconds"] {
        assert!(
            checkpoints["last"][figure].as_f64() >= Some(0.0),
            "{figure}"
        );
    }
    let elements = flow["elements"].as_array().unwrap();
    let counts = elements.iter().find(|it| it["name"] == "campaign_counts");
    let counts = counts.unwrap();
    assert_eq!(counts["kind"], "windows");
    assert_eq!(counts["stored"], "changelog");
    assert!(counts["entries"].as_u64() >= Some(1));

    let text = describe(&[]).text();
    let lines: Vec<&str> = text.lines().collect();
    let starts = [
        "flow         ads",
        "state        running, ",
        "lag          ",
    ];
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{text}");
    }
    let checkpoint = lines
        .iter()
        .find(|line| line.starts_with("checkpoint "))
        .unwrap();
    assert!(checkpoint.contains(" ago: paused for "), "{text}");
    assert!(lines.contains(&"failures     none"), "{text}");
    let row = lines
        .iter()
        .find(|line| line.starts_with("campaign_counts "))
        .unwrap();
    assert!(
        row.contains(" windows ") && row.ends_with("changelog"),
        "{text}"
    );

    let url = format!("http://{address}/");
    let add = ["flow", "describe", "add", "--at", &url];
    run(dir.path(), &add).assert_fails(1, &["runs no flow add", "did you mean ads?"]);
    child.kill().unwrap();
    finish(child);
}

#[test]
fn describing_flows_where_none_answers_names_the_address() {
    let dir = tempdir().unwrap();
    // Free, as soon as it is dropped.
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let at = free.to_string();
    let args = ["flow", "describe", "--at", &at];
    run(dir.path(), &args).assert_fails(1, &["no program answers at", &at, "--http ADDRESS"]);
    let args = ["flow", "describe", "--at", "localhost"];
    run(dir.path(), &args).assert_fails(2, &["an IP address and a port"]);
}
