//! Objects: put, read by range, listed and deleted.

use std::io::Read;

use millstream_log::{Log, LogError, OBJECT_RECORD_BYTES};

use crate::config;

#[test]
fn objects_are_put_got_by_range_listed_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let content: Vec<u8> = (0..3 * OBJECT_RECORD_BYTES + 77)
        .map(|n| (n % 251) as u8)
        .collect();
    let info = log.put_object("models/a", &mut &content[..]).unwrap();
    assert_eq!(info.bytes, content.len() as u64);
    assert_eq!(info.crc32c, millstream_base::crc32c(&content));
    let empty = log.put_object("empty", &mut &b""[..]).unwrap();
    assert_eq!(empty.bytes, 0);
    let error = log.put_object("models/a", &mut &b""[..]).unwrap_err();
    assert!(matches!(error, LogError::Exists { .. }), "{error}");
    log.close().unwrap();

    let log = Log::open(config(dir.path())).unwrap();
    let get = |name: &str, range: Option<std::ops::Range<u64>>| {
        let mut bytes = Vec::new();
        log.get_object(name, range)
            .unwrap()
            .read_to_end(&mut bytes)
            .unwrap();
        bytes
    };
    assert_eq!(get("models/a", None), content);
    assert_eq!(get("empty", None), b"");
    let record = OBJECT_RECORD_BYTES as u64;
    for range in [
        0..1,
        5..5,
        record - 1..record + 1,
        2 * record..3 * record + 77,
    ] {
        let expected = &content[range.start as usize..range.end as usize];
        assert_eq!(get("models/a", Some(range)), expected);
    }
    let error = log.get_object("models/a", Some(1..u64::MAX)).unwrap_err();
    assert!(matches!(error, LogError::BadRange { .. }), "{error}");
    let names = |prefix| -> Vec<String> {
        let objects = log.objects(prefix).unwrap();
        objects.into_iter().map(|object| object.name).collect()
    };
    assert_eq!(names(""), ["empty", "models/a"]);
    assert_eq!(names("models/"), ["models/a"]);
    log.delete_object("models/a").unwrap();
    assert_eq!(names(""), ["empty"]);
    assert!(log.stream_names().is_empty());
}
