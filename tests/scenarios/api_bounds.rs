//! Clients that try to use up the daemon's memory: all together get 64 MiB at most, and the daemon
//! answers other clients meanwhile.
//!
//! Each attack runs against a daemon without a key and against one with a key. Its connections
//! speak the protocol by hand.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    os::unix::net::UnixListener,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use butterfly_api::{
    MAX_FRAME, REVISION,
    client::Client,
    crypt::{Cipher, Key},
    proto::{EventListReq, Message, MessageV0, Messages, Request, Response, Sg},
};
use butterfly_guest_driver::Vm;
use butterfly_tests::{Daemon, Kind, Nic, PATIENCE, frames::mac, station::usual, within};
use protobuf::{Message as _, MessageField};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Memory that all clients together may take, in bytes.
const BOUND: usize = 64 << 20;
/// Time limit of an answer during an attack: far more than on an idle machine.
const PROMPT: Duration = Duration::from_secs(5);
const CROWD: usize = 1000;
/// The base64 of 32 zeros.
const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

const GREETING: [u8; 64] = {
    let mut greeting = [0; 64];
    (greeting[0], greeting[8], greeting[9], greeting[10]) = (0xff, 1, 0x7f, 3);
    (greeting[12], greeting[13], greeting[14], greeting[15]) = (b'N', b'U', b'L', b'L');
    greeting
};
const READY: &[u8] = b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x03REQ\x08Identity\0\0\0\0";

const ROUTER: &[u8] = b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0";

/// A daemon under attack, with a well-behaved client.
struct Attacked {
    daemon: Daemon,
    client: Client,
    key: bool,
    _room: tempfile::TempDir,
    before: usize,
}

impl Attacked {
    fn new(key: bool) -> Attacked {
        Attacked::through(&[], key)
    }

    /// Starts the daemon through the command `before`.
    fn through(before: &[&str], key: bool) -> Attacked {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("key");
        fs::write(&path, KEY).unwrap();
        let ipc = format!("ipc://{}/api", fs::canonicalize(room.path()).unwrap().display());
        let mut options = ["-e", &ipc, "-e", "tcp://127.0.0.1:*"].map(str::to_owned).to_vec();
        if key {
            options.extend(["-k".to_owned(), path.display().to_string()]);
        }
        let daemon = Daemon::launch(room.path(), before, &options);
        let client = client_of(daemon.endpoint(), key);
        let mut attacked = Attacked { daemon, client, key, _room: room, before: 0 };
        attacked.ask(Request { nic_list: Some(true), ..Request::default() });
        attacked.begin();
        attacked
    }

    /// Begins to count the memory that the daemon takes.
    fn begin(&mut self) {
        fs::write(format!("/proc/{}/clear_refs", self.daemon.pid()), "5").unwrap();
        self.before = self.memory("VmRSS");
    }

    fn memory(&self, what: &str) -> usize {
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon.pid())).unwrap();
        let line =
            status.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }

    /// Asserts that the daemon never took more than `bound` bytes since [`Self::begin`].
    #[track_caller]
    fn took_at_most(&self, bound: usize) {
        let took = self.memory("VmHWM").saturating_sub(self.before);
        println!("key {}: {} kB more, of {}", self.key, took >> 10, bound >> 10);
        assert!(took <= bound, "it took {} MiB more", took >> 20);
    }

    fn ask(&self, request: Request) -> Response {
        ask(&self.client, request)
    }

    /// Asserts that the daemon answers the well-behaved client.
    #[track_caller]
    fn answers(&self) {
        answers(&self.client);
    }

    /// Opens a connection of an attacker, over TCP; the well-behaved client uses another endpoint.
    fn raw(&self) -> TcpStream {
        let log = self.daemon.log();
        let (_, endpoint) = log.split_once("tcp://").unwrap();
        let stream = TcpStream::connect(endpoint.split(',').next().unwrap()).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Opens a connection of an attacker and completes its handshake.
    fn open(&self) -> TcpStream {
        let mut stream = self.raw();
        stream.write_all(&GREETING).unwrap();
        stream.write_all(READY).unwrap();
        let mut theirs = [0; 64 + 43];
        stream.read_exact(&mut theirs).unwrap();
        stream
    }

    /// Returns the texts of all events of a kind.
    fn told(&self, kind: &str) -> Vec<String> {
        let list = EventListReq { limit: Some(10_000), ..EventListReq::default() };
        let response =
            self.ask(Request { event_list: MessageField::some(list), ..Request::default() });
        let of_kind = response.event_list.event.iter().filter(|event| event.kind() == kind);
        of_kind.map(|event| event.text().to_owned()).collect()
    }

    /// Waits until an event of the kind has these words and names the attacker's address.
    #[track_caller]
    fn names_us(&self, kind: &str, words: &str) {
        let of_us = |text: &String| text.contains(words) && text.contains("of 127.0.0.1 port ");
        within(PATIENCE, words, || self.told(kind).iter().any(of_us));
    }
}

