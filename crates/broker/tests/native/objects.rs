//! Objects: put in parts, read by ranges, listed, deleted.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use millstream_base::crc32c;
use millstream_wire::ResponseError;
use millstream_wire::native::{
    DeleteObjectRequest, GetObjectRequest, GetObjectResponse, ListObjectsRequest,
    ObjectDescription, PutObjectRequest, PutObjectResponse,
};

use crate::client::{Broker, Client, answer, ask, text};

/// The broker's bound on the bytes of an object in one answer.
const CONTENT_BYTES_MAX: usize = 4 << 20;

fn content(bytes: usize) -> Bytes {
    let mut random = fastrand::Rng::with_seed(bytes as u64);
    let mut content = vec![0; bytes];
    random.fill(&mut content);
    content.into()
}

fn part(name: &str, start: u64, content: Bytes, is_last: bool) -> PutObjectRequest {
    PutObjectRequest {
        name: text(name),
        start,
        content,
        is_last,
    }
}

/// Uploads an object in parts of `part_bytes` bytes, all sent before the first is answered.
fn put(client: &mut Client, name: &str, content: &Bytes, part_bytes: usize) -> PutObjectResponse {
    let mut parts: Vec<Bytes> = (0..content.len())
        .step_by(part_bytes)
        .map(|start| content.slice(start..content.len().min(start + part_bytes)))
        .collect();
    if parts.is_empty() {
        parts.push(Bytes::new());
    }
    let count = parts.len();
    let mut start = 0;
    for (number, bytes) in parts.into_iter().enumerate() {
        let next = start + bytes.len() as u64;
        client.send(part(name, start, bytes, number + 1 == count));
        start = next;
    }
    for _ in 1..count {
        let response = answer!(client, PutObject);
        assert_eq!((response.error_code, response.object), (0, None));
    }
    answer!(client, PutObject)
}

fn get(client: &mut Client, name: &str, start: u64, bytes_max: u32) -> GetObjectResponse {
    let request = GetObjectRequest {
        name: text(name),
        start,
        bytes_max,
    };
    ask!(client, GetObject, request)
}

/// Reads an object from a position to its end, in answers of at most `bytes_max` bytes.
fn get_all(client: &mut Client, name: &str, from: usize, bytes_max: u32) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let response = get(client, name, (from + all.len()) as u64, bytes_max);
        assert_eq!(response.error_code, 0, "{:?}", response.error_message);
        if response.content.size() == 0 {
            return all;
        }
        assert!(response.content.size() <= (bytes_max as usize).min(CONTENT_BYTES_MAX));
        response
            .content
            .0
            .iter()
            .for_each(|piece| all.extend_from_slice(piece));
    }
}

fn list(client: &mut Client, prefix: &str, after: Option<&str>, most: u32) -> (Vec<String>, bool) {
    let request = ListObjectsRequest {
        prefix: text(prefix),
        after: after.map(text),
        objects_max: most,
    };
    let listed = ask!(client, ListObjects, request);
    assert_eq!(listed.error_code, 0);
    let names = listed.objects.iter().map(|object| object.name.to_string());
    (names.collect(), listed.has_more)
}

fn delete(client: &mut Client, name: &str) -> i16 {
    let request = DeleteObjectRequest { name: text(name) };
    ask!(client, DeleteObject, request).error_code
}

