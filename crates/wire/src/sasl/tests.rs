use proptest::prelude::*;

use super::*;

const SALT: [u8; 16] = [
    0x5b, 0x6d, 0x99, 0x68, 0x9d, 0x12, 0x35, 0x8e, 0xec, 0xa0, 0x4b, 0x14, 0x12, 0x36, 0xfa, 0x81,
];

const CLIENT_FIRST: &str = "n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
const SERVER_FIRST: &str =
    "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
const CLIENT_FINAL: &str = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";

/// RFC 7677, section 3.
const SHA_256: [&str; 2] = [
    "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
];

/// The same exchange with SHA-512, calculated with another implementation of HMAC and PBKDF2.
const SHA_512: [&str; 2] = [
    "gMGXRcevScNtxZ6/8lQYpGtnsNAc3mGcmNomv+xnoOMw+3R2xNJdMNnzMlTN8PPC6wdp6dybEmDYXYTxwnYPJQ==",
    "ZQnYEgWQMFmmsM8aQMF0nDDCy/AgCzkwk8CmMZYcMg0vSVlKDanekLtifDSeVGT4+5ZxXnJq199RVG2rR7N7Zw==",
];

#[test]
fn server_agrees_with_the_rfc() {
    for (hash, [proof, signature]) in [(Hash::Sha256, SHA_256), (Hash::Sha512, SHA_512)] {
        let credential = Credential::new(hash, "pencil", &SALT, Iterations(4096));
        assert!(credential.is_of("pencil"));
        assert!(!credential.is_of("pencils"));

        let client_first = ClientFirst::parse(CLIENT_FIRST.as_bytes()).unwrap();
        assert_eq!(
            (&*client_first.user, &client_first.authorization),
            ("user", &None)
        );
        let server_first = ServerFirst::parse(SERVER_FIRST.as_bytes()).unwrap();
        let written = ServerFirst::new(server_first.nonce.clone(), &SALT, Iterations(4096));
        assert_eq!(written, server_first);

        let client_final = format!("{CLIENT_FINAL},p={proof}");
        let client_final = ClientFinal::parse(client_final.as_bytes()).unwrap();
        assert!(client_final.repeats_header_of(&client_first));
        assert_eq!(client_final.nonce, server_first.nonce);
        let exchange = ScramExchange::new(&client_first, &server_first, &client_final);
        assert!(credential.is_proved_by(&client_final.proof, &exchange));
        let server_final = ServerFinal::Signature(credential.signature(&exchange));
        assert_eq!(server_final.text(), format!("v={signature}"));

        let other = Credential::new(hash, "pencils", &SALT, Iterations(4096));
        assert!(!other.is_proved_by(&client_final.proof, &exchange));
        assert!(!credential.is_proved_by(&Key::from(&[][..]), &exchange));
    }
}

#[test]
fn client_agrees_with_the_rfc() {
    for (hash, [proof, signature]) in [(Hash::Sha256, SHA_256), (Hash::Sha512, SHA_512)] {
        let client = proved(hash, SERVER_FIRST, &format!("{CLIENT_FINAL},p={proof}"));
        let done = client.answer(format!("v={signature}").as_bytes());
        assert!(matches!(done, Ok(Progress::Done)), "{done:?}");

        let client = proved(hash, SERVER_FIRST, &format!("{CLIENT_FINAL},p={proof}"));
        let [other, _] = [proof, signature];
        let refused = client.answer(format!("v={other}").as_bytes()).unwrap_err();
        assert_eq!(refused, ClientError::WrongSignature);

        let client = proved(hash, SERVER_FIRST, &format!("{CLIENT_FINAL},p={proof}"));
        let refused = client.answer(b"e=unknown-user,x=y").unwrap_err();
        assert_eq!(refused, ClientError::Refused("unknown-user".to_owned()));
    }
}

#[track_caller]
fn proved(hash: Hash, server_first: &str, expected: &str) -> Client {
    match started(hash).answer(server_first.as_bytes()) {
        Ok(Progress::Send(client, bytes)) => {
            assert_eq!(std::str::from_utf8(&bytes).unwrap(), expected);
            client
        }
        other => panic!("{other:?}"),
    }
}

/// Returns the message with the nonce of the RFC, which does not come from random bytes.
fn started(hash: Hash) -> Client {
    let message = ClientFirst::parse(CLIENT_FIRST.as_bytes()).unwrap();
    let nonce = message.nonce;
    let mechanism = Mechanism::Scram(hash);
    let (client, bytes) = Client::start(mechanism, "user", "pencil", &nonce).unwrap();
    assert_eq!(bytes, CLIENT_FIRST);
    client
}

