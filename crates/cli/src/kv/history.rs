//! `millstream kv history`: prints the versions of a key.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context;
use millstream_base::Timestamp;
use millstream_client::PastVersion;
use serde_json::{Value, json};

use super::common::wait;
use crate::args::HistoryArgs;
use crate::console::{CANNOT_WRITE, stdout};
use crate::consume::text;
use crate::remote::Remote;

/// The last millisecond that a date can name, since 1970.
const DATE_MS_MAX: i64 = 253_402_300_799_999;

pub fn history(args: &HistoryArgs, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    let stream = remote.client().keyed(&args.key.stream);
    let key = args.key.key.as_bytes();
    let mut history = stream.history(key);
    let mut left = args.limit.unwrap_or(u64::MAX);
    // An unknown stream is an error before anything is printed.
    let mut next = wait(remote, &stream, history.next())?;
    let mut out = stdout();
    if is_json {
        out.write_all(b"{\"versions\":[").context(CANNOT_WRITE)?;
    }
    let mut is_first = true;
    while left > 0
        && let Some(version) = next
    {
        let printed = match is_json {
            true => print_json(&mut out, key, &version, is_first),
            false => print(&mut out, &version),
        };
        printed.context(CANNOT_WRITE)?;
        is_first = false;
        left -= 1;
        next = match left {
            0 => None,
            _ => wait(remote, &stream, history.next())?,
        };
    }
    let lacks_older = (left > 0).then(|| history.lacks_older());
    end(&mut out, lacks_older, is_json).context(CANNOT_WRITE)
}

fn print(out: &mut impl Write, found: &PastVersion) -> io::Result<()> {
    write!(out, "{}\t{}\t", found.version, date(found.timestamp))?;
    out.write_all(found.value.as_deref().unwrap_or(b"deleted"))?;
    match found.expires_at {
        Some(end) => writeln!(out, "\t{}", date(end)),
        None => writeln!(out),
    }
}

fn print_json(
    out: &mut impl Write,
    key: &[u8],
    found: &PastVersion,
    is_first: bool,
) -> io::Result<()> {
    if !is_first {
        out.write_all(b",")?;
    }
    let fields = [
        text("key", Some(key)),
        ("partition".to_owned(), json!(found.partition)),
        ("version".to_owned(), json!(found.version)),
        ("timestamp".to_owned(), json!(found.timestamp)),
        text("value", found.value.as_deref()),
    ];
    let end = found.expires_at;
    let end = end.map(|end| ("expires_at".to_owned(), json!(end)));
    let document = Value::Object(fields.into_iter().chain(end).collect());
    Ok(serde_json::to_writer(out, &document)?)
}

/// Ends the list. `lacks_older` says whether older versions may have been dropped, if that is known.
fn end(out: &mut impl Write, lacks_older: Option<bool>, is_json: bool) -> io::Result<()> {
    match lacks_older {
        _ if is_json => writeln!(out, "],\"lacks_older\":{}}}", json!(lacks_older))?,
        Some(true) => writeln!(out, "older versions may have been dropped")?,
        _ => {}
    }
    out.flush()
}

/// Returns a time as a date, or in milliseconds since 1970 where no date names it.
pub fn date(time: Timestamp) -> String {
    match u64::try_from(time.0) {
        Ok(ms) if time.0 <= DATE_MS_MAX => {
            let time = UNIX_EPOCH + Duration::from_millis(ms);
            humantime::format_rfc3339_millis(time).to_string()
        }
        _ => time.0.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_outside_the_calendar_are_printed_as_numbers() {
        for (ms, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (DATE_MS_MAX, "9999-12-31T23:59:59.999Z"),
            (DATE_MS_MAX + 1, "253402300800000"),
            (-1, "-1"),
            (i64::MIN, "-9223372036854775808"),
        ] {
            assert_eq!(date(Timestamp(ms)), expected);
        }
    }
}
