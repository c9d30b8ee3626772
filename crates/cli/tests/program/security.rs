//! The clients that `millstream start` admits.

use std::collections::HashSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::Child;

use millstream_client::{Client, ClientConfig, Hash, Login, Mechanism};
use rustix::process::Signal;
use serde_json::json;
use tempfile::tempdir;

use crate::support::{Server, finish, program, run, run_with_input, send_signal, spawn};
use crate::tokens::{CLAIMS, TokenSigner};

#[test]
fn a_listener_for_other_machines_needs_authentication_or_insecure() {
    let data = tempdir().unwrap();
    let everywhere = ["start", "--listen", "0.0.0.0:0"];
    run(data.path(), &everywhere).assert_fails(2, &["0.0.0.0:0", "--insecure"]);
    for more in ["--insecure", "--authentication"] {
        let mut child = spawn(data.path(), &[&everywhere[..], &["--json", more]].concat());
        let mut byte = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
        send_signal(&child, rustix::process::Signal::TERM);
        finish(child).assert_done();
    }
}

#[test]
fn the_first_user_is_created_without_a_running_server() {
    let data = tempdir().unwrap();
    let init = ["user", "init", "admin"];
    run(data.path(), &init).assert_fails(1, &["no password", "stdin"]);
    let made = run_with_input(data.path(), &init, b"a secret\n".to_vec());
    made.assert_done();
    let server = Server::start(data.path(), &["--authentication"]);
    let refused = run_with_input(data.path(), &init, b"another\n".to_vec());
    refused.assert_fails(1, &["in use"]);
    let ended = server.stop();
    assert!(!ended.stderr.contains("secret"), "{}", ended.stderr);
}

#[test]
fn a_password_that_is_too_long_is_refused_and_not_cut() {
    let dir = tempdir().unwrap();
    let init = |password: &str| {
        let input = format!("{password}\r\n").into_bytes();
        run_with_input(&dir.path().join("data"), &["user", "init", "admin"], input)
    };
    let [longest, longer] = [4096, 4097].map(|bytes| "p".repeat(bytes));
    init(&longest).assert_done();
    init(&longer).assert_fails(1, &["stdin", "longer than 4096 bytes"]);
    let file = dir.path().join("password");
    let list = |password: &str| {
        fs::write(&file, password).unwrap();
        let login = ["--user", "admin", "--password-file", file.to_str().unwrap()];
        let server = ["stream", "list", "--server", "127.0.0.1:1"];
        finish(program().args(server).args(login).spawn().unwrap())
    };
    list(&longest).assert_fails(1, &["cannot reach"]);
    list(&longer).assert_fails(1, &["longer than 4096 bytes"]);
    list("\n").assert_fails(1, &["no password"]);
}

/// Returns how many TCP ports a program listens on.
fn ports(child: &Child) -> usize {
    let process = format!("/proc/{}", child.id());
    let files = fs::read_dir(format!("{process}/fd")).unwrap();
    let targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    let targets: HashSet<String> = targets.map(|it| it.display().to_string()).collect();
    let tables = ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("{process}/net/{table}")));
    let lines = tables.iter().flatten().flat_map(|table| table.lines());
    let is_port = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // The kernel's number of the state LISTEN.
        fields[3] == "0A" && targets.contains(&format!("socket:[{}]", fields[9]))
    };
    lines.filter(is_port).count()
}

/// Every user of the machine reaches a port, and the command asks for no login.
#[test]
fn a_command_on_a_data_directory_serves_it_on_no_port() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    run(&data, &["stream", "create", "t", "--keyed"]).assert_done();
    run(&data, &["kv", "put", "t", "a", "x"]).assert_done();
    let mut child = spawn(&data, &["kv", "watch", "t", "--snapshot"]);
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "a\tx\n");
    assert_eq!(ports(&child), 0);
    child.stdout = Some(stdout.into_inner());
    send_signal(&child, Signal::INT);
    finish(child).assert_done();
    let server = Server::start(&data, &[]).into_child();
    assert_eq!(ports(&server), 1);
    send_signal(&server, Signal::TERM);
    finish(server).assert_done();
}

#[test]
fn a_command_on_a_data_directory_with_logins_names_the_remedy() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    run(&data, &["stream", "create", "t", "--keyed"]).assert_done();
    let file = dir.path().join("millstream.toml");
    fs::write(&file, "listen = \"SASL_PLAINTEXT://127.0.0.1:0\"\n").unwrap();
    let scan = ["kv", "scan", "t", "--config", file.to_str().unwrap()];
    run(&data, &scan).assert_fails(1, &["requires logins", "millstream start", "--server"]);
}

