//! The messages of SCRAM (RFC 5802, sections 5 and 7).

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{Hash, InvalidMessage, Iterations, Key, MESSAGE_BYTES_MAX};

/// The number of random bytes in each side's part of the nonce.
pub const NONCE_BYTES: usize = 18;

/// The nonce, which makes every exchange different.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nonce(Box<str>);

impl Nonce {
    /// Creates a nonce from random bytes, which must be unpredictable.
    pub fn from_random(random: &[u8; NONCE_BYTES]) -> Self {
        Nonce(BASE64.encode(random).into())
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the nonce of the server's answer: the client's part, then the server's.
    pub fn joined(&self, server: &Nonce) -> Nonce {
        Nonce([&*self.0, &*server.0].concat().into())
    }

    /// Returns whether it begins with the client's part, and is longer.
    pub fn continues(&self, client: &Nonce) -> bool {
        self.0.len() > client.0.len() && self.0.starts_with(&*client.0)
    }
}

/// The client's first message: its user name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFirst {
    /// The user that the client wants to act as, if not `user`.
    pub authorization: Option<String>,
    /// The user's name.
    pub user: String,
    /// The client's part of the nonce.
    pub nonce: Nonce,
    text: String,
    /// The size of the text's header; both sides sign the rest.
    header_bytes: usize,
}

impl ClientFirst {
    /// Returns a message without channel binding, to act as the user itself.
    pub fn new(user: &str, nonce: &Nonce) -> Self {
        let header = "n,,";
        ClientFirst {
            authorization: None,
            user: user.to_owned(),
            nonce: nonce.clone(),
            text: format!("{header}n={},r={}", escape(user), nonce.as_str()),
            header_bytes: header.len(),
        }
    }

    /// Parses the message.
    ///
    /// # Errors
    /// If it does not follow RFC 5802, or asks for channel binding or an extension.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidMessage> {
        let mut fields = Fields::new("client-first", bytes)?;
        match fields.next() {
            Some("n" | "y") => {}
            Some(flag) if flag.starts_with("p=") => {
                return Err(fields.invalid("channel binding is not supported"));
            }
            _ => return Err(fields.invalid("it must begin with n or y")),
        }
        let authorization = match fields.next() {
            Some("") => None,
            Some(field) => Some(fields.name(field.strip_prefix("a="))?),
            None => return Err(fields.invalid("the second comma is missing")),
        };
        let header_bytes = fields.position;
        fields.refuse_mandatory_extension()?;
        let user = fields.attribute("n=");
        let user = fields.name(user)?;
        let nonce = fields.nonce()?;
        fields.skip_extensions()?;
        Ok(ClientFirst {
            authorization,
            user,
            nonce,
            header_bytes,
            text: fields.text.to_owned(),
        })
    }

    /// Returns the whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn header(&self) -> &str {
        &self.text[..self.header_bytes]
    }

    fn bare(&self) -> &str {
        &self.text[self.header_bytes..]
    }
}

/// The server's first message: the inputs of the client's proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFirst {
    /// Both parts of the nonce.
    pub nonce: Nonce,
    /// The user's salt.
    pub salt: Vec<u8>,
    /// The number of times that the password was hashed.
    pub iterations: Iterations,
    text: String,
}

impl ServerFirst {
    /// Returns a message with both parts of the nonce.
    pub fn new(nonce: Nonce, salt: &[u8], iterations: Iterations) -> Self {
        let text = format!(
            "r={},s={},i={iterations}",
            nonce.as_str(),
            BASE64.encode(salt)
        );
        ServerFirst {
            nonce,
            salt: salt.to_owned(),
            iterations,
            text,
        }
    }

