//! The answer of a scan while it is collected, within its bounds.

/// Keys in their order, with the places of their newest versions.
#[derive(Debug, PartialEq, Eq)]
pub struct Found<P> {
    pub keys: Vec<(Vec<u8>, P)>,
    /// The first key that did not fit.
    pub next: Option<Vec<u8>>,
}

/// Collects keys until the bounds of a scan are reached.
#[derive(Debug)]
pub struct Collector<P> {
    limit: usize,
    bytes_left: usize,
    found: Found<P>,
}

impl<P> Collector<P> {
    /// Collects at most `limit` keys, whose records have at most `bytes_max` bytes, but at least one if `limit` allows it.
    pub fn new(limit: usize, bytes_max: usize) -> Collector<P> {
        Collector {
            limit,
            bytes_left: bytes_max,
            found: Found {
                keys: Vec::new(),
                next: None,
            },
        }
    }

    /// Adds the next key that has a value; its record has `bytes` bytes. Returns `false` if it does not fit: then the scan is
    /// complete.
    pub fn add(&mut self, key: &[u8], bytes: u32, place: P) -> bool {
        let bytes = bytes as usize;
        let is_first = self.found.keys.is_empty();
        if self.found.keys.len() >= self.limit || bytes > self.bytes_left && !is_first {
            self.found.next = Some(key.to_vec());
            return false;
        }
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        self.found.keys.push((key.to_vec(), place));
        true
    }

    pub fn finish(self) -> Found<P> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_that_reaches_its_bounds_returns_the_key_to_continue_with() {
        let scan = |keys: &[(&str, u32)], limit, bytes_max| {
            let mut collector = Collector::new(limit, bytes_max);
            for (key, bytes) in keys {
                if !collector.add(key.as_bytes(), *bytes, ()) {
                    break;
                }
            }
            let found = collector.finish();
            let text = |key: Vec<u8>| String::from_utf8(key).unwrap();
            let keys = found.keys.into_iter().map(|(key, ())| text(key));
            (keys.collect::<Vec<_>>().join(" "), found.next.map(text))
        };
        let keys = [("a", 10), ("b", 10), ("ba", 10), ("c", 100), ("d", 10)];
        let text = |keys: &str, next: Option<&str>| (keys.to_owned(), next.map(str::to_owned));
        let most = usize::MAX;
        assert_eq!(scan(&keys, most, most), text("a b ba c d", None));
        assert_eq!(scan(&keys, 5, most), text("a b ba c d", None));
        assert_eq!(scan(&keys, 2, most), text("a b", Some("ba")));
        assert_eq!(scan(&keys, 0, most), text("", Some("a")));
        assert_eq!(scan(&keys, most, 29), text("a b", Some("ba")));
        assert_eq!(scan(&keys, most, 30), text("a b ba", Some("c")));
        assert_eq!(scan(&keys, most, 0), text("a", Some("b")));
        assert_eq!(scan(&keys[3..], most, 50), text("c", Some("d")));
        assert_eq!(scan(&[], most, 50), text("", None));
    }
}