#[test]
fn users_and_rules_are_set_by_commands_that_log_in() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    let password_file = |user: &str, password: &str| {
        let path = dir.path().join(user);
        fs::write(&path, format!("{password}\n")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let init = run_with_input(&data, &["user", "init", "admin"], b"a secret\n".to_vec());
    init.assert_done();
    let server = Server::start(&data, &["--authentication", "--super-users", "admin"]);
    let files = [
        password_file("admin", "a secret"),
        password_file("bob", "another"),
    ];
    let command = |user: &str, args: &[&str], input: &[u8]| {
        let file = if user == "admin" {
            &files[0]
        } else {
            &files[1]
        };
        let login = ["--user", user, "--password-file", file];
        server.run_with_input(&[args, &login].concat(), input.to_vec())
    };
    let admin = |args: &[&str]| command("admin", args, b"");
    command("bob", &["stream", "list"], b"").assert_fails(1, &["bob"]);
    admin(&["stream", "create", "orders"]).assert_done();
    command("admin", &["user", "set", "bob"], b"another\n").assert_done();
    let users = admin(&["user", "list", "--json"]).assert_done().json();
    let both = json!(["SCRAM-SHA-256", "SCRAM-SHA-512"]);
    assert_eq!(
        users["users"][1],
        json!({ "user": "bob", "mechanisms": both })
    );
    // The iterations do not show which command has set a password.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let users = runtime.block_on(async {
        let mut config = ClientConfig::new(server.address());
        config.login = Some(Login {
            mechanism: Mechanism::Scram(Hash::Sha256),
            user: "admin".to_owned(),
            password: "a secret".to_owned(),
        });
        Client::new(config).users().await.unwrap()
    });
    let [by_init, by_set] = [&users[0], &users[1]].map(|user| &user.credentials);
    assert_eq!((by_init.len(), by_init), (2, by_set));

    let produce = ["produce", "orders"];
    let refused = command("bob", &produce, b"one\n");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let add = [
        "acl",
        "add",
        "allow",
        "--principal",
        "User:bob",
        "--resource",
        "stream",
    ];
    let add = [&add[..], &["--name", "ord", "--prefixed", "--operation"]].concat();
    for operation in ["read", "describe"] {
        admin(&[&add[..], &[operation]].concat()).assert_done();
    }
    command("bob", &produce, b"one\n").assert_fails(1, &["write to any stream", "acl add"]);
    admin(&[&add[..], &["write"]].concat()).assert_done();
    command(
        "bob",
        &[&produce[..], &["--mechanism", "SCRAM-SHA-256"]].concat(),
        b"one\n",
    )
    .assert_done();
    assert_eq!(
        command("bob", &["consume", "orders"], b"")
            .assert_done()
            .text(),
        "one\n"
    );
    let rules = admin(&["acl", "list", "--principal", "User:bob", "--json"])
        .assert_done()
        .json();
    assert_eq!(rules["acls"].as_array().unwrap().len(), 3);
    assert_eq!(rules["acls"][0]["pattern"], "prefixed");
    let removed = admin(&["acl", "remove", "--operation", "read", "--json"])
        .assert_done()
        .json();
    assert_eq!(removed["removed"], 1);
    let refused = command("bob", &["consume", "orders"], b"");
    refused.assert_fails(1, &["orders", "no access rule", "acl add"]);

    admin(&["user", "delete", "bob"]).assert_done();
    admin(&["user", "delete", "bob"]).assert_fails(1, &["no user bob"]);
    command("bob", &["stream", "list"], b"").assert_fails(1, &["bob"]);
    server
        .run(&["stream", "list"])
        .assert_fails(1, &["log in first", "--user"]);
    server.stop();
}

#[test]
fn a_certificate_needs_its_key() {
    let data = tempdir().unwrap();
    let missing = ["start", "--tls-certificate", "none.pem"];
    run(data.path(), &missing).assert_fails(2, &["tls_certificate", "tls_key"]);
    let unread = [&missing[..], &["--tls-key", "none.key"]].concat();
    run(data.path(), &unread).assert_fails(1, &["none.pem", "No such file"]);
}

