use super::*;
use crate::{
    proto::{Message, Messages},
    text,
};

fn key() -> Key {
    Key::new([7; 32])
}

/// Returns the client's outcome for the answers of `daemon`.
fn outcome(legacy: bool, daemon: impl FnMut(&Messages) -> Vec<u8>) -> Result<Vec<u8>, String> {
    let mut daemon = daemon;
    let cipher = Cipher::new(key(), legacy);
    let reply = cipher.exchange(b"content", true, |request| Ok(daemon(&decode(request).unwrap())));
    reply.map(|content| content.to_vec()).map_err(|error| error.to_string())
}

fn told(text: &str) -> Vec<u8> {
    text::parse::<Messages>(text).unwrap().write_to_bytes().unwrap()
}

fn field(request: &Messages) -> &[u8] {
    request.encrypted.xchacha20_poly1305()
}

/// The reply to the request with `nonce`.
fn sealed(nonce: &[u8], content: &str) -> Vec<u8> {
    let content = text::parse::<Sealed>(content).unwrap().write_to_bytes().unwrap();
    let field = Keys::of(&key()).reply.seal(&[1; 24], nonce, &content).unwrap();
    encode(Encrypted { xchacha20_poly1305: Some(field), ..Default::default() }).unwrap()
}

fn opened(request: &Messages) -> Sealed {
    decode(&Keys::of(&key()).request.open(b"", field(request)).unwrap().1).unwrap()
}

const EPOCH: &str = "refusal { code: EPOCH } epoch: \"e\"";

#[test]
fn it_asks_for_the_epoch_first() {
    let cipher = Cipher::new(key(), false);
    let mut asked = Vec::new();
    for _ in 0..2 {
        let reply = cipher.exchange(b"content", true, |request| {
            let request: Messages = decode(request).unwrap();
            let opened = opened(&request);
            asked.push((opened.epoch.clone(), opened.messages.clone()));
            assert!(opened.time().abs_diff(now()) < 10_000);
            Ok(sealed(
                &field(&request)[..24],
                if opened.epoch.is_some() { "messages: \"reply\"" } else { EPOCH },
            ))
        });
        assert_eq!(reply.unwrap().as_slice(), b"reply");
    }
    let known = (Some(b"e".to_vec()), Some(b"content".to_vec()));
    assert_eq!(asked, [(None, None), known.clone(), known], "once; content only for an epoch");
}

/// An attacker in between passes a request to its daemon, keeps the reply, and passes the request
/// to another daemon with that key.
#[test]
fn what_changes_something_is_sent_once() {
    for (only_asks, times) in [(false, 1), (true, 3)] {
        let cipher = Cipher::new(key(), false);
        let mut carried_out = 0;
        let mut epochs = ["a", "b", "c"].into_iter();
        let mut epoch = epochs.next();
        let reply = cipher.exchange(b"nic_del", only_asks, |request| {
            let request: Messages = decode(request).unwrap();
            let opened = opened(&request);
            let known = opened.epoch.as_deref() == epoch.map(str::as_bytes);
            carried_out += usize::from(known);
            if known && epochs.len() > 0 {
                epoch = epochs.next();
            } else if known {
                return Ok(sealed(&field(&request)[..24], "messages: \"done\""));
            }
            let refused = format!("refusal {{ code: EPOCH }} epoch: {:?}", epoch.unwrap());
            Ok(sealed(&field(&request)[..24], &refused))
        });
        assert_eq!(carried_out, times);
        match only_asks {
            true => assert_eq!(reply.unwrap().as_slice(), b"done"),
            false => {
                assert!(matches!(reply, Err(ClientError::Encryption(EncryptionError::NewEpoch))))
            }
        }
    }
}

