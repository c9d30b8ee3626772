//! Entity tags in the headers of requests.

use axum::http::{HeaderMap, HeaderName};

use crate::keyed::KeyedVersion;

/// The tags of a header such as `If-None-Match`.
#[derive(Debug, PartialEq, Eq)]
pub enum Tags<'a> {
    /// `*`: matches any version.
    Any,
    Listed(Vec<Tag<'a>>),
}

#[derive(Debug, PartialEq, Eq)]
pub struct Tag<'a> {
    /// Whether it begins with `W/`.
    pub is_weak: bool,
    /// The text between the quotes.
    pub text: &'a str,
}

/// A header that is no list of tags.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

impl<'a> Tags<'a> {
    /// Parses all headers of this name; `None` if there is none.
    pub fn of(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<Tags<'a>>, Malformed> {
        let mut listed = Vec::new();
        let mut count = 0;
        for value in headers.get_all(name) {
            count += 1;
            let value = value.to_str().map_err(|_| Malformed)?.trim();
            if value == "*" {
                let is_only = headers.get_all(name).iter().count() == 1;
                return is_only.then_some(Some(Tags::Any)).ok_or(Malformed);
            }
            add_tags(value, &mut listed)?;
        }
        Ok((count > 0).then_some(Tags::Listed(listed)))
    }

    /// Returns whether the tag of this version is among them, weak or not.
    pub fn have(&self, version: KeyedVersion) -> bool {
        let text = text_of(version);
        self.any(|tag| tag.text == text)
    }

    /// Returns whether the tag of this version is among them and not weak.
    pub fn have_strongly(&self, version: KeyedVersion) -> bool {
        let text = text_of(version);
        self.any(|tag| tag.text == text && !tag.is_weak)
    }

    fn any(&self, is_it: impl FnMut(&Tag<'_>) -> bool) -> bool {
        match self {
            Tags::Any => true,
            Tags::Listed(tags) => tags.iter().any(is_it),
        }
    }
}

fn add_tags<'a>(list: &'a str, tags: &mut Vec<Tag<'a>>) -> Result<(), Malformed> {
    let mut rest = list;
    loop {
        // A list may have empty places.
        rest = rest.trim_start_matches([',', ' ', '\t']);
        if rest.is_empty() {
            return Ok(());
        }
        let weak = rest.strip_prefix("W/");
        let quoted = weak.unwrap_or(rest).strip_prefix('"');
        let (text, behind) = quoted.and_then(|it| it.split_once('"')).ok_or(Malformed)?;
        tags.push(Tag {
            is_weak: weak.is_some(),
            text,
        });
        rest = behind.trim_start_matches([' ', '\t']);
        if !rest.is_empty() && !rest.starts_with(',') {
            return Err(Malformed);
        }
    }
}

/// Returns the tag of a version.
pub fn tag_of(version: KeyedVersion) -> String {
    format!("\"{}\"", text_of(version))
}

/// Returns the text between the quotes of a version's tag.
fn text_of(version: KeyedVersion) -> String {
    let KeyedVersion { partition, version } = version;
    format!("{partition}-{version}")
}

#[cfg(test)]
mod tests {
    use axum::http::header::IF_NONE_MATCH;
    use millstream_base::Offset;

    use super::*;

    fn headers(values: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IF_NONE_MATCH, value.parse().unwrap());
        }
        headers
    }

    #[track_caller]
    fn check(values: &[&'static str], expected: &[(bool, &str)]) {
        let headers = headers(values);
        let tags = expected.iter();
        let tags = tags.map(|&(is_weak, text)| Tag { is_weak, text });
        let expected = Tags::Listed(tags.collect());
        assert_eq!(Tags::of(&headers, &IF_NONE_MATCH), Ok(Some(expected)));
    }

    #[test]
    fn tags_are_parsed_from_lists() {
        check(&["\"0-1\""], &[(false, "0-1")]);
        check(&["W/\"0-1\", \"a,b\""], &[(true, "0-1"), (false, "a,b")]);
        check(&["\"\" ,,\t\"x\","], &[(false, ""), (false, "x")]);
        check(&["\"a\"", "W/\"b\""], &[(false, "a"), (true, "b")]);
        assert_eq!(
            Tags::of(&headers(&["*"]), &IF_NONE_MATCH),
            Ok(Some(Tags::Any))
        );
        assert_eq!(Tags::of(&headers(&[]), &IF_NONE_MATCH), Ok(None));
        for values in [
            &["0-1"][..],
            &["\"0-1"],
            &["w/\"0-1\""],
            &["\"a\"\"b\""],
            &["*, \"a\""],
            &["*", "\"a\""],
            &["\"a\"", "*"],
        ] {
            let tags = headers(values);
            assert_eq!(
                Tags::of(&tags, &IF_NONE_MATCH),
                Err(Malformed),
                "{values:?}"
            );
        }
    }

    #[test]
    fn the_tag_of_a_version_is_found() {
        let version = KeyedVersion {
            partition: 1,
            version: Offset(7),
        };
        for (value, is_there) in [
            ("\"1-7\"", true),
            ("\"1-6\", W/\"1-7\"", true),
            ("*", true),
            ("\"1-70\"", false),
            ("", false),
        ] {
            let headers = headers(&[value]);
            let tags = Tags::of(&headers, &IF_NONE_MATCH).unwrap().unwrap();
            assert_eq!(tags.have(version), is_there, "{value}");
            let is_strong = is_there && !value.contains("W/");
            assert_eq!(tags.have_strongly(version), is_strong, "{value}");
        }
    }
}
