//! Checkpoints: a memory file and the texts in it, as a successor finds them after a crash.

use std::{net::IpAddr, os::fd::AsFd};

use butterfly_datapath::{Former, Mac, SessionConfig, TunnelConfig, VnicPolicy, harness::Host};
use butterfly_mem::halves::HalvesFile;
use butterfly_packet::build;
use butterfly_vhost::net::NetHeader;

use crate::input::Input;

const HALF: usize = 4096;
const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// One byte of choices, then a text for each bit of it, or bytes of the file.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    if choice & 8 != 0 {
        file(&mut input);
        return;
    }
    let mut host = host();
    let text = here_and_now(input.rest(), &host);
    let given = |bit: u8| if choice & bit != 0 { &*text } else { &[] };
    let former = Former { counters: given(1), rules: given(2), stations: given(4) };
    host.take_over(former).expect("a worker");
    // With anything taken over, a frame finds its way, and all of it can be noted again.
    for to in [MAC, Mac::BROADCAST, Mac([6, 5, 4, 3, 2, 1])] {
        let frame = build::ethernet(MAC, to).payload(0x88b5, &[0; 46]);
        host.send("a", &frame, NetHeader::default()).expect("room in the ring");
    }
    host.pass(1);
    let notes =
        [host.note_counters(1 << 20), host.note_rules(1 << 20), host.note_stations(1 << 20)];
    let [counters, rules, stations] = notes.each_ref().map(|noted| &*noted.text);
    let taken = self::host().take_over(Former { counters, rules, stations }).expect("a worker");
    assert!(taken.problems.is_empty(), "{taken}");
    assert!(host.observe().vnics.len() == 2);
}

/// Puts the second of now where the input says `@`, and this start of the host where it says `~`:
/// an input cannot know them.
fn here_and_now(input: &[u8], host: &Host) -> Vec<u8> {
    let own = host.note_stations(1 << 20).text;
    let begin = own.iter().position(|byte| *byte == b'[').unwrap_or(0);
    let end = own.iter().position(|byte| *byte == b']').map_or(0, |at| at + 1);
    let (now, boot) = (host.now().to_string(), own.get(begin..end).unwrap_or_default());
    let mut text = Vec::new();
    for byte in input {
        match byte {
            b'@' => text.extend_from_slice(now.as_bytes()),
            b'~' => text.extend_from_slice(boot),
            byte => text.push(*byte),
        }
    }
    text
}

fn host() -> Host {
    let endpoint = TunnelConfig::new(IpAddr::from([192, 168, 0, 1]), Mac([2, 1, 0, 0, 0, 1]));
    let sessions = SessionConfig { capacity: 64, ..SessionConfig::default() };
    let mut host = Host::with_tunnel(sessions, Some(&endpoint)).expect("a host");
    let bypass = VnicPolicy { bypass: true, ..VnicPolicy::default() };
    host.vnic("a", MAC, 42, &bypass).expect("a vnic");
    let filtered = VnicPolicy::default();
    host.declare("b", Mac([2, 0, 0, 0, 0, 2]), 42, &filtered).expect("a vnic");
    host
}

/// Any content of the file: no fault, and the next text is written and read all the same.
fn file(input: &mut Input<'_>) {
    let file = HalvesFile::create("fuzz", 2 * HALF as u64).expect("a memory file");
    let bytes = input.bytes(2 * HALF);
    let _ = rustix::io::pwrite(file.as_fd(), bytes, 0);
    let mut halves = file.halves(0, HALF);
    if let Some(newest) = halves.newest() {
        assert!(newest.text.len() <= halves.room());
    }
    halves.write(b"the next text").expect("room");
    assert_eq!(halves.newest().expect("the text").text, b"the next text");
}