/// An attacker in between can write these.
#[test]
fn replies_that_are_not_taken() {
    let clear = "messages { revision: 6 message_0 { response { status { status: true } } } }";
    let rejected = "messages { revision: 6 error { code: REJECTED } }";
    for legacy in [false, true] {
        for (reply, error) in [
            (told(clear), "the reply is not encrypted"),
            (told(rejected), "the reply is not encrypted"),
            (vec![8, 6, 0x12, 2, 8, 0], "the reply is not encrypted"),
            (vec![], "the reply is not encrypted"),
            (told("encrypted { error { code: REJECTED } }"), "encrypted message error"),
            (told("encrypted { error { } }"), "encrypted message error"),
            (
                told(&format!("encrypted {{ error {{ code: REJECTED }} }} {clear}")),
                "encrypted message error",
            ),
            (told(&format!("encrypted {{ }} {clear}")), "nothing recognized in encrypted response"),
        ] {
            assert_eq!(
                outcome(legacy, |_| reply.clone()).unwrap_err(),
                error,
                "legacy {legacy}: {reply:?}"
            );
        }
        // The request itself: the original's form has nothing against it, but it is no response.
        let reflected = outcome(legacy, |request| request.write_to_bytes().unwrap());
        assert_eq!(
            reflected,
            if legacy { Ok(b"content".to_vec()) } else { Err("cannot decrypt message".into()) }
        );
        // The reply in the other form.
        let other = match legacy {
            true => sealed(&[1; 24], "messages: \"reply\""),
            false => encode(Encrypted {
                aes256cbc_sha512: Some(legacy::seal(&key(), [0; 16], b"reply")),
                ..Default::default()
            })
            .unwrap(),
        };
        assert_eq!(
            outcome(legacy, |_| other.clone()).unwrap_err(),
            "nothing recognized in encrypted response"
        );
    }
    // Told apart, so that the person at the keyboard can be.
    let cipher = Cipher::new(key(), false);
    let error = cipher.exchange(b"", true, |_| Ok(told(rejected))).unwrap_err();
    assert!(matches!(
        error,
        ClientError::Encryption(EncryptionError::ClearReply(Some(error::Code::REJECTED)))
    ));
}

#[test]
fn sealed_replies() {
    for (what, reply, expected) in [
        ("content", "messages: \"reply\"", Ok("reply")),
        ("empty content", "messages: \"\"", Ok("")),
        ("nothing", "", Err("nothing recognized in encrypted response")),
        (
            "a refusal",
            "refusal { code: CLOCK help: \"too late\" } messages: \"reply\"",
            Err("too late"),
        ),
        ("no epoch", "refusal { code: EPOCH }", Err("nothing recognized in encrypted response")),
        (
            "one epoch after the other",
            EPOCH,
            Err("the daemon asked 4 times to seal the request again"),
        ),
    ] {
        let outcome = outcome(false, |request| sealed(&field(request)[..24], reply));
        assert_eq!(
            outcome,
            expected.map(|text| text.as_bytes().to_vec()).map_err(str::to_owned),
            "{what}"
        );
    }
    // The reply to another request, however good it was.
    let other = outcome(false, |_| sealed(&[9; 24], "messages: \"reply\""));
    assert_eq!(other.unwrap_err(), "cannot decrypt message");
    // One that was good, again.
    let mut first = None;
    let again = outcome(false, |request| {
        first.get_or_insert_with(|| sealed(&field(request)[..24], EPOCH)).clone()
    });
    assert_eq!(again.unwrap_err(), "cannot decrypt message");
}

#[test]
fn legacy_replies() {
    let reply = |key: &Key, iv| {
        encode(Encrypted {
            aes256cbc_sha512: Some(legacy::seal(key, iv, b"reply")),
            ..Default::default()
        })
        .unwrap()
    };
    let good = outcome(true, |request| {
        assert_eq!(
            legacy::open(&key(), request.encrypted.aes256cbc_sha512()).unwrap().as_slice(),
            b"content"
        );
        assert!(request.encrypted.xchacha20_poly1305.is_none());
        reply(&key(), [1; 16])
    });
    assert_eq!(good.unwrap(), b"reply");
    assert_eq!(
        outcome(true, |_| reply(&Key::new([8; 32]), [1; 16])).unwrap_err(),
        "cannot decrypt message"
    );
}

#[test]
fn nothing_is_printed_of_a_key() {
    assert_eq!(format!("{:?}", Cipher::new(key(), true)), "Cipher { legacy: true, .. }");
}

#[test]
fn a_bare_message_within_is_understood() {
    let reply = crate::client::decode_reply(&[8, 6, 0x12, 2, 8, 0]).unwrap();
    let Message { error, .. } = &reply.messages[0];
    assert_eq!(error.code(), error::Code::PARSE_ERROR);
}