#[test]
fn client_refuses_bad_answers_of_the_server() {
    let answer = |text: &str| started(Hash::Sha256).answer(text.as_bytes()).unwrap_err();
    let own = "r=rOprNGfwEbeRWgbNEkqO";
    let salt = "s=W22ZaJ0SNY7soEsUEjb6gQ==";
    assert_eq!(
        answer(&format!("{own},{salt},i=4096")),
        ClientError::OtherNonce
    );
    assert_eq!(
        answer(&format!("r=elsewhere,{salt},i=4096")),
        ClientError::OtherNonce
    );
    for count in [1, 4095, 1_000_001, u32::MAX] {
        let refused = answer(&format!("{own}more,{salt},i={count}"));
        assert_eq!(refused, ClientError::Iterations(Iterations(count)));
    }
    for text in [
        "",
        "e=other-error",
        "v=abcd",
        &format!("m=ext,{own}more,{salt},i=4096"),
        &format!("{own}more,{salt}"),
        &format!("{own}more,{salt},i=+4096"),
        &format!("{own}more,{salt},i=0"),
        &format!("{own}more,{salt},i=99999999999"),
        &format!("{own}more,s=W22Z*,i=4096"),
        &format!("{own}mo re,{salt},i=4096"),
        &format!("{own}more,{salt},i=4096,"),
        &format!("{own}more,{salt},i=4096,x"),
    ] {
        let refused = answer(text);
        assert!(
            matches!(refused, ClientError::Invalid(_)),
            "{text}: {refused}"
        );
    }
}

/// A client with a refused token took itself for logged in.
#[test]
fn client_asks_for_the_error_of_a_refused_token() {
    let start = || Client::start_with_token("a.b.c").unwrap().0;
    assert!(matches!(start().answer(b""), Ok(Progress::Done)));

    let why = r#"{"status":"invalid_token"}"#;
    let Ok(Progress::Send(client, bytes)) = start().answer(why.as_bytes()) else {
        panic!("the server waits for an answer");
    };
    assert_eq!(bytes, &b"\x01"[..]);
    // The server should have failed the login by now.
    let refused = client.answer(b"").unwrap_err();
    assert_eq!(refused, ClientError::RefusedToken(why.to_owned()));
}

#[test]
fn client_refuses_names_and_passwords_that_sasl_cannot_send() {
    let nonce = Nonce::from_random(&[0; NONCE_BYTES]);
    for (user, password) in [
        ("", "secret"),
        ("alice", ""),
        ("al\0ice", "secret"),
        ("alice", "\0"),
    ] {
        for mechanism in Mechanism::PASSWORDS {
            let refused = Client::start(mechanism, user, password, &nonce).unwrap_err();
            assert_eq!(refused, ClientError::Unfit);
        }
    }
}

#[test]
fn names_are_escaped() {
    #[track_caller]
    fn check(name: &str, escaped: &str) {
        let nonce = Nonce::from_random(&[7; NONCE_BYTES]);
        let message = ClientFirst::new(name, &nonce);
        assert!(
            message.text().starts_with(&format!("n,,n={escaped},r=")),
            "{message:?}"
        );
        let read = ClientFirst::parse(message.text().as_bytes()).unwrap();
        assert_eq!(read, message);
    }
    check("alice", "alice");
    check("a,b", "a=2Cb");
    check("a=b", "a=3Db");
    check("=2C", "=3D2C");
    check(",=,=", "=2C=3D=2C=3D");
    check("Dvořák", "Dvořák");
}

#[test]
fn client_first_may_have_optional_fields() {
    let message = ClientFirst::parse(b"y,a=bo=2Cb,n=alice,r=abc,tokenauth=true,x=1=2").unwrap();
    assert_eq!(message.authorization.as_deref(), Some("bo,b"));
    assert_eq!(message.user, "alice");
    assert_eq!(message.nonce.as_str(), "abc");
}

