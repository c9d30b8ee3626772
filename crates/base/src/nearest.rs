//! Suggestions for misspelt names.

/// Returns the known name with the fewest differences from `name`, if it is a likely spelling error: at most a
/// third of the letters may differ, or one letter of a short name.
///
/// ```
/// let known = ["retention.ms", "retention.bytes"];
/// assert_eq!(millstream_base::nearest("retention.mss", known), Some("retention.ms"));
/// assert_eq!(millstream_base::nearest("colour", known), None);
/// ```
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = name.chars().count();
    let wrong_max = (length / 3).max(1);
    known
        .into_iter()
        .map(|known| (strsim::osa_distance(known, name), known))
        .filter(|(wrong, _)| *wrong <= wrong_max && *wrong < length)
        .min_by_key(|(wrong, _)| *wrong)
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let known = ["journal", "journal_file", "pool", "s"];
        for (name, expected) in [
            ("jurnal", Some("journal")),
            ("journal_flie", Some("journal_file")),
            ("pol", Some("pool")),
            ("lopo", None),
            ("zzzzz", None),
            ("a", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known), expected, "{name}");
        }
    }
}