/// Returns the folders of all streams on disk, including objects.
fn folders(broker: &Broker) -> HashSet<PathBuf> {
    broker.log().persist();
    let folders = std::fs::read_dir(broker.log().dir().join("streams")).unwrap();
    folders.map(|folder| folder.unwrap().path()).collect()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn objects_of_all_sizes_come_back_as_they_were_put() {
    let mut broker = Broker::start();
    let mut client = broker.client();
    let record = 128 << 10;
    let sizes = [
        0,
        1,
        record - 1,
        record,
        record + 1,
        3 * record + 5,
        9_000_000,
    ];
    let mut described = Vec::new();
    for size in sizes {
        let content = content(size);
        let response = put(&mut client, &format!("of/{size}"), &content, 300_000);
        assert_eq!(response.error_code, 0, "{:?}", response.error_message);
        let object: ObjectDescription = response.object.unwrap();
        assert_eq!(object.bytes.0, size as u64);
        assert_eq!(object.crc32c, crc32c(&content));
        described.push(object);
    }
    for is_restarted in [false, true] {
        if is_restarted {
            broker.restart();
            client = broker.client();
        }
        for (size, object) in sizes.into_iter().zip(&described) {
            let name = format!("of/{size}");
            let all = get_all(&mut client, &name, 0, u32::MAX);
            assert!(all == content(size), "{size} bytes");
            let nothing = get(&mut client, &name, size as u64, 10);
            assert_eq!((nothing.error_code, nothing.content.size()), (0, 0));
            assert_eq!(nothing.object.as_ref(), Some(object));
        }
    }
}

#[test]
fn ranges_of_an_object_have_exactly_the_requested_bytes() {
    let broker = Broker::start();
    let mut client = broker.client();
    let whole = content(700_001);
    assert_eq!(put(&mut client, "ranges", &whole, 700_001).error_code, 0);
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..200 {
        let start = random.usize(0..=whole.len());
        let count = random.usize(0..300_000);
        let response = get(&mut client, "ranges", start as u64, count as u32);
        let got: Vec<u8> = response.content.0.concat();
        let end = whole.len().min(start + count);
        assert!(got == whole[start..end], "{start}, {count}");
    }
    for bytes_max in [77_777, 131_072] {
        assert!(get_all(&mut client, "ranges", 5, bytes_max) == whole[5..]);
    }
    let beyond = get(&mut client, "ranges", 700_002, 1);
    assert_eq!(beyond.error_code, ResponseError::OffsetOutOfRange.code());
    let missing = get(&mut client, "missing", 0, 1);
    assert_eq!(missing.error_code, ResponseError::ResourceNotFound.code());
    assert_eq!(missing.object, None);
}

#[test]
fn an_object_may_be_put_in_parts_of_any_size() {
    let broker = Broker::start();
    let mut client = broker.client();
    let mut random = fastrand::Rng::with_seed(2);
    for n in 0..10 {
        let whole = content(random.usize(1..500_000));
        let name = format!("object-{n}");
        let mut start = 0;
        loop {
            // Also parts without content.
            let end = whole.len().min(start + random.usize(0..150_000));
            let is_last = end == whole.len() && random.bool();
            // An empty part at 0 would begin the object anew, which is the same.
            let request = part(&name, start as u64, whole.slice(start..end), is_last);
            let response = ask!(client, PutObject, request);
            assert_eq!(response.error_code, 0, "{:?}", response.error_message);
            assert_eq!(response.object.is_some(), is_last);
            start = end;
            if is_last {
                break;
            }
        }
        assert!(get_all(&mut client, &name, 0, u32::MAX) == whole);
    }
}

#[test]
fn an_invalid_object_is_refused_and_the_connection_stays_open() {
    let broker = Broker::start();
    let mut client = broker.client();
    let some = content(1000);
    assert_eq!(put(&mut client, "taken", &some, 1000).error_code, 0);
    let taken = put(&mut client, "taken", &some, 1000);
    assert_eq!(taken.error_code, ResponseError::DuplicateResource.code());
    for name in ["", "a b", "__groups"] {
        let refused = put(&mut client, name, &some, 1000);
        let invalid = ResponseError::InvalidTopicException.code();
        assert_eq!(refused.error_code, invalid, "{name}");
    }
    // All parts of it get an answer.
    for start in 0..20 {
        client.send(part("taken", start * 1000, some.clone(), start == 19));
    }
    let codes = (0..20).map(|_| answer!(client, PutObject).error_code);
    let codes: Vec<i16> = codes.collect();
    assert_eq!(codes[19], ResponseError::DuplicateResource.code());
    assert!(get_all(&mut client, "taken", 0, 5000) == some);
    assert_eq!(put(&mut client, "free", &some, 100).error_code, 0);
}

#[test]
fn a_part_that_does_not_follow_the_previous_one_is_refused() {
    let broker = Broker::start();
    let mut client = broker.client();
    let some = content(1000);
    let invalid = ResponseError::InvalidRequest.code();
    let mut send = |name: &str, start: u64, is_last: bool| {
        let request = part(name, start, some.clone(), is_last);
        ask!(client, PutObject, request).error_code
    };
    assert_eq!(send("none", 1000, true), invalid, "none is begun");
    assert_eq!(send("gap", 0, false), 0);
    assert_eq!(send("gap", 1001, false), invalid);
    assert_eq!(send("gap", 1000, true), invalid, "it was given up");
    assert_eq!(send("one", 0, false), 0);
    assert_eq!(send("two", 1000, true), invalid, "of another object");
    assert_eq!(send("huge", 0, false), 0);
    assert_eq!(send("huge", u64::MAX, true), invalid);

    // An upload that begins anew has only the later parts.
    assert_eq!(send("anew", 0, false), 0);
    assert_eq!(send("anew", 0, false), 0);
    assert_eq!(send("anew", 1000, true), 0);
    assert_eq!(get_all(&mut client, "anew", 0, 5000).len(), 2000);
    assert_eq!(list(&mut client, "", None, 10).0, ["anew"]);
}

#[test]
fn an_unfinished_object_is_removed_with_its_connection() {
    let broker = Broker::start();
    let before = folders(&broker);
    let mut client = broker.client();
    for start in 0..5 {
        let request = part("cut", start * 500_000, content(500_000), false);
        assert_eq!(ask!(client, PutObject, request).error_code, 0);
    }
    let new: Vec<PathBuf> = folders(&broker).difference(&before).cloned().collect();
    assert_eq!(new.len(), 1, "{new:?}");
    drop(client);
    wait_for("it is given up", || !new[0].exists());

    let mut client = broker.client();
    assert_eq!(list(&mut client, "", None, 10), (vec![], false));
    let some = content(100);
    assert_eq!(put(&mut client, "cut", &some, 100).error_code, 0);
    assert!(get_all(&mut client, "cut", 0, 1000) == some);
}

#[test]
fn connections_put_objects_side_by_side() {
    let broker = Broker::start();
    let threads: Vec<_> = (0..8)
        .map(|n| {
            let mut client = broker.client();
            std::thread::spawn(move || {
                let whole = content(400_000 + n);
                let name = format!("beside/{n}");
                assert_eq!(put(&mut client, &name, &whole, 50_000).error_code, 0);
                assert!(get_all(&mut client, &name, 0, 100_000) == whole);
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    assert_eq!(list(&mut broker.client(), "beside/", None, 100).0.len(), 8);
}

#[test]
fn unfinished_objects_are_bounded_and_abandoned_ones_make_room() {
    let broker = Broker::start();
    let mut clients: Vec<Client> = (0..64).map(|_| broker.client()).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        let request = part(&format!("open-{n}"), 0, content(10), false);
        assert_eq!(ask!(client, PutObject, request).error_code, 0);
    }
    let mut late = broker.client();
    let some = content(10);
    let quota = ResponseError::ThrottlingQuotaExceeded.code();
    assert_eq!(put(&mut late, "late", &some, 10).error_code, quota);
    // The uploads do not hold up other requests.
    assert_eq!(list(&mut late, "", None, 10), (vec![], false));
    clients.pop();
    wait_for("there is room", || {
        put(&mut late, "late", &some, 10).error_code == 0
    });
}

#[test]
fn objects_are_listed_in_pages_and_deleted() {
    let broker = Broker::start();
    let mut client = broker.client();
    for name in ["b2", "a1", "b1", "b3"] {
        assert_eq!(put(&mut client, name, &content(10), 10).error_code, 0);
    }
    let first = list(&mut client, "b", None, 2);
    assert_eq!(first, (vec!["b1".to_owned(), "b2".to_owned()], true));
    let second = list(&mut client, "b", Some("b2"), 2);
    assert_eq!(second, (vec!["b3".to_owned()], false));
    assert_eq!(list(&mut client, "", None, 0), (vec![], true));

    assert_eq!(delete(&mut client, "b2"), 0);
    let missing = ResponseError::ResourceNotFound.code();
    assert_eq!(delete(&mut client, "b2"), missing);
    assert_eq!(get(&mut client, "b2", 0, 1).error_code, missing);
    assert_eq!(list(&mut client, "", None, 10).0, ["a1", "b1", "b3"]);
    assert_eq!(put(&mut client, "b2", &content(20), 10).error_code, 0);
}