#[test]
fn client_first_is_refused() {
    for (text, expected) in [
        ("", "it must begin with n or y"),
        ("x,,n=a,r=b", "it must begin with n or y"),
        ("p=tls-unique,,n=a,r=b", "channel binding is not supported"),
        ("n", "the second comma is missing"),
        ("n,b,n=a,r=b", "the user's name is missing"),
        ("n,,r=b", "the user's name is missing"),
        (
            "n,,m=x,n=a,r=b",
            "it asks for an extension that is not supported",
        ),
        (
            "n,,n=a=2c,r=b",
            "the user's name has a = that is not =2C or =3D",
        ),
        (
            "n,,n=a=,r=b",
            "the user's name has a = that is not =2C or =3D",
        ),
        ("n,,n=a", "the nonce is missing or not printable"),
        ("n,,n=a,r=", "the nonce is missing or not printable"),
        ("n,,n=a,r=ž", "the nonce is missing or not printable"),
        ("n,,n=a,r=b,", "an extension is not a name and a value"),
        ("n,,n=a,r=b,x=", "an extension is not a name and a value"),
        ("n,,n=a,r=b\0", "it has a zero byte"),
    ] {
        let refused = ClientFirst::parse(text.as_bytes()).unwrap_err();
        assert_eq!(refused.what, expected, "{text}");
    }
    assert_eq!(
        ClientFirst::parse(b"n,,n=\xff,r=b").unwrap_err().what,
        "it is not UTF-8"
    );
    let long = format!("n,,n={},r=b", "a".repeat(MESSAGE_BYTES_MAX));
    assert_eq!(
        ClientFirst::parse(long.as_bytes()).unwrap_err().what,
        "it is too long"
    );
}

#[test]
fn client_final_is_refused() {
    for (text, expected) in [
        ("", "the channel binding is missing or not base64"),
        (
            "c=b*,r=b,p=AAAA",
            "the channel binding is missing or not base64",
        ),
        ("c=biws,p=AAAA", "the nonce is missing or not printable"),
        ("c=biws,r=b", "the proof is missing"),
        ("c=biws,r=b,p=A", "the proof is not base64"),
        (
            "c=biws,r=b,x,p=AAAA",
            "an extension is not a name and a value",
        ),
        ("c=biws,r=b,p=AAAA,x=y", "something follows the proof"),
    ] {
        let refused = ClientFinal::parse(text.as_bytes()).unwrap_err();
        let also = "something follows the proof";
        assert!(
            [expected, also].contains(&refused.what),
            "{text}: {refused}"
        );
    }
    let more = ClientFinal::parse(b"c=biws,r=b,x=y,p=AAAA").unwrap();
    assert_eq!(more.text(), "c=biws,r=b,x=y,p=AAAA");
    let first = ClientFirst::parse(b"y,,n=user,r=b").unwrap();
    assert!(!more.repeats_header_of(&first));
}

#[test]
fn a_plain_message_has_three_fields() {
    let message = PlainMessage::parse(b"\0alice\0secret").unwrap();
    assert_eq!(
        (message.authorization, message.user, message.password),
        ("", "alice", "secret")
    );
    assert_eq!(message.to_bytes(), b"\0alice\0secret");
    for bytes in [
        &b""[..],
        b"alice\0secret",
        b"\0alice\0secret\0",
        b"\0al\xffice\0secret",
    ] {
        assert!(PlainMessage::parse(bytes).is_err());
    }
    assert!(PlainMessage::parse(&vec![b'a'; MESSAGE_BYTES_MAX + 1]).is_err());
}

#[test]
fn mechanisms_have_names() {
    for mechanism in Mechanism::PASSWORDS {
        assert_eq!(mechanism.to_string().parse(), Ok(mechanism));
    }
    assert_eq!("plain".parse::<Mechanism>(), Err(UnknownMechanism));
    assert_eq!("SCRAM-SHA-1".parse::<Mechanism>(), Err(UnknownMechanism));
}

#[test]
fn keys_have_the_size_of_the_hash() {
    // A salted password is the key of a message authentication code, and any key but an empty one is valid.
    assert!(SaltedPassword::from_bytes(Hash::Sha256, &[]).is_none());
    for size in [1, 31, 64, 1000] {
        let salted = SaltedPassword::from_bytes(Hash::Sha256, &vec![7; size]).unwrap();
        let credential = Credential::of_salted(&salted, &SALT, Iterations(4096));
        assert_eq!(credential.stored_key().as_bytes().len(), 32, "{size}");
    }
    let salted = SaltedPassword::new(Hash::Sha512, "secret", &SALT, Iterations(1));
    assert_eq!(
        SaltedPassword::from_bytes(Hash::Sha512, salted.as_bytes()),
        Some(salted)
    );
    let parts = |stored: &[u8], server: &[u8]| {
        Credential::from_parts(Hash::Sha256, &SALT, Iterations(4096), stored, server)
    };
    assert!(parts(&[0; 31], &[0; 32]).is_none());
    assert!(parts(&[0; 32], &[0; 33]).is_none());
    assert!(parts(&[0; 32], &[0; 32]).is_some());
}

