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
    /// The kind of the request.
    pub api: ApiKey,
    /// The version of the request and of its response; one of [`ApiKey::versions`].
    pub version: i16,
    /// The number that the client gave to the request; the response repeats it.
    pub correlation_id: i32,
    /// The client's id, which it chooses itself.
    pub client_id: Option<StrBytes>,
}

impl RequestHeader {
    /// Decodes the header of a request, and returns it with the undecoded body.
    pub(crate) fn decode(frame: Bytes) -> Result<(RequestHeader, Input), RequestError> {
        // The key and the version decide the rest of the header's layout, so read them first.
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
                // The encoding of old versions, in all versions, so that every broker can read it.
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

/// Returns whether the header of a response has tagged fields. The header of ApiVersions never has, since its
/// reader does not know the server's versions yet.
pub(crate) fn response_has_tags(api: ApiKey, version: i16) -> bool {
    api.is_flexible(version) && api != ApiKey::ApiVersions
}
