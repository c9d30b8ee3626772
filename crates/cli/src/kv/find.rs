//! `millstream kv find`: keys by their secondary keys.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use anyhow::Context;
use millstream_client::FoundKey;
use serde_json::Value;

use super::common::{document, range_of, wait};
use crate::args::FindArgs;
use crate::console::{CANNOT_WRITE, stdout};
use crate::consume::text;
use crate::remote::Remote;

pub fn find(args: &FindArgs, remote: &Remote, is_json: bool) -> anyhow::Result<()> {
    let stream = remote.client().keyed(&args.stream);
    let keys: Vec<&[u8]> = args.secondary.iter().map(|key| key.as_bytes()).collect();
    let mut scan = match keys.is_empty() {
        true => stream.scan_by(&args.index, range_of(&args.range)),
        false => stream.find(&args.index, &keys),
    };
    let mut left = args.limit.unwrap_or(u64::MAX);
    // An unknown stream is an error before anything is printed.
    let mut next = wait(remote, &stream, scan.next())?;
    let mut out = stdout();
    if is_json {
        out.write_all(b"{\"entries\":[").context(CANNOT_WRITE)?;
    }
    let mut is_first = true;
    while let Some(found) = next.filter(|_| left > 0) {
        print(&mut out, &found, is_json, is_first).context(CANNOT_WRITE)?;
        is_first = false;
        left -= 1;
        next = match left {
            0 => None,
            _ => wait(remote, &stream, scan.next())?,
        };
    }
    if is_json {
        out.write_all(b"]}\n").context(CANNOT_WRITE)?;
    }
    out.flush().context(CANNOT_WRITE)
}

fn print(out: &mut impl Write, found: &FoundKey, is_json: bool, is_first: bool) -> io::Result<()> {
    let FoundKey {
        secondary,
        key,
        newest,
    } = found;
    if !is_json {
        let parts = [&secondary[..], b"\t", key, b"\t", &newest.value, b"\n"];
        return parts.into_iter().try_for_each(|part| out.write_all(part));
    }
    if !is_first {
        out.write_all(b",")?;
    }
    let mut document = document(key, newest);
    if let Value::Object(fields) = &mut document {
        fields.extend([text("secondary", Some(secondary))]);
    }
    Ok(serde_json::to_writer(out, &document)?)
}