#[test]
fn commands_log_in_with_a_token() {
    let dir = tempdir().unwrap();
    let signer = TokenSigner::new("k");
    let keys = dir.path().join("keys.json");
    signer.write_keys(&keys);
    let token_file = |name: &str, user: &str, lasts_s: i64| {
        let path = dir.path().join(name);
        fs::write(&path, signer.token(user, lasts_s) + "\n").unwrap();
        path.to_str().unwrap().to_owned()
    };
    let keys = keys.to_str().unwrap();
    let data = dir.path().join("data");
    let keys_alone = ["start", "--token-keys", keys];
    run(&data, &keys_alone).assert_fails(2, &["token_keys", "authentication"]);
    let start = [
        &["--authentication", "--super-users", "alice", "--token-keys"][..],
        &[keys],
    ];
    let incomplete = [&["start"][..], start[0], start[1]].concat();
    run(&data, &incomplete).assert_fails(2, &["token_keys", "token_issuer"]);
    let missing = [&["start"][..], start[0], &["no-such-file"], &CLAIMS].concat();
    run(&data, &missing).assert_fails(1, &["no-such-file"]);

    let server = Server::start(&data, &[start[0], start[1], &CLAIMS].concat());
    let good = token_file("good", "alice", 600);
    let create = ["stream", "create", "orders", "--token-file"];
    server.run(&[&create[..], &[&good]].concat()).assert_done();
    let list = ["stream", "list", "--token-file"];
    let old = token_file("old", "alice", -600);
    server
        .run(&[&list[..], &[&old]].concat())
        .assert_fails(1, &["it has expired"]);
    let other = token_file("other", "bob", 600);
    let delete = [
        "stream",
        "delete",
        "orders",
        "--yes",
        "--token-file",
        &other,
    ];
    assert_ne!(server.run(&delete).status.code(), Some(0));
    server
        .run(&[&list[..], &["missing"]].concat())
        .assert_fails(1, &["cannot read missing"]);
    let both = [&list[..], &[&good, "--user", "alice"]].concat();
    server.run(&both).assert_fails(2, &["--token-file"]);
    let ended = server.stop();
    assert!(ended.stderr.contains("\"User:alice\""), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("log in by OAUTHBEARER"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_broken_key_file_is_reported_on_stderr_and_the_old_keys_stay() {
    let dir = tempdir().unwrap();
    let [signer, other] = ["k", "other"].map(TokenSigner::new);
    let keys = dir.path().join("keys.json");
    signer.write_keys(&keys);
    let token_file = |name: &str, token: &str| {
        let path = dir.path().join(name);
        fs::write(&path, token).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let start = ["--authentication", "--super-users", "alice", "--token-keys"];
    let start = [&start[..], &[keys.to_str().unwrap()], &CLAIMS].concat();
    let server = Server::start(&dir.path().join("data"), &start);
    fs::write(&keys, "{").unwrap();
    let list = ["stream", "list", "--token-file"];
    // The server looks for its key, and finds none.
    let unknown = token_file("unknown", &other.token("alice", 600));
    for _ in 0..2 {
        let refused = server.run(&[&list[..], &[&unknown]].concat());
        refused.assert_fails(1, &["does not know the key"]);
    }
    let good = token_file("good", &signer.token("alice", 600));
    server.run(&[&list[..], &[&good]].concat()).assert_done();
    let stderr = server.stop().stderr;
    let told = stderr.matches("the old keys stay in use").count();
    assert_eq!(told, 1, "{stderr}");
}

#[test]
fn a_start_that_cannot_fetch_the_keys_for_tokens_says_so_and_fails() {
    let data = tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = listener.local_addr().unwrap();
    drop(listener);
    let start = |keys: &str, more: &[&str]| {
        let start = ["start", "--listen", "127.0.0.1:0", "--authentication"];
        let args = [&start[..], &["--token-keys", keys], &CLAIMS, more].concat();
        run(data.path(), &args)
    };
    let url = format!("http://{closed}/keys");
    start(&url, &[]).assert_fails(1, &[&url, "cannot connect"]);
    start("http://issuer.example/", &[]).assert_fails(2, &["must begin with https://"]);
    let authorities = ["--token-authorities", "a.pem"];
    start("keys.json", &authorities).assert_fails(2, &["token_authorities", "https://"]);
    start("https://127.0.0.1:1/", &authorities).assert_fails(1, &["a.pem", "No such file"]);
}
