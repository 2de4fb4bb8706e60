//! `-k`: nothing leaves in clear text, and nothing comes back in it.

use crate::support::{Daemon, answer};
use butterfly_api::{proto::Messages, text};
use std::fs;

const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";

fn daemon() -> Daemon {
    let daemon = Daemon::new();
    fs::write(daemon.path("key"), KEY).unwrap();
    fs::write(daemon.path("short"), "AAEC\n").unwrap();
    daemon
}

/// Nothing is sent, for any command, wherever in a chain the key is named.
#[test]
fn without_its_key_nothing_is_sent() {
    let daemon = daemon();
    let absent = "cannot load encryption key\nkey file \"absent\": No such file or directory (os error 2); \
                  `openssl rand -base64 32` makes a key\nnothing was sent\n";
    let short = "cannot load encryption key\nkey file \"short\" is base64, but not of 32 bytes; a key is one line, the base64 of 32 \
                 bytes, as `openssl rand -base64 32` makes it\nnothing was sent\n";
    let no_key = "--legacy-encryption says how to encrypt, and there is no key; name one with -k PATH\nnothing was sent\n";
    for (line, err, command) in [
        ("nic list @ -k absent", absent, "nic"),
        ("nic list @ --key absent", absent, "nic"),
        ("nic list @ -k short", short, "nic"),
        ("nic list @ + nic list -k absent", absent, "nic"),
        ("nic list @ -k absent --legacy-encryption", absent, "nic"),
        ("nic list @ --legacy-encryption", no_key, "nic"),
        ("events --follow @ -k absent", absent, "events"),
        ("explain --from a --to b --far-endpoint tcp://127.0.0.1:1 @ -k absent", absent, "explain"),
        ("trace all @ -k absent", absent, "trace"),
        ("capture all -w - @ -k absent", absent, "capture"),
        ("top --once @ -k absent", absent, "top"),
        ("dump @ -k absent", absent, "dump"),
    ] {
        let ended = daemon.start(line).end();
        daemon.assert_silent(line);
        let err = format!("{err}error in command: {command}\n");
        assert_eq!(
            (ended.out.as_str(), ended.err.as_str(), ended.code),
            ("", err.as_str(), Some(1)),
            "{line}"
        );
    }
}

#[test]
fn what_is_sent_is_encrypted() {
    for line in [
        "nic list @ -k key",
        "events --follow @ -k key",
        "top --once @ -k key",
        "trace all @ -k key",
        "dump @ -k key",
    ] {
        for legacy in [false, true] {
            let line = if legacy { format!("{line} --legacy-encryption") } else { line.to_owned() };
            let daemon = daemon();
            let _client = daemon.start(&line);
            let request = daemon.receive(&line);
            assert!(request.messages.is_empty(), "{line}");
            let encrypted = &request.encrypted;
            assert_eq!(
                (encrypted.aes256cbc_sha512.is_some(), encrypted.xchacha20_poly1305.is_some()),
                (legacy, !legacy),
                "{line}"
            );
        }
    }
}

#[test]
fn replies_that_are_not_taken() {
    const WITHOUT: &str = "Error, the reply is not encrypted, and was not read\nhelp: a daemon without a key answers so: \
                           start butterflyd with -k, or leave out -k here";
    const WHOSE: &str = "Error, the reply is not encrypted, and was not read\nhelp: anybody between may have written it: \
                         is the endpoint that of a butterflyd with a key?";
    let old = "Encrypted message error: NOT_SUPPORTED\nhelp: the daemon does not take this encryption: one of butterfly 0.13 wants \
               --legacy-encryption, one with --no-legacy-encryption does not want it; anybody between can write this answer: if the daemon is not 0.13, \
               leave that option out and look for who is between";
    let parse = |reply: &str| text::parse::<Messages>(reply).unwrap();
    for (reply, err) in [
        (answer(&["nic_list: \"a\""]), WHOSE),
        (parse("messages { revision: 6 error { code: REJECTED } }"), WITHOUT),
        (parse("messages { revision: 6 error { code: PARSE_ERROR } }"), WHOSE),
        (parse("encrypted { error { code: NOT_SUPPORTED } }"), old),
        (
            parse("encrypted { error { code: REJECTED } }"),
            "Encrypted message error: REJECTED\nhelp: the daemon cannot read the request: is this its key?",
        ),
        (parse("encrypted { error { } }"), "Encrypted message error: no code"),
        (parse("encrypted { xchacha20_poly1305: \"noise\" aes256cbc_sha512: \"noise\" }"), ""),
    ] {
        for legacy in ["", " --legacy-encryption"] {
            let daemon = daemon();
            let line = format!("nic list @ -k key{legacy}");
            let mut client = daemon.start(&line);
            daemon.receive(&line);
            daemon.send(&reply);
            let ended = client.end();
            daemon.assert_silent(&line);
            let undecryptable = "Error, cannot decrypt message\nhelp: the reply was not made with this key, or not to this request: \
                                 somebody between may have changed it";
            let err = format!(
                "{}\nerror in command: nic\n",
                if err.is_empty() { undecryptable } else { err }
            );
            assert_eq!(
                (ended.out.as_str(), ended.err.as_str(), ended.code),
                ("", err.as_str(), Some(1)),
                "{line}"
            );
        }
    }
}
