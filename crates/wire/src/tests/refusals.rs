//! Refusals carry the error, in every version.

use super::round_trips::{any_request, body, header, versions};
use crate::{ResponseError, decode_response, encode_response, refuse};

#[test]
fn every_request_can_be_refused_in_all_versions() {
    let error = ResponseError::ClusterAuthorizationFailed;
    for (api, version) in versions() {
        let mut named = 0;
        for seed in 0..50 {
            let request = any_request(api, version, seed).expect("one of them is valid");
            let refusal = refuse(&request, version, error, Some("not you"));
            let answer = encode_response(&header(api, version), &refusal);
            let answer = answer.unwrap_or_else(|error| panic!("{api:?} {version}: {error}"));
            let (_, response) = decode_response(api, version, body(answer)).unwrap();
            let code = format!("error_code: {}", error.code());
            named += usize::from(format!("{response:?}").contains(&code));
        }
        // The answer to a request without topics may have none.
        assert!(named > 5, "{api:?} version {version}");
    }
}
