use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// All that two ranks have for each other, as MPI would take it: frames, and the bytes of long messages.
#[derive(Debug, Clone, PartialEq)]
enum Sent {
    Frame(Vec<u8>),
    Long(Bytes),
}

fn pack_all(parcels: &[Parcel]) -> Vec<Sent> {
    let mut queue: VecDeque<Parcel> = parcels.iter().cloned().collect();
    let mut sent = Vec::new();
    while !queue.is_empty() {
        let (frame, long) = pack(&mut queue);
        assert!(frame.len() <= FRAME_BYTES_MAX);
        sent.push(Sent::Frame(frame));
        sent.extend(long.map(Sent::Long));
    }
    sent
}

fn unpack_all(sent: &[Sent]) -> Result<Vec<Parcel>, BadFrame> {
    let mut unpacker = Unpacker::default();
    let mut parcels = Vec::new();
    for sent in sent {
        match sent {
            Sent::Frame(frame) => unpacker.frame(frame, |parcel| parcels.push(parcel))?,
            Sent::Long(bytes) => parcels.push(unpacker.long(bytes.clone())?),
        }
    }
    Ok(parcels)
}

fn parcel() -> impl Strategy<Value = Parcel> {
    let channel =
        || (any::<u32>(), any::<u32>()).prop_map(|(source, target)| ChannelId { source, target });
    let length = prop_oneof![
        0..100_usize,
        LONG_BYTES - 2..LONG_BYTES + 2,
        0..3 * LONG_BYTES
    ];
    let message =
        (channel(), length, any::<u8>()).prop_map(|(channel, length, byte)| Parcel::Message {
            channel,
            bytes: vec![byte; length].into(),
        });
    let credit =
        (channel(), any::<u64>()).prop_map(|(channel, bytes)| Parcel::Credit { channel, bytes });
    let hello = (any::<[u64; 2]>(), ".{0,300}", 0..DESCRIPTION_BYTES_MAX + 9).prop_map(
        |([random, graph], program, length)| {
            let fingerprint = Fingerprint {
                program,
                graph,
                description: "x".repeat(length),
            };
            Parcel::Hello(Hello::new(random as u32, random, fingerprint))
        },
    );
    let failure = (any::<u32>(), ".{0,2000}")
        .prop_map(|(rank, text)| Parcel::Failure(Failure::new(rank, &text)));
    prop_oneof![4 => message, 4 => credit, 1 => hello, 1 => failure, 1 => Just(Parcel::Leave)]
}

/// Returns the memory that parcels take, which must not exceed the bytes received for them.
fn bytes_of(parcel: &Parcel) -> usize {
    match parcel {
        Parcel::Message { bytes, .. } => bytes.len(),
        Parcel::Hello(hello) => {
            hello.fingerprint.program.len() + hello.fingerprint.description.len()
        }
        Parcel::Failure(failure) => failure.message.len(),
        Parcel::Credit { .. } | Parcel::Leave => 0,
    }
}

fn check_bounded(frame: &[u8]) {
    let mut bytes = 0;
    let _ = Unpacker::default().frame(frame, |parcel| bytes += bytes_of(&parcel));
    assert!(bytes <= frame.len());
}

proptest! {
    #[test]
    fn parcels_round_trip_through_frames(parcels in vec(parcel(), 0..40)) {
        prop_assert_eq!(unpack_all(&pack_all(&parcels)), Ok(parcels));
    }

    #[test]
    fn unpacking_arbitrary_bytes_does_not_panic(bytes in vec(any::<u8>(), 0..400)) {
        check_bounded(&bytes);
        let mut frame = [MAGIC.to_le_bytes(), VERSION.to_le_bytes()].concat();
        frame.extend(bytes.iter().map(|byte| byte % 8));
        check_bounded(&frame);
        frame.extend(bytes);
        check_bounded(&frame);
    }

    #[test]
    fn unpacking_a_damaged_frame_does_not_panic(
        parcels in vec(parcel(), 1..5), at in any::<prop::sample::Index>(), to in any::<u8>()
    ) {
        for sent in pack_all(&parcels) {
            if let Sent::Frame(mut frame) = sent {
                let at = at.index(frame.len());
                frame[at] = to;
                check_bounded(&frame);
            }
        }
    }

    #[test]
    fn a_truncated_frame_is_refused(parcel in parcel(), end in any::<prop::sample::Index>()) {
        for sent in pack_all(&[parcel]) {
            if let Sent::Frame(frame) = sent {
                let end = end.index(frame.len());
                let outcome = unpack_all(&[Sent::Frame(frame[..end].to_vec())]);
                prop_assert!(outcome.is_err() || end == HEADER_BYTES);
            }
        }
    }
}