fn client_of(endpoint: &str, key: bool) -> Client {
    let client = Client::connect(endpoint, Some(PATIENCE)).unwrap();
    if key {
        client.encrypted(Cipher::new(Key::parse(KEY.as_bytes()).unwrap(), false))
    } else {
        client
    }
}

fn envelope(requests: impl IntoIterator<Item = Request>) -> Messages {
    let message =
        |request| MessageV0 { request: MessageField::some(request), ..MessageV0::default() };
    let message = |request| Message {
        revision: Some(REVISION),
        message_0: MessageField::some(message(request)),
        ..Message::default()
    };
    Messages { messages: requests.into_iter().map(message).collect(), ..Messages::default() }
}

fn ask(client: &Client, request: Request) -> Response {
    let mut reply = client.call(&envelope([request])).unwrap();
    reply.messages.remove(0).message_0.response.clone().unwrap()
}

#[track_caller]
fn answers(client: &Client) {
    let begin = Instant::now();
    assert!(ask(client, Request { nic_list: Some(true), ..Request::default() }).status.status());
    assert!(begin.elapsed() < PROMPT, "it took {:?}", begin.elapsed());
}

fn header(flags: u8, length: usize) -> Vec<u8> {
    [&[flags | 2][..], &(length as u64).to_be_bytes()].concat()
}

/// Returns a request in the frames of the protocol.
fn framed(body: &[u8]) -> Vec<u8> {
    [&[1, 0][..], &header(0, body.len()), body].concat()
}

/// Returns the bytes that the client sends for an encrypted request, for sending them again.
fn captured(request: Request) -> Vec<u8> {
    let room = tempfile::tempdir().unwrap();
    let path = room.path().join("api");
    let listener = UnixListener::bind(&path).unwrap();
    let endpoint = format!("ipc://{}", path.display());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let client = Client::connect(&endpoint, Some(Duration::from_secs(1))).unwrap();
            let client = client.encrypted(Cipher::new(Key::parse(KEY.as_bytes()).unwrap(), true));
            // The listener below does not answer.
            assert!(client.call(&envelope([request])).is_err());
        });
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&GREETING).unwrap();
        stream.write_all(ROUTER).unwrap();
        stream.read_exact(&mut [0; 64]).unwrap();
        loop {
            let mut head = [0; 2];
            stream.read_exact(&mut head).unwrap();
            let mut length = usize::from(head[1]);
            if head[0] & 2 != 0 {
                let mut rest = [0; 7];
                stream.read_exact(&mut rest).unwrap();
                length = rest.iter().fold(length, |sum, byte| sum << 8 | usize::from(*byte));
            }
            let mut content = vec![0; length];
            stream.read_exact(&mut content).unwrap();
            if head[0] & 5 == 0 {
                return content;
            }
        }
    })
}

/// Runs an attack on a daemon without a key and on one with.
fn with_and_without_key(attack: impl Fn(Attacked)) {
    if Kind::wanted() == Kind::Daemon {
        [false, true].into_iter().for_each(|key| attack(Attacked::new(key)));
    }
}

/// The daemon cuts off endless messages, of large and of small parts, before they fill its memory.
#[test]
fn endless_parts() {
    with_and_without_key(|attacked| {
        for (part, words) in [(1 << 20, "a message of"), (1, "more than 1024 parts")] {
            let one = [header(1, part), vec![7; part]].concat();
            let many = one.repeat((64 << 10) / part.min(64 << 10));
            for round in 0..40 {
                let mut stream = attacked.open();
                let mut sent = 0;
                while sent < 40 << 20 && stream.write_all(&many).is_ok() {
                    sent += many.len();
                }
                assert!(sent < 40 << 20, "it took everything of connection {round}");
                if round % 10 == 0 {
                    attacked.answers();
                }
            }
            attacked.names_us("client-cut", words);
        }
        attacked.took_at_most(BOUND);
    });
}

