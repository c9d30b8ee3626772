//! The text form of filters.

use millstream_base::Timestamp;
use millstream_record::{
    Chunk, ChunkBuilder, Compression, Decompressor, FILTER_BYTES_MAX, FILTER_TERMS_MAX, Filter,
    FilterError, Header,
};
use proptest::prelude::*;

/// Whether a filter selects a certain record. Its key is `ann`; its value is `a "b" \ c`, an `0xff` and a line feed;
/// its secondary keys are `city` Namur and Liège and `first name` Ann; its time is 1000.
fn matches(filter: &str) -> bool {
    let header = |name, value| Header { name, value };
    let headers = [
        header(&b"k.city"[..], Some(&b"Namur"[..])),
        header(b"k.city", Some("Liège".as_bytes())),
        header(b"k.first name", Some(b"Ann")),
        header(b"k.null", None),
        header(b"other", Some(b"x")),
    ];
    let mut builder = ChunkBuilder::new(Compression::None);
    let value = b"a \"b\" \\ c\xff\n";
    let pushed = builder.push(Timestamp(1000), Some(b"ann"), Some(value), &headers);
    pushed.unwrap();
    let chunk = Chunk::parse(builder.finish(None).unwrap()).unwrap();
    let mut decompressor = Decompressor::default();
    let record = chunk.records(&mut decompressor).unwrap().next().unwrap();
    Filter::parse(filter).unwrap().matches(&record.unwrap())
}

