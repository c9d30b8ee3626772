//! The live page: one file without external resources.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{Html, IntoResponse};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

const PAGE: &str = include_str!("page.html");

/// The content security policy of the page. The browser runs only the page's own script and style, which
/// it knows by their hashes, and lets them connect only to this server.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
        hash_of(between("<script>", "</script>")),
        hash_of(between("<style>", "</style>")),
    )
});

pub async fn page() -> impl IntoResponse {
    (
        [(header::CONTENT_SECURITY_POLICY, POLICY.as_str())],
        Html(PAGE),
    )
}

fn between(start: &str, end: &str) -> &'static str {
    PAGE.split_once(start)
        .and_then(|(_, rest)| rest.split_once(end))
        .map(|(text, _)| text)
        .expect("the page has one script and one style")
}

fn hash_of(text: &str) -> String {
    format!("sha256-{}", BASE64_STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_no_external_resources_and_builds_no_markup_from_text() {
        for forbidden in ["http:", "https:", "src=", "innerHTML", "style=", "onclick"] {
            assert!(!PAGE.contains(forbidden), "{forbidden}");
        }
        assert_eq!(PAGE.matches("<script").count(), 1);
        assert_eq!(PAGE.matches("<style").count(), 1);
    }

    #[test]
    fn rates_have_units_per_second() {
        for rate in [">Records/s</dt>", "\"Items/s\"", "/s` : UNKNOWN"] {
            assert!(PAGE.contains(rate), "{rate}");
        }
        for other in ["per second</dt>", "<dt>A second"] {
            assert!(!PAGE.contains(other), "{other}");
        }
    }
}
