//! The headers of requests and responses.

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;

use crate::api::ApiKey;
use crate::error::{EncodeError, Malformed};
use crate::input::{FieldsMax, Input, Lengths, REQUEST_FIELDS_MAX};
use crate::pieces::Output;
use crate::request_error::RequestError;

/// The header of every request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHeader {
    /// Which request it is.
    pub api: ApiKey,
    /// Its version, which is that of the response, too; one of [`ApiKey::versions`].
    pub version: i16,
    /// A number of the client's, which the response repeats.
    pub correlation_id: i32,
    /// The client's ID, which it chooses itself.
    pub client_id: Option<StrBytes>,
}

impl RequestHeader {
    /// Decodes the header of a request, and leaves its body.
    pub(crate) fn decode(frame: Bytes) -> Result<(RequestHeader, Input), RequestError> {
        // The key decides what the header has besides these, so it cannot be more than a look.
        let fields_max = FieldsMax(REQUEST_FIELDS_MAX);
        let mut look = Input::new(frame.clone(), Lengths::FixedAndChecked, fields_max);
        let fixed = Self::decode_fixed(&mut look).map_err(RequestError::Header)?;
        let (api_key, version, correlation_id) = fixed;
        let Ok(api) = ApiKey::try_from(api_key) else {
            return Err(RequestError::UnknownApi {
                api_key,
                version,
                correlation_id,
            });
        };
        if !api.versions().contains(&version) {
            return Err(RequestError::UnsupportedVersion {
                api,
                version,
                correlation_id,
            });
        }
        let (header_lengths, body_lengths) = match api.is_flexible(version) {
            true => (Lengths::Compact, Lengths::Compact),
            false => (Lengths::FixedAndChecked, Lengths::Fixed),
        };
        let mut input = Input::new(frame, header_lengths, fields_max);
        let client_id = Self::decode_rest(&mut input, api.is_flexible(version));
        input.set_lengths(body_lengths);
        let header = RequestHeader {
            api,
            version,
            correlation_id,
            client_id: client_id.map_err(RequestError::Header)?,
        };
        Ok((header, input))
    }

    fn decode_fixed(input: &mut Input) -> Result<(i16, i16, i32), Malformed> {
        Ok((
            input.int16("api key")?,
            input.int16("version")?,
            input.int32("correlation id")?,
        ))
    }

    fn decode_rest(input: &mut Input, is_flexible: bool) -> Result<Option<StrBytes>, Malformed> {
        Self::decode_fixed(input)?;
        let client_id = input.header_string("client id")?;
        if is_flexible {
            input.tags()?;
        }
        Ok(client_id)
    }

    pub(crate) fn encode(&self, output: &mut Output) -> Result<(), EncodeError> {
        output.int16(self.api as i16);
        output.int16(self.version);
        output.int32(self.correlation_id);
        match &self.client_id {
            Some(client_id) => {
                // Always as old versions write strings, so that a broker can read it in any.
                let written = output.string_in(false, client_id);
                written.map_err(|what| EncodeError::Field {
                    api: self.api,
                    version: self.version,
                    what,
                })?;
            }
            None => output.int16(-1),
        }
        if self.api.is_flexible(self.version) {
            output.no_tags();
        }
        Ok(())
    }
}

/// Whether the header of a response has tagged fields. That of ApiVersions never has: who reads it
/// does not yet know which version the other side speaks.
pub(crate) fn response_has_tags(api: ApiKey, version: i16) -> bool {
    api.is_flexible(version) && api != ApiKey::ApiVersions
}
