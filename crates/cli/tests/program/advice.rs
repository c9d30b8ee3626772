//! Errors name the remedy, and its flags and numbers are correct.

use std::net::TcpListener;

use tempfile::tempdir;

use crate::support::{Server, run, run_with_input};

#[test]
fn a_busy_address_leaves_no_data_directory_behind() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let listen = ["start", "--listen", &address];
    run(&data, &listen).assert_fails(1, &["cannot listen on", &address]);
    assert!(!data.exists());
    let http = ["start", "--listen", "127.0.0.1:0", "--http", &address];
    run(&data, &http).assert_fails(1, &["cannot listen on", &address, "--http"]);
    assert!(!data.exists());
}

#[test]
fn messages_count_one_partition_in_the_singular() {
    let dir = tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    server.run(&["stream", "create", "s"]).assert_done();
    let consume = ["consume", "s", "--partition", "3"];
    server
        .run(&consume)
        .assert_fails(1, &["stream s has 1 partition, and none has the number 3"]);
    let reset = [
        "group",
        "reset",
        "g",
        "s",
        "--to",
        "earliest",
        "--partition",
        "3",
    ];
    server
        .run(&reset)
        .assert_fails(1, &["stream s has 1 partition, and no partition 3"]);
    server.stop();
}

#[test]
fn only_flags_of_the_command_are_suggested() {
    let dir = tempdir().unwrap();
    for (flag, near) in [("--limit", "--listen"), ("--worker", "--workers")] {
        let failed = run(dir.path(), &["produce", "s", flag, "3"]);
        failed.assert_fails(2, &[flag]);
        assert!(!failed.stderr.contains(near), "{}", failed.stderr);
    }
    run(dir.path(), &["produce", "s", "--key", ":"]).assert_fails(2, &["--key-separator"]);
    run(dir.path(), &["consume", "s", "--limi", "3"]).assert_fails(2, &["'--limit'"]);
}

#[test]
fn producing_to_no_stream_names_the_command_that_makes_one() {
    let dir = tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    server.run(&["stream", "create", "orders"]).assert_done();
    let create = |name: &str| format!("`millstream stream create {name}`");
    for (name, hint) in [("nosuch", "stream list"), ("order", "did you mean orders?")] {
        let produced = server.run_with_input(&["produce", name], b"x\n".to_vec());
        produced.assert_fails(1, &[name, hint, &create(name)]);
    }
    server.stop();
    for (name, hint) in [("nosuch", "stream list"), ("order", "did you mean orders?")] {
        let produced = run_with_input(dir.path(), &["produce", name], b"x\n".to_vec());
        produced.assert_fails(1, &[name, hint, &create(name)]);
    }
}

#[test]
fn an_unknown_object_is_reported_with_the_nearest_name() {
    let dir = tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let put = server.run_with_input(&["object", "put", "report"], b"x".to_vec());
    put.assert_done();
    for verb in ["get", "delete"] {
        let near = server.run(&["object", verb, "reprot"]);
        near.assert_fails(1, &["unknown object reprot", "did you mean report?"]);
        let far = server.run(&["object", verb, "nosuch"]);
        far.assert_fails(1, &["unknown object nosuch", "object list"]);
    }
    server.stop();
    for verb in ["get", "delete"] {
        let near = run(dir.path(), &["object", verb, "reprot"]);
        near.assert_fails(1, &["unknown object reprot", "did you mean report?"]);
    }
}

#[test]
fn settings_of_streams_have_the_names_of_their_flags_in_json() {
    let dir = tempdir().unwrap();
    let create = [
        "stream",
        "create",
        "s",
        "--retain-bytes",
        "1MiB",
        "--retain-for",
        "2s",
    ];
    run(dir.path(), &create).assert_done();
    for args in [
        &["stream", "list", "--json"][..],
        &["stream", "describe", "s", "--json"],
    ] {
        let found = run(dir.path(), args).assert_done().json();
        let stream = found["streams"].get(0).unwrap_or(&found);
        let config = stream["config"].as_object().unwrap();
        assert_eq!(config["retain_bytes"], 1 << 20);
        assert_eq!(config["retain_for_ms"], 2000);
        assert!(!config.contains_key("retention"), "{found}");
    }
}