#[test]
fn terms_select_matching_records() {
    for (filter, expected) in [
        (r#"key = "ann""#, true),
        (r#"key = "an""#, false),
        (r#"key starts with "an""#, true),
        (r#"key starts with "nn""#, false),
        (r#"key contains "nn""#, true),
        (r#"key contains "nx""#, false),
        (r#"key starts with """#, true),
        (r#"key = """#, false),
        (r#"key >= "ann" and key <= "ann""#, true),
        (r#"key > "ann""#, false),
        (r#"key < "ann""#, false),
        (r#"key>"anm\xff" and key<"b""#, true),
        (r#"key >= """#, true),
        (r#"value < "b" and k.city >= "Nam""#, true),
        (r#"k.null >= """#, false),
        (r#"  key="ann"and  value	contains"c"  "#, true),
        (r#"key = "ann" and value contains "x""#, false),
        (r#"value = "a \"b\" \\ c\xff\n""#, true),
        (r#"value contains "\xFF\x0a""#, true),
        (r#"value contains "\'""#, false),
        (r#"k.city = "Namur""#, true),
        (r#"k.city = "Liège""#, true),
        (r#"k.city = "Li\xc3\xa8ge""#, true),
        (r#"k.city = "Namur" and k.city starts with "L""#, true),
        (r#"k.city contains "x""#, false),
        (r#"k."city" = "Namur""#, true),
        (r#"k."first name" contains "n""#, true),
        (r#"k.null starts with """#, false),
        (r#"k.other starts with """#, false),
        ("time >= 1000", true),
        ("time > 1000", false),
        ("time <= 1000", true),
        ("time<1000", false),
        ("time>-5", true),
        (
            "time >= 1970-01-01T00:00:01Z and time < 1970-01-01T00:00:01.001Z",
            true,
        ),
        ("time > 1970-01-01T00:00:01Z", false),
        ("time < 2026-01-31T12:00:00Z", true),
    ] {
        assert_eq!(matches(filter), expected, "{filter}");
    }
}

#[test]
fn parse_errors_name_the_column_and_the_found_and_expected_input() {
    let field = "key, value, time, or k. and the name of a secondary key";
    let test = "=, <, <=, >=, >, starts with, or contains";
    let comparison = "<, <=, >= or >";
    let time = "milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z";
    let text = "a text in double quotes";
    let escape = r#"one of \" \\ \' \n \r \t and \xHH"#;
    let name = "the name of a secondary key, in double quotes if it is not a word";
    for (filter, column, found, expected) in [
        ("", 1, "the end", field),
        ("   ", 4, "the end", field),
        ("offset = 1", 1, r#""offset""#, field),
        ("Key = 1", 1, r#""Key""#, field),
        ("k = \"a\"", 1, r#""k""#, field),
        ("= \"a\"", 1, r#""=""#, field),
        ("key", 4, "the end", test),
        ("key < a", 7, r#""a""#, text),
        ("key ! \"a\"", 5, r#""!""#, test),
        ("key begins \"a\"", 5, r#""begins""#, test),
        ("key = ", 7, "the end", text),
        ("key = a", 7, r#""a""#, text),
        ("key starts \"a\"", 12, r#""\"a\"""#, "with"),
        ("key starts with a", 17, r#""a""#, text),
        (
            "key = \"è",
            9,
            "the end",
            "the double quote that closes the text",
        ),
        ("key = \"è\\q\"", 9, r#""\\q""#, escape),
        ("key = \"\\x0g\"", 8, r#""\\x0g""#, escape),
        ("key = \"\\xè\"", 8, r#""\\xè""#, escape),
        ("key = \"\\", 8, r#""\\""#, escape),
        ("key = \"a\" or value = \"b\"", 11, r#""or""#, "and"),
        ("key = \"a\" \"b\"", 11, r#""\"b\"""#, "and"),
        ("key = \"a\" and", 14, "the end", field),
        ("k. = \"a\"", 3, r#""=""#, name),
        ("k.", 3, "the end", name),
        ("k.city", 7, "the end", test),
        ("time = 5", 6, r#""=""#, comparison),
        ("time > ", 8, "the end", time),
        ("time > soon", 8, r#""soon""#, time),
        (
            "time > 99999999999999999999",
            8,
            r#""99999999999999999999""#,
            time,
        ),
        ("time > \"5\"", 8, r#""\"5\"""#, time),
        (
            "time > 2026-01-31T12:00:00",
            8,
            r#""2026-01-31T12:00:00""#,
            time,
        ),
        (
            "time > 2026-02-31T12:00:00Z",
            8,
            r#""2026-02-31T12:00:00Z""#,
            time,
        ),
        (
            "time > 2026-01-31T12:00:00.0001Z",
            8,
            r#""2026-01-31T12:00:00.0001Z""#,
            "a time in whole milliseconds",
        ),
    ] {
        let expected = FilterError::Unexpected {
            column,
            found: found.to_owned(),
            expected,
        };
        assert_eq!(Filter::parse(filter), Err(expected), "{filter}");
    }
    let error = Filter::parse("key = a").unwrap_err().to_string();
    assert_eq!(
        error,
        "the filter's column 7: expected a text in double quotes, found \"a\""
    );
}

#[test]
fn the_length_and_terms_of_a_filter_are_bounded() {
    let most = vec!["time > 5"; FILTER_TERMS_MAX].join(" and ");
    assert!(Filter::parse(&most).is_ok());
    assert_eq!(
        Filter::parse(&format!("{most} and key = \"a\"")),
        Err(FilterError::TooManyTerms {
            column: most.len() + 6
        })
    );
    let longest = format!("key = \"{}\"", "a".repeat(FILTER_BYTES_MAX - 8));
    assert!(Filter::parse(&longest).is_ok());
    let bytes = FILTER_BYTES_MAX + 1;
    assert_eq!(
        Filter::parse(&format!("{longest} ")),
        Err(FilterError::TooLong { bytes })
    );
    // The excerpt in an error has a bound, too.
    let error = Filter::parse(&"è".repeat(2000)).unwrap_err().to_string();
    assert!(error.len() < 300, "{error}");
}

proptest! {
    #[test]
    fn arbitrary_texts_never_panic(text: String) {
        let _ = Filter::parse(&text);
    }

    /// Joins real tokens, so it gets deeper into the parser than arbitrary texts.
    #[test]
    fn a_filter_round_trips_through_its_text(
        tokens in proptest::collection::vec(proptest::sample::select(&[
            "key", "value", "k.", "k.è", "time", "starts", "with", "contains", "=", "<", ">", "and", " ", " ",
            "\"", "\\", "x", "è", "5", "key = \"a\"", " and ", "time > 7",
        ][..]), 0..12),
    ) {
        let text = tokens.concat();
        if let Ok(filter) = Filter::parse(&text) {
            prop_assert_eq!(filter.to_string(), text.clone());
            prop_assert_eq!(filter.to_string().parse(), Ok(filter));
        }
    }

    #[test]
    fn a_filter_can_express_all_bytes(bytes: Vec<u8>) {
        let filter = format!("key = \"{}\"", bytes.escape_ascii());
        let mut builder = ChunkBuilder::new(Compression::None);
        builder.push(Timestamp(0), Some(&bytes), None, &[]).unwrap();
        let chunk = Chunk::parse(builder.finish(None).unwrap()).unwrap();
        let mut decompressor = Decompressor::default();
        let record = chunk.records(&mut decompressor).unwrap().next().unwrap();
        prop_assert!(Filter::parse(&filter).unwrap().matches(&record.unwrap()));
    }
}
