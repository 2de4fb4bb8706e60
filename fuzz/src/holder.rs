//! The holder: a vnic between hostile front ends and a mad daemon, and the packets between holder
//! and daemon.

use std::{
    fmt::Debug,
    os::fd::{AsFd, OwnedFd},
};

use butterfly_holder::{
    protocol::{self, Answer, Event, Name, Order, Packet, Received, Role, Word},
    server::{read_passed, vnic::harness::Between},
};
use rustix::{
    event::{EventfdFlags, eventfd},
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
};

use crate::input::Input;

/// Most steps of a run.
const STEPS: usize = 400;

/// Packets, what a holder passes on, or steps of front ends, daemons and holders: the first byte
/// says which.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    match input.u8() {
        0 => packet::<Order>(input.rest()),
        1 => packet::<Answer>(input.rest()),
        2 => packet::<Event>(input.rest()),
        3 => packet::<Word>(input.rest()),
        255 => read_passed(input.rest()),
        choice => {
            let role = if choice & 1 == 0 { Role::Server } else { Role::Client };
            Play::new(role).play(&mut input);
        }
    }
}

/// Reads a packet, if it is one, and fails if it is not read again as it was written.
fn packet<P: Packet + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(packet) = P::read(bytes) else { return };
    let mut written = Vec::new();
    packet.write(&mut written);
    assert_eq!(P::read(&written).as_ref(), Ok(&packet));
}

/// A vnic, the ends of its connections, and what its daemon was told.
struct Play {
    between: Between,
    front: Option<OwnedFd>,
    daemon: Option<OwnedFd>,
    /// Number of the last event that was heard.
    heard: u64,
    /// Names of descriptors that came with messages.
    names: Vec<Name>,
}

impl Play {
    fn new(role: Role) -> Play {
        let between = Between::new(role);
        Play { between, front: None, daemon: None, heard: 0, names: Vec::new() }
    }

    fn play(&mut self, input: &mut Input<'_>) {
        for _ in 0..STEPS {
            let Some(step) = input.next() else { break };
            match step % 16 {
                0..4 => self.say(input, step >> 4),
                4 => self.front = self.between.connect().ok(),
                5 => self.front = None,
                6 => self.daemon = self.between.lease().ok(),
                7 => {
                    self.daemon = None;
                    // The end of the channel may be seen first.
                    if step >> 5 & 1 == 1 {
                        self.between.turn();
                    }
                    self.between.lose_daemon(step >> 4 & 1 == 0);
                }
                8 | 9 => self.hear(),
                10..13 => self.done(input, step >> 4),
                13 => self.garbage(input),
                14 if step >> 4 & 1 == 1 => self.between.hand_over().expect("it is passed on"),
                14 => self.word(&Word::Cut { reason: "no".to_owned() }, &[]),
                _ => self.dial(step >> 4),
            }
            self.between.turn();
            assert_eq!(self.between.fault(), None);
        }
    }

    /// The front end says something, with descriptors: as a rule a whole message.
    fn say(&mut self, input: &mut Input<'_>, choice: u8) {
        let Some(front) = &self.front else { return };
        let mut bytes = Vec::new();
        if choice & 8 == 0 {
            let size = u32::from(input.u8());
            let flags = 1 | u32::from(choice & 4) << 1;
            let request = u32::from(input.u8() % 48);
            [request, flags, size].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
            bytes.extend(input.bytes(size as usize));
            bytes.resize(12 + size as usize, 0);
        } else {
            let len = usize::from(input.u8());
            bytes.extend(input.bytes(len));
        }
        let count = [0, 1, 2, 40][usize::from(choice & 3)];
        let files: Vec<OwnedFd> =
            (0..count).filter_map(|_| eventfd(0, EventfdFlags::CLOEXEC).ok()).collect();
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(40))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let bytes = [std::io::IoSlice::new(&bytes)];
        let _ = sendmsg(front, &bytes, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// The daemon hears the next event. Numbers never begin again, and messages are whole.
    fn hear(&mut self) {
        let Some(daemon) = &self.daemon else { return };
        let Ok(received) = protocol::receive::<Event>(daemon) else { panic!("no event") };
        let Received::Packet(event, files) = received else { return };
        let number = match event {
            Event::Connected { number, .. } => {
                assert_eq!(files.len(), 1, "a connection");
                number
            }
            Event::Message { number, bytes } => {
                let size = bytes.get(8..12).and_then(|size| size.try_into().ok());
                let size = size.map(u32::from_ne_bytes).expect("a header");
                assert_eq!(bytes.len(), 12 + size as usize, "a whole message");
                self.names.extend((0..files.len() as u32).map(|place| (number, place)));
                number
            }
            Event::Gone { number, .. } => number,
        };
        assert!(number >= self.heard, "{number} comes again: {} was heard", self.heard);
        self.heard = number;
    }

    /// The daemon says an end: of what it heard, or of something else.
    fn done(&mut self, input: &mut Input<'_>, choice: u8) {
        let keep: Vec<Name> =
            self.names.iter().rev().take(usize::from(input.u8())).copied().collect();
        let len = usize::from(input.u8());
        let state = input.bytes(len).to_vec();
        let word = Word::Done {
            number: if choice & 1 == 0 { self.heard } else { input.u64() },
            reply: if choice & 2 == 0 { Vec::new() } else { vec![7; 20] },
            after: (choice & 4 == 0).then_some((state, keep)),
            end: (choice == 15).then(|| "enough".to_owned()),
        };
        self.word(&word, &[]);
    }

    /// The daemon gives connections to front ends that listen: one, none, or more than it should.
    fn dial(&mut self, count: u8) {
        let pairs: Vec<_> =
            (0..count % 4).filter_map(|_| std::os::unix::net::UnixStream::pair().ok()).collect();
        let given: Vec<_> = pairs.iter().map(|(given, _)| given.as_fd()).collect();
        self.word(&Word::Dialed, &given);
        if let Some((given, ours)) = pairs.into_iter().next_back() {
            let _ = given.set_nonblocking(true);
            self.front = Some(ours.into());
        }
    }

    fn word(&self, word: &Word, files: &[std::os::fd::BorrowedFd<'_>]) {
        if let Some(daemon) = &self.daemon {
            let _ = protocol::send(daemon, word, files);
        }
    }

    /// The daemon says anything.
    fn garbage(&self, input: &mut Input<'_>) {
        let len = usize::from(input.u8());
        let bytes = input.bytes(len);
        if let Some(daemon) = &self.daemon {
            let _ = rustix::net::send(daemon, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }
}