/// A thousand clients announce a long request each, and send an eighth of it as fast as the daemon
/// takes it.
#[test]
fn requests_that_are_never_whole() {
    with_and_without_key(|attacked| {
        let begin = [&[1, 0][..], &header(0, MAX_FRAME)].concat();
        let mut crowd: Vec<_> = (0..CROWD).map(|_| attacked.open()).collect();
        for stream in &mut crowd {
            stream.write_all(&begin).unwrap();
            stream.set_nonblocking(true).unwrap();
        }
        let (piece, end) = (vec![0x0a; 1 << 20], Instant::now() + Duration::from_secs(4));
        let mut sent = vec![0; CROWD];
        while Instant::now() < end {
            for (stream, sent) in crowd.iter_mut().zip(&mut sent) {
                // Not more than an eighth: a client that sends more than 256 KiB/s on average may
                // keep its room for longer.
                let most = piece.len().min(MAX_FRAME / 8 - *sent);
                *sent += stream.write(&piece[..most]).unwrap_or(0);
            }
            attacked.answers();
        }
        attacked.names_us("client-cut", "others wait for the room that it takes");
        attacked.took_at_most(BOUND);
    });
}

/// A thousand handshakes that never end, each cut at another byte; then more connections than the
/// daemon allows.
#[test]
fn half_handshakes() {
    with_and_without_key(|attacked| {
        let all = [&GREETING[..], READY].concat();
        let mut crowd = Vec::new();
        for n in 0..CROWD + 200 {
            let mut stream = attacked.raw();
            let _ = stream.write_all(&all[..n % (all.len() - 1)]);
            crowd.push(stream);
            if n % 100 == 0 {
                attacked.answers();
                answers(&client_of(attacked.daemon.endpoint(), attacked.key));
            }
        }
        attacked.took_at_most(8 << 20);
        assert!(attacked.daemon.descriptors() < 1024 + 100, "{}", attacked.daemon.descriptors());
        attacked.names_us("client-cut", "connections, ");
        attacked.names_us("client-refused", "did not end its handshake within 10 s");
        // The daemon has closed all of them.
        for stream in &mut crowd {
            if let Err(error) = stream.read_to_end(&mut Vec::new()) {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            }
        }
        attacked.answers();
    });
}

/// A thousand clients do not read their replies of more than a megabyte.
#[test]
fn unread_replies() {
    with_and_without_key(|mut attacked| {
        let member = |n: usize| format!("2001:db8:1234:5678:9abc:def0:{:x}:{n:x}", n >> 8);
        let group =
            Sg { id: Some("g".into()), member: (0..40_000).map(member).collect(), ..Sg::default() };
        assert!(
            attacked
                .ask(Request { sg_add: MessageField::some(group), ..Request::default() })
                .status
                .status()
        );
        let list = Request { sg_member_list: Some("g".into()), ..Request::default() };
        assert_eq!(attacked.ask(list.clone()).sg_member_list.len(), 40_000);
        attacked.begin();
        let request =
            if attacked.key { captured(list) } else { envelope([list]).write_to_bytes().unwrap() };
        let mut crowd = Vec::new();
        for n in 0..CROWD {
            let mut stream = attacked.open();
            stream.write_all(&framed(&request)).unwrap();
            crowd.push(stream);
            if n % 100 == 99 {
                attacked.answers();
            }
        }
        attacked.names_us("client-cut", "it reads a reply of");
        attacked.answers();
        attacked.took_at_most(BOUND);
    });
}

/// Small requests that would take much memory when they are decoded or answered.
#[test]
fn decoding_bombs() {
    with_and_without_key(|attacked| {
        let nested = |fields: &[u32], content: Vec<u8>| {
            let wrap = |content: Vec<u8>, field: &u32| {
                let mut wrapped = vec![(field << 3 | 2) as u8];
                let mut length = content.len();
                while length >= 0x80 {
                    wrapped.push(length as u8 | 0x80);
                    length >>= 7;
                }
                wrapped.push(length as u8);
                [wrapped, content].concat()
            };
            fields.iter().rev().fold(content, wrap)
        };
        let most = MAX_FRAME - 64;
        let revision = [0x08, 0x06];
        let bomb = |fields: &[u32], unit: &[u8]| {
            let inner = nested(fields, unit.repeat(most / unit.len()));
            nested(&[1], [&revision[..], &inner].concat())
        };
        for (what, request) in [
            ("members", bomb(&[3, 1, 8], b"\x12\0")),
            ("rules", bomb(&[3, 1, 8], b"\x1a\0")),
            ("vnics in a response", bomb(&[3, 2], b"\x22\0")),
            ("fields that nobody knows", bomb(&[3, 1], b"\xb8\x3e\x01")),
            ("messages that are each refused", b"\x0a\x02\x08\x06".repeat(most / 4)),
            ("messages of nothing", b"\x0a\0".repeat(most / 2)),
            ("a long name", bomb(&[3, 1, 3], b"x")),
        ] {
            let begin = Instant::now();
            let mut stream = attacked.open();
            stream.set_read_timeout(Some(4 * PATIENCE)).unwrap();
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let client = client_of(attacked.daemon.endpoint(), attacked.key);
                    while !done.load(Ordering::Relaxed) {
                        answers(&client);
                    }
                });
                stream.write_all(&framed(&request)).unwrap();
                let mut first = [0];
                stream.read_exact(&mut first).unwrap_or_else(|error| panic!("{what}: {error}"));
                done.store(true, Ordering::Relaxed);
            });
            println!("{what}: {:?}", begin.elapsed());
            attacked.took_at_most(BOUND);
        }
    });
}