    /// Parses the message.
    ///
    /// # Errors
    /// If it does not follow RFC 5802, or asks for an extension.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidMessage> {
        let mut fields = Fields::new("server-first", bytes)?;
        fields.refuse_mandatory_extension()?;
        let nonce = fields.nonce()?;
        let salt = fields.base64("s=", "the salt is missing or not base64")?;
        let iterations = fields
            .attribute("i=")
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok())
            .filter(|count| *count > 0)
            .ok_or(fields.invalid("the count of iterations is missing or no number"))?;
        fields.skip_extensions()?;
        Ok(ServerFirst {
            nonce,
            salt,
            iterations: Iterations(iterations),
            text: fields.text.to_owned(),
        })
    }

    /// Returns the whole text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// The client's last message: its proof that it has the password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFinal {
    /// Both parts of the nonce.
    pub nonce: Nonce,
    /// See [`SaltedPassword::proof`](super::SaltedPassword::proof).
    pub proof: Key,
    /// The header of [`ClientFirst`], repeated.
    header: Vec<u8>,
    without_proof: String,
}

impl ClientFinal {
    /// Returns a message with an empty proof. The proof signs the rest of the message.
    pub(super) fn without_proof(client_first: &ClientFirst, server_first: &ServerFirst) -> Self {
        let header = client_first.header();
        let nonce = server_first.nonce.clone();
        ClientFinal {
            without_proof: format!("c={},r={}", BASE64.encode(header), nonce.as_str()),
            header: header.into(),
            nonce,
            proof: Key::from(&[][..]),
        }
    }

    /// Parses the message.
    ///
    /// # Errors
    /// If it does not follow RFC 5802.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidMessage> {
        let mut fields = Fields::new("client-final", bytes)?;
        let header = fields.base64("c=", "the channel binding is missing or not base64")?;
        let nonce = fields.nonce()?;
        // Extensions stand before the proof, which is the last field.
        let text = fields.text;
        let (without_proof, _) = text
            .rsplit_once(",p=")
            .filter(|(before, _)| before.len() + 1 >= fields.position)
            .ok_or(fields.invalid("the proof is missing"))?;
        while fields.position < without_proof.len() {
            fields.extension()?;
        }
        let proof = fields.base64("p=", "the proof is not base64")?;
        if fields.next().is_some() {
            return Err(fields.invalid("something follows the proof"));
        }
        Ok(ClientFinal {
            nonce,
            proof: Key::from(proof.as_slice()),
            header,
            without_proof: without_proof.to_owned(),
        })
    }

    /// Returns the whole text.
    pub fn text(&self) -> String {
        let proof = BASE64.encode(self.proof.as_bytes());
        format!("{},p={proof}", self.without_proof)
    }

    /// Returns whether it repeats the header of the client's first message, as it must.
    pub fn repeats_header_of(&self, first: &ClientFirst) -> bool {
        self.header == first.header().as_bytes()
    }
}

/// The server's last message: its proof that it knows the user, or an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerFinal {
    /// See [`Credential::signature`](super::Credential::signature).
    Signature(Key),
    /// An error of RFC 5802, section 7.
    Error(String),
}

impl ServerFinal {
    /// Parses the message.
    ///
    /// # Errors
    /// If it does not follow RFC 5802.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidMessage> {
        let mut fields = Fields::new("server-final", bytes)?;
        let message = match fields.text.strip_prefix("e=") {
            Some(_) => {
                let error = fields.attribute("e=").unwrap_or_default();
                ServerFinal::Error(error.to_owned())
            }
            None => {
                let signature = fields.base64("v=", "the signature is missing or not base64")?;
                ServerFinal::Signature(Key::from(signature.as_slice()))
            }
        };
        fields.skip_extensions()?;
        Ok(message)
    }

    /// Returns the whole text.
    pub fn text(&self) -> String {
        match self {
            ServerFinal::Signature(key) => format!("v={}", BASE64.encode(key.as_bytes())),
            ServerFinal::Error(error) => format!("e={error}"),
        }
    }
}

/// The text that both sides sign: all messages, without the proof.
pub struct ScramExchange(String);

impl ScramExchange {
    /// Returns the text of these messages.
    pub fn new(client: &ClientFirst, server: &ServerFirst, client_final: &ClientFinal) -> Self {
        ScramExchange([client.bare(), server.text(), &client_final.without_proof].join(","))
    }