const CHANNEL: ChannelId = ChannelId {
    source: 1,
    target: 2,
};

fn frame(parts: &[u8]) -> Sent {
    Sent::Frame([&MAGIC.to_le_bytes()[..], &VERSION.to_le_bytes()[..], parts].concat())
}

fn announcement(length: u32) -> Vec<u8> {
    let mut part = Vec::new();
    write_channel(&mut part, ANNOUNCED, CHANNEL);
    part.extend(length.to_le_bytes());
    part
}

#[track_caller]
fn check(sent: &[Sent], expected: BadFrame) {
    assert_eq!(unpack_all(sent), Err(expected));
}

#[test]
fn errors_name_the_fault_of_a_frame() {
    check(&[Sent::Frame(Vec::new())], BadFrame::Magic);
    check(&[Sent::Frame(b"HTTP/1.1 400".to_vec())], BadFrame::Magic);
    let next_version = [MAGIC.to_le_bytes(), 2_u32.to_le_bytes()].concat();
    check(&[Sent::Frame(next_version)], BadFrame::Version(2));
    check(&[frame(&[9])], BadFrame::Kind(9));
    check(&[frame(&[MESSAGE, 1, 2])], BadFrame::CutShort("a channel"));
    let mut not_text = vec![FAILURE, 0, 0, 0, 0, 1, 0, 0, 0];
    not_text.push(0xff);
    check(&[frame(&not_text)], BadFrame::NotText("a failure"));

    let mut long = Vec::new();
    write_channel(&mut long, MESSAGE, CHANNEL);
    long.extend(u32::MAX.to_le_bytes());
    let (what, length, bytes_max) = ("a message", u32::MAX as usize, LONG_BYTES - 1);
    check(
        &[frame(&long)],
        BadFrame::TooLong {
            what,
            length,
            bytes_max,
        },
    );
    let what = "an announced message";
    let too_long = BadFrame::TooLong {
        what,
        length,
        bytes_max: MESSAGE_BYTES_MAX,
    };
    check(&[frame(&announcement(u32::MAX))], too_long);
}

#[test]
fn a_long_message_must_follow_its_announcement() {
    let bytes = Bytes::from(vec![7; 20_000]);
    let announced = frame(&announcement(20_000));
    let message = Parcel::Message {
        channel: CHANNEL,
        bytes: bytes.clone(),
    };
    assert_eq!(
        unpack_all(&[announced.clone(), Sent::Long(bytes.clone())]),
        Ok(vec![message])
    );
    check(&[Sent::Long(bytes.clone())], BadFrame::NotAnnounced);
    check(&[announced.clone(), frame(&[LEAVE])], BadFrame::NotFollowed);
    let shorter = Sent::Long(bytes.slice(1..));
    check(
        &[announced, shorter],
        BadFrame::OtherLength {
            announced: 20_000,
            came: 19_999,
        },
    );
    let goes_on = [announcement(20_000), vec![LEAVE]].concat();
    check(&[frame(&goes_on)], BadFrame::AfterAnnouncement);
}

#[test]
fn small_parcels_share_a_frame() {
    let parcels = vec![
        Parcel::Message {
            channel: CHANNEL,
            bytes: Bytes::from_static(b"12345678")
        };
        1000
    ];
    assert_eq!(pack_all(&parcels).len(), 1);
}