/// Debug output goes into logs, so secrets must not appear in it.
#[test]
fn debug_output_shows_no_secrets() {
    let nonce = Nonce::from_random(&[1; NONCE_BYTES]);
    let salted = SaltedPassword::new(Hash::Sha256, "secret", &SALT, Iterations(1));
    let credential = Credential::of_salted(&salted, &SALT, Iterations(1));
    let client_first = ClientFirst::new("alice", &nonce);
    let server_first = ServerFirst::new(nonce.joined(&nonce), &SALT, Iterations(1));
    let mut client_final = ClientFinal::without_proof(&client_first, &server_first);
    let exchange = ScramExchange::new(&client_first, &server_first, &client_final);
    let keys = [
        salted.proof(&exchange),
        credential.stored_key().clone(),
        credential.server_key().clone(),
        Key::from(salted.as_bytes()),
    ];
    client_final.proof = keys[0].clone();
    let password = Key::from(&b"secret"[..]);
    let (plain, _) = Client::start(Mechanism::Plain, "alice", "secret", &nonce).unwrap();
    let mechanism = Mechanism::Scram(Hash::Sha256);
    let (scram, _) = Client::start(mechanism, "alice", "secret", &nonce).unwrap();
    let message = PlainMessage::parse(b"\0alice\0secret").unwrap();
    let printed = format!(
        "{plain:?} {scram:?} {message:?} {salted:?} {credential:?} {exchange:?} {client_final:?} \
         {keys:?} {password:?} {:?}",
        InvalidMessage {
            message: "PLAIN",
            what: "it is not UTF-8"
        }
    );
    assert!(!printed.contains("secret"), "{printed}");
    for key in &keys {
        let bytes = format!("{:?}", key.as_bytes());
        assert!(
            !printed.contains(bytes.trim_matches(['[', ']'])),
            "{printed}"
        );
    }
}

/// A message of SCRAM with one of its bytes changed, or any text.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let valid = [
        CLIENT_FIRST.to_owned(),
        SERVER_FIRST.to_owned(),
        format!("{CLIENT_FINAL},p={}", SHA_256[0]),
        format!("v={}", SHA_256[1]),
        "\0alice\0secret".to_owned(),
    ];
    let changed = (
        prop::sample::select(valid.to_vec()),
        any::<prop::sample::Index>(),
        any::<u8>(),
    )
        .prop_map(|(text, index, byte)| {
            let mut bytes = text.into_bytes();
            let index = index.index(bytes.len());
            bytes[index] = byte;
            bytes
        });
    prop_oneof![
        changed,
        prop::collection::vec(any::<u8>(), 0..200),
        "[nymarcspiev=,2CD3+/]{0,60}".prop_map(String::into_bytes),
    ]
}

proptest! {
    #[test]
    fn a_damaged_message_is_refused_or_parses_to_the_same_text(bytes in damaged()) {
        let text = std::str::from_utf8(&bytes);
        if let Ok(message) = ClientFirst::parse(&bytes) {
            prop_assert_eq!(Ok(message.text()), text);
        }
        if let Ok(message) = ServerFirst::parse(&bytes) {
            prop_assert_eq!(Ok(message.text()), text);
        }
        if let Ok(message) = ClientFinal::parse(&bytes) {
            let written = message.text();
            prop_assert_eq!(Ok(&*written), text);
        }
        if let Ok(message) = PlainMessage::parse(&bytes) {
            prop_assert_eq!(message.to_bytes(), bytes.clone());
        }
        if let Ok(message) = ServerFinal::parse(&bytes) {
            let written = message.text();
            prop_assert!(bytes.starts_with(written.as_bytes()));
        }
    }

    #[test]
    fn any_user_name_round_trips(name in "[^\0]{1,40}") {
        let message = ClientFirst::new(&name, &Nonce::from_random(&[7; NONCE_BYTES]));
        let read = ClientFirst::parse(message.text().as_bytes()).unwrap();
        prop_assert_eq!(read.user, name);
    }
}
