//! Holds of keyed streams, from the command line and over HTTP.

use tempfile::tempdir;

use crate::http::{assert_status, start};
use crate::support::{get, run};

#[test]
fn a_hold_shows_keys_as_of_its_creation() {
    let dir = tempdir().unwrap();
    let done = |args: &[&str]| run(dir.path(), args).assert_done();
    let fails = |args: &[&str], parts: &[&str]| run(dir.path(), args).assert_fails(1, parts);
    done(&["stream", "create", "t", "--keyed", "--lanes", "2"]);
    done(&["kv", "put", "t", "ann", "1"]);
    let made = done(&["kv", "hold", "create", "t", "before", "--for", "30d"]).text();
    assert!(
        made.starts_with("hold before of stream t stays until 2"),
        "{made}"
    );
    done(&["kv", "put", "t", "ann", "2"]);
    done(&["kv", "put", "t", "bob", "2"]);
    assert_eq!(done(&["kv", "get", "t", "ann"]).text(), "2");
    let at = ["kv", "get", "t", "ann", "--hold", "before"];
    assert_eq!(done(&at).text(), "1");
    fails(
        &["kv", "get", "t", "bob", "--hold", "before"],
        &["no key \"bob\" at hold before"],
    );
    fails(
        &["kv", "get", "t", "bob", "--hold", "none"],
        &["no hold none", "kv hold list t"],
    );
    fails(
        &["kv", "hold", "create", "t", "before"],
        &["before", "exists"],
    );
    let listed = done(&["kv", "hold", "list", "t", "--json"]).json();
    let hold = &listed["holds"][0];
    assert_eq!(
        (&hold["name"], &hold["is_whole"]),
        (&"before".into(), &true.into())
    );
    let life = hold["until"].as_i64().unwrap() - hold["created"].as_i64().unwrap();
    assert_eq!(life, 30 * 86_400_000);
    let table = done(&["kv", "hold", "list", "t"]).text();
    assert!(
        table.contains("before") && table.contains("User:"),
        "{table}"
    );
    let described = done(&["stream", "describe", "t"]).text();
    assert!(described.contains("\nholds: before\n"), "{described}");
    let described = done(&["stream", "describe", "t", "--json"]).json();
    assert_eq!(described["holds"][0], "before");
    done(&["kv", "hold", "delete", "t", "before"]);
    fails(&at, &["no hold before"]);
    fails(
        &["kv", "hold", "delete", "t", "before"],
        &["no hold before"],
    );
}

#[test]
fn a_hold_is_read_over_http() {
    let dir = tempdir().unwrap();
    let (server, http) = start(dir.path(), &[]);
    server
        .run(&["stream", "create", "t", "--keyed"])
        .assert_done();
    server.run(&["kv", "put", "t", "ann", "1"]).assert_done();
    server
        .run(&["kv", "hold", "create", "t", "a/b"])
        .assert_done();
    server.run(&["kv", "put", "t", "ann", "2"]).assert_done();
    let found = get(&http, "/kv/t/ann?hold=a%2Fb");
    assert_status(&found, 200);
    assert!(found.ends_with("\r\n\r\n1"), "{found}");
    assert_status(&get(&http, "/kv/t/ann?hold=none"), 404);
}