/// A thousand idle connections take little memory, and stay open.
#[test]
fn idle_connections() {
    with_and_without_key(|attacked| {
        let mut crowd: Vec<_> = (0..CROWD).map(|_| attacked.open()).collect();
        attacked.answers();
        attacked.took_at_most(4 << 20);
        let idle = attacked.daemon.cpu_time();
        std::thread::sleep(Duration::from_secs(1));
        assert!(attacked.daemon.cpu_time() - idle < Duration::from_millis(200));
        for stream in &mut crowd {
            stream.write_all(b"\x04\x07\x04PING\0\0").unwrap();
        }
        for stream in &mut crowd {
            let mut pong = [0; 7];
            stream.read_exact(&mut pong).unwrap();
            assert_eq!(&pong, b"\x04\x05\x04PONG");
        }
    });
}

/// The daemon answers the longest allowed batch although another client holds room for one, and
/// answers short requests meanwhile.
#[test]
fn the_longest_batch() {
    with_and_without_key(|attacked| {
        // A slow client holds room for such a batch, and sends a byte now and then.
        let mut slow = attacked.open();
        slow.write_all(&[&[1, 0][..], &header(0, MAX_FRAME)].concat()).unwrap();
        let ask =
            |n: usize| Request { nic_details: Some(format!("{n:0>140}")), ..Request::default() };
        let mut batch = envelope((0..100_000).map(ask));
        while batch.compute_size() > (MAX_FRAME - 1024) as u64 {
            batch.messages.pop();
        }
        assert!(batch.compute_size() > (14 << 20), "{}", batch.compute_size());
        let done = AtomicBool::new(false);
        let meanwhile = std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                let (client, mut count) = (client_of(attacked.daemon.endpoint(), attacked.key), 0);
                while !done.load(Ordering::Relaxed) {
                    answers(&client);
                    let _ = slow.write_all(b"\x0a");
                    count += 1;
                }
                count
            });
            let client = Client::connect(attacked.daemon.endpoint(), Some(6 * PATIENCE)).unwrap();
            let key = Key::parse(KEY.as_bytes()).unwrap();
            let client =
                if attacked.key { client.encrypted(Cipher::new(key, true)) } else { client };
            let reply = client.call(&batch).unwrap();
            done.store(true, Ordering::Relaxed);
            assert_eq!(reply.messages.len(), batch.messages.len());
            let refused = |message: &Message| !message.message_0.response.status.status();
            assert!(reply.messages.iter().all(refused), "there is none of them");
            others.join().unwrap()
        });
        assert!(meanwhile > 20, "{meanwhile} were answered meanwhile");
        attacked.names_us("client-cut", "it sends a request at");
        attacked.took_at_most(BOUND);
    });
}

/// Clients may use only a part of the open files, so that enough are left for VMs.
#[test]
fn few_descriptors() {
    if Kind::wanted() != Kind::Daemon {
        return;
    }
    let unprivileged =
        ["setpriv", "--bounding-set", "-sys_resource", "prlimit", "--nofile=200:200"];
    let attacked = Attacked::through(&unprivileged, false);
    let idle = attacked.daemon.descriptors();
    let crowd: Vec<_> = (0..300).map(|_| attacked.raw()).collect();
    attacked.names_us("client-cut", "there are 16 connections");
    assert!(
        attacked.daemon.descriptors() <= idle + 16,
        "{} after {idle}",
        attacked.daemon.descriptors()
    );
    for n in 0..8 {
        let nic = Nic::bypass(&format!("n{n}"), mac(n), 1);
        attacked.ask(Daemon::nic_add(&nic));
        let path = attacked.daemon.dir().join(format!("qemu-vhost-n{n}"));
        drop(Vm::connect(&path, &usual(), PATIENCE).unwrap());
    }
    drop(crowd);
    attacked.answers();
}