    pub(super) fn sign(&self, hash: Hash, key: &Key) -> Key {
        hash.hmac(key.as_bytes(), self.0.as_bytes())
    }
}

impl fmt::Debug for ScramExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScramExchange(…)")
    }
}

/// Reads the fields of a message one after another. No value has a comma in it.
struct Fields<'a> {
    message: &'static str,
    text: &'a str,
    /// The start of the next field; one behind the end of the text if there is none.
    position: usize,
}

impl<'a> Fields<'a> {
    fn new(message: &'static str, bytes: &'a [u8]) -> Result<Self, InvalidMessage> {
        let invalid = |what| InvalidMessage { message, what };
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(invalid("it is too long"));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| invalid("it is not UTF-8"))?;
        if text.contains('\0') {
            return Err(invalid("it has a zero byte"));
        }
        Ok(Fields {
            message,
            text,
            position: 0,
        })
    }

    fn invalid(&self, what: &'static str) -> InvalidMessage {
        InvalidMessage {
            message: self.message,
            what,
        }
    }

    fn next(&mut self) -> Option<&'a str> {
        let field = self.text.get(self.position..)?.split(',').next()?;
        self.position += field.len() + 1;
        Some(field)
    }

    /// Returns the value of the next field, if it has this name.
    fn attribute(&mut self, name: &str) -> Option<&'a str> {
        self.next()?.strip_prefix(name)
    }

    fn name(&self, value: Option<&str>) -> Result<String, InvalidMessage> {
        let value = value.ok_or(self.invalid("the user's name is missing"))?;
        unescape(value).ok_or(self.invalid("the user's name has a = that is not =2C or =3D"))
    }

    fn nonce(&mut self) -> Result<Nonce, InvalidMessage> {
        self.attribute("r=")
            .filter(|nonce| !nonce.is_empty() && nonce.bytes().all(|byte| byte.is_ascii_graphic()))
            .map(|nonce| Nonce(nonce.into()))
            .ok_or(self.invalid("the nonce is missing or not printable"))
    }

    fn base64(&mut self, name: &str, what: &'static str) -> Result<Vec<u8>, InvalidMessage> {
        let bytes = self.attribute(name).map(|text| BASE64.decode(text));
        bytes.and_then(Result::ok).ok_or(self.invalid(what))
    }

    /// Refuses an extension that a peer must understand (`m=`), since none is defined.
    fn refuse_mandatory_extension(&self) -> Result<(), InvalidMessage> {
        let rest = self.text.get(self.position..).unwrap_or_default();
        match rest.starts_with("m=") {
            true => Err(self.invalid("it asks for an extension that is not supported")),
            false => Ok(()),
        }
    }

    /// Skips the extensions that a peer may ignore.
    fn skip_extensions(&mut self) -> Result<(), InvalidMessage> {
        while self.position <= self.text.len() {
            self.extension()?;
        }
        Ok(())
    }

    /// Skips one extension. Its name may have several letters, since Kafka's clients write longer names.
    fn extension(&mut self) -> Result<(), InvalidMessage> {
        let (name, value) = self
            .next()
            .and_then(|field| field.split_once('='))
            .unwrap_or_default();
        let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphabetic());
        match is_name && !value.is_empty() {
            true => Ok(()),
            false => Err(self.invalid("an extension is not a name and a value")),
        }
    }
}

/// Escapes the commas and equals signs of a name.
fn escape(name: &str) -> String {
    name.replace('=', "=3D").replace(',', "=2C")
}

fn unescape(text: &str) -> Option<String> {
    let mut parts = text.split('=');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let (character, rest) = match (part.strip_prefix("2C"), part.strip_prefix("3D")) {
            (Some(rest), _) => (',', rest),
            (_, Some(rest)) => ('=', rest),
            _ => return None,
        };
        name.push(character);
        name.push_str(rest);
    }
    Some(name)
}
