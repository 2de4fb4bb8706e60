use super::{
    passing::{Giver, Taker, copy_of},
    upgrade::{Given, try_out},
    *,
};
use crate::client::{After, Channel, Heard, Lease};
use std::{
    ffi::OsStr,
    io::{Read, Write},
    os::fd::AsRawFd,
};

/// Runs a holder in a thread until its end.
fn started(state: &Path) -> std::thread::JoinHandle<()> {
    let mut holder = Holder::open(state, None).unwrap().unwrap();
    std::thread::spawn(move || holder.run())
}

/// Says a first word to a holder. Returns its answer.
fn say_first(state: &Path, order: &Order) -> Answer {
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(socket_path(state)).unwrap()).unwrap();
    protocol::send(&socket, order, &[]).unwrap();
    let patience = Timespec { tv_sec: 10, tv_nsec: 0 };
    poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&patience)).unwrap();
    match protocol::receive(&socket).unwrap() {
        Received::Packet(answer, _) => answer,
        other => panic!("{other:?}"),
    }
}

/// Others that may write there may put files of theirs in the place of the holder's.
#[test]
fn a_directory_that_others_may_change_is_refused() {
    let room = tempfile::tempdir().unwrap();
    for (mode, may) in [(0o700, true), (0o755, true), (0o777, false), (0o720, false)] {
        fs::set_permissions(room.path(), fs::Permissions::from_mode(mode)).unwrap();
        let opened = open_socket(room.path());
        assert_eq!(opened.is_ok(), may, "{mode:o}");
        assert!(may || opened.unwrap_err().to_string().contains("chmod 700"));
    }
}

#[test]
fn directories_of_one_socket_are_known_by_their_name() {
    for (path, is) in [
        ("/tmp/butterfly-0123456789abcdef", true),
        ("/tmp/butterfly-0123456789abcde", false),
        ("/tmp/butterfly-0123456789abcdeg", false),
        ("/run/butterfly", false),
        ("/", false),
    ] {
        assert_eq!(is_of_a_file(Path::new(path)), is, "{path}");
    }
}

#[test]
fn a_daemon_of_another_version_is_told_what_to_do() {
    let room = tempfile::tempdir().unwrap();
    let holder = started(room.path());
    let answer = say_first(room.path(), &Order::Hello { version: VERSION + 1 });
    let Answer::Refused { why } = answer else { panic!("{answer:?}") };
    for part in [
        &format!("version {VERSION} of its protocol (butterflyd "),
        &format!("the daemon {}", VERSION + 1),
        REMEDY,
        "`systemctl restart butterfly-holder`",
    ] {
        assert!(why.contains(part), "{why}");
    }
    let (lease, _) = Lease::take(room.path()).unwrap();
    lease.end().unwrap();
    holder.join().unwrap();
}

/// Machines stay connected while an operator finds a daemon that the holder understands.
#[test]
fn a_daemon_of_another_version_has_machines_stay() {
    let room = tempfile::tempdir().unwrap();
    let mut holder = Holder::open(room.path(), None).unwrap().unwrap();
    (holder.term, holder.ends) = (1, Some(Instant::now()));
    let asking = std::thread::spawn({
        let state = room.path().to_owned();
        move || say_first(&state, &Order::Hello { version: VERSION + 1 })
    });
    while !asking.is_finished() {
        holder.meet_daemons();
    }
    assert!(matches!(asking.join().unwrap(), Answer::Refused { .. }));
    assert!(holder.stays && holder.ends.is_none());
}

/// Nobody holds up the end of a holder without machines, or takes anything from a daemon.
#[test]
fn only_what_is_about_to_go_stays() {
    let room = tempfile::tempdir().unwrap();
    let holder = started(room.path());
    let stays = || matches!(say_first(room.path(), &Order::Stay), Answer::Done);
    assert!(!stays());
    let (lease, inventory) = Lease::take(room.path()).unwrap();
    assert!(!stays());
    assert_eq!(inventory.holder, Some(std::process::id()));
    lease.stopping().unwrap();
    assert!(stays());
    lease.end().unwrap();
    holder.join().unwrap();
}

/// A holder with whatever one can have: a front end in the middle of a message with descriptors,
/// one whose message a daemon carries out, one that does not read, one that waits behind another.
struct Busy {
    holder: Holder,
    fronts: Vec<UnixStream>,
    channels: Vec<Channel>,
    _room: tempfile::TempDir,
}

/// A message of a front end: request, and so many bytes of a body.
fn message(request: u32, body: usize) -> Vec<u8> {
    let words = [request, 1, body as u32].map(u32::to_ne_bytes).concat();
    [words, vec![7; body]].concat()
}

impl Busy {
    fn new() -> Busy {
        let room = tempfile::tempdir().unwrap();
        let mut holder = Holder::open(room.path(), None).unwrap().unwrap();
        let (mut fronts, mut channels) = (Vec::new(), Vec::new());
        for n in 0..4 {
            let path = room.path().join(format!("vnic-{n}"));
            let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
            listener.set_nonblocking(true).unwrap();
            let order = Order::Register {
                id: format!("vnic-{n}"),
                birth: n,
                role: Role::Server,
                path: path.as_os_str().as_bytes().to_vec(),
            };
            let answer = holder.carry_out(order, vec![listener.into()]).unwrap();
            let (Answer::Registered, Some(channel)) = answer else { panic!("it is registered") };
            fronts.push(UnixStream::connect(&path).unwrap());
            channels.push(Channel::from(channel));
        }
        let order = Order::Register {
            id: "client".to_owned(),
            birth: 9,
            role: Role::Client,
            path: b"/nowhere".to_vec(),
        };
        holder.carry_out(order, Vec::new()).unwrap();
        for name in ["a", "b"] {
            let order = Order::Deposit { name: name.to_owned() };
            holder.carry_out(order, vec![own_version().unwrap()]).unwrap();
        }
        fronts.push(UnixStream::connect(room.path().join("vnic-1")).unwrap());
        let mut busy = Busy { holder, fronts, channels, _room: room };
        busy.make_busy();
        busy
    }

    fn turn(&mut self) {
        let Holder { vnics, times, closer, exhausted, .. } = &mut self.holder;
        vnics.values_mut().for_each(|vnic| vnic.turn(times, false, closer, exhausted));
    }

    fn make_busy(&mut self) {
        self.turn();
        for channel in &self.channels {
            let Ok(Some(Heard::Connected { number, .. })) = channel.receive() else {
                panic!("a front end came")
            };
            let after = After { state: b"state", keep: &[] };
            channel.done(number, &[], Some(after), None).unwrap();
        }
        self.turn();
        // The first one: half a message, with a descriptor.
        let file = own_version().unwrap();
        send_with(&self.fronts[0], &message(5, 100)[..50], &file);
        // The second one: a message that a daemon has, with a descriptor.
        send_with(&self.fronts[1], &message(1, 0), &file);
        // The third one reads none of what it is told.
        self.fronts[2].write_all(&message(1, 0)).unwrap();
        self.turn();
        let Ok(Some(Heard::Message { number, .. })) = self.channels[2].receive() else {
            panic!("a message came")
        };
        self.channels[2].done(number, &[8; 4108], None, None).unwrap();
        self.turn();
        // The last one has given a descriptor, and says no more.
        send_with(&self.fronts[3], &message(5, 0), &file);
        self.turn();
        let Ok(Some(Heard::Message { number, .. })) = self.channels[3].receive() else {
            panic!("a message came")
        };
        let after = After { state: b"with one", keep: &[(number, 0)] };
        self.channels[3].done(number, &[], Some(after), None).unwrap();
        self.turn();
        let debt = self.holder.vnics["vnic-2"].debt().clone();
        self.holder.closer.discard_of(&debt, [own_version().unwrap()]);
        self.holder.closer.discard([own_version().unwrap()]);
    }

    /// Becomes its own successor, as far as one process can play both.
    fn hand_over(&mut self) {
        let now = Instant::now();
        let given = Giver::of(&self.holder, now);
        let bytes = given.whole();
        assert_eq!(try_out(&bytes).unwrap().len(), given.files.len());
        let copies = given.files.iter().map(|file| (file.as_raw_fd(), copy_of(file).unwrap()));
        let mut from = Taker::new(&bytes, copies.collect(), now).unwrap();
        let taken = Given::take(&mut from).unwrap();
        assert!(from.end().unwrap().is_empty());
        let next = Holder::of(taken, &self.holder.state, OsStr::new(HOLD_SERVICE)).unwrap();
        let again = Giver::of(&next, now);
        assert!(again.is_like(&given));
        drop(again);
        drop(given);
        self.holder = next;
    }
}

fn send_with(to: &UnixStream, bytes: &[u8], file: &OwnedFd) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    let bytes = [io::IoSlice::new(bytes)];
    sendmsg(to, &bytes, &mut control, SendFlags::empty()).unwrap();
}

/// A front end or a daemon does with the successor whatever it was about to do.
#[test]
fn a_successor_goes_on_in_the_middle_of_everything() {
    let mut busy = Busy::new();
    let debts = |busy: &Busy| busy.holder.vnics.values().filter(|it| it.debt().is_high()).count();
    let high = debts(&busy);
    for _ in 0..3 {
        busy.hand_over();
    }
    assert_eq!(debts(&busy), high);
    // The first half of a message was read before.
    busy.fronts[0].write_all(&message(5, 100)[50..]).unwrap();
    busy.turn();
    let Ok(Some(Heard::Message { bytes, files, .. })) = busy.channels[0].receive() else {
        panic!("the whole message comes")
    };
    assert_eq!((bytes, files.len()), (message(5, 100), 1));
    // A daemon that got a message before answers it, once.
    let Ok(Some(Heard::Message { number, files, .. })) = busy.channels[1].receive() else {
        panic!("the message is there")
    };
    assert_eq!(files.len(), 1);
    busy.channels[1].done(number, b"answer", None, None).unwrap();
    busy.turn();
    assert!(matches!(busy.channels[1].receive(), Ok(None)), "it comes once");
    let mut answer = [0; 6];
    busy.fronts[1].read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"answer");
    let mut told = vec![0; 4108];
    busy.fronts[2].read_exact(&mut told).unwrap();
    assert!(told.iter().all(|byte| *byte == 8));
    // What a front end gave, and the state of it.
    let (state, kept) = busy.holder.vnics["vnic-3"].state();
    assert_eq!((state, kept.len()), (Some(&b"with one"[..]), 1));
    assert_eq!(busy.holder.parts.len(), 2);
    // Who waited behind another one comes when that is gone.
    busy.channels[1].cut("no").unwrap();
    busy.turn();
    let Ok(Some(Heard::Gone { number, .. })) = busy.channels[1].receive() else {
        panic!("it is gone")
    };
    busy.channels[1].done(number, &[], None, None).unwrap();
    busy.turn();
    assert!(matches!(busy.channels[1].receive(), Ok(Some(Heard::Connected { .. }))));
}

/// Ends of a daemon: what it had said before, and whether its process is dead.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Died,
    Stopped,
    /// It had said that its process becomes another program.
    DiedOnTheWay,
    /// The same, and the process is that program, which claims.
    Renewed,
}

impl Busy {
    /// Has the daemon of now end, and another one take its place. `claims`: the successor is there
    /// before the end is seen.
    fn end(&mut self, how: Ends, claims: bool) {
        let process = if let Ends::Renewed = how {
            pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap()
        } else {
            let mut child = std::process::Command::new("true").spawn().unwrap();
            let pid = Pid::from_raw(child.id() as i32).unwrap();
            let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
            child.wait().unwrap();
            process
        };
        let (lease, claim) = channel().unwrap();
        self.holder.owner = Some(Owner {
            lease,
            pid: rustix::process::getpid(),
            process,
            gone: true,
            stopping: matches!(how, Ends::Stopped),
            renewing: matches!(how, Ends::Renewed | Ends::DiedOnTheWay),
        });
        let renewed = matches!(how, Ends::Renewed);
        if renewed || claims {
            let way = self.holder.way_for(&claim);
            assert!(matches!(way, Way::Free { renewed: is } if is == renewed), "{how:?}");
        } else {
            assert!(!self.holder.hear_owner());
        }
        assert!(self.holder.owner.is_none());
        let (ours, theirs) = channel().unwrap();
        self.channels[1] = Channel::from(theirs);
        self.holder.vnics.get_mut("vnic-1").unwrap().get_daemon(ours);
        self.turn();
        self.turn();
    }

    /// Returns whether the daemon of now gets the message of the second front end: otherwise that
    /// one is gone.
    fn gets_the_message(&self) -> bool {
        match self.channels[1].receive() {
            Ok(Some(Heard::Message { bytes, .. })) => {
                assert_eq!(bytes, message(1, 0));
                true
            }
            Ok(Some(Heard::Gone { reason, .. })) => {
                let why = "3 daemons or more ended while they carried out its message";
                assert_eq!(reason, why);
                false
            }
            _ => panic!("the daemon hears something else, or nothing"),
        }
    }
}

/// A message has three daemons at most that die. One that leaves in order is none of them, and one
/// that dies while it becomes another program is.
#[test]
fn a_daemon_that_leaves_in_order_blames_no_message() {
    use Ends::{Died, DiedOnTheWay, Renewed, Stopped};
    let ends =
        [Died, Stopped, Renewed, Renewed, Stopped, DiedOnTheWay, Stopped, Renewed, Stopped, Died];
    for claims in [false, true] {
        let mut busy = Busy::new();
        for (nth, how) in ends.into_iter().enumerate() {
            assert!(busy.gets_the_message(), "{nth}");
            // The channel's end is seen before that of the process, or after it; and this holder
            // may have become another one in between.
            if nth % 2 == 0 {
                drop(std::mem::replace(&mut busy.channels[1], Channel::from(channel().unwrap().0)));
                busy.turn();
                busy.hand_over();
            }
            busy.end(how, claims);
        }
        assert!(!busy.gets_the_message());
        let crashes = ends.iter().filter(|how| matches!(how, Died | DiedOnTheWay)).count();
        assert_eq!(busy.holder.crashes, crashes as u64);
    }
}

/// A message may be why daemons are stopped: they hang. It has no end of them, either.
#[test]
fn a_message_has_an_end_of_stops_too() {
    for how in [Ends::Stopped, Ends::Renewed] {
        let mut busy = Busy::new();
        let daemons = (0..1000).take_while(|_| {
            let gets = busy.gets_the_message();
            busy.end(how, false);
            gets
        });
        assert_eq!(daemons.count(), usize::from(vnic::TRIES * vnic::PARTS));
    }
}

/// Nothing is gone on with that cannot be: cut off, with more behind it, of another form.
#[test]
fn what_is_not_understood_is_not_gone_on_with() {
    let busy = Busy::new();
    let bytes = Giver::of(&busy.holder, Instant::now()).whole();
    for short in (0..bytes.len()).step_by(7) {
        assert!(try_out(&bytes[..short]).is_err(), "{short} of {}", bytes.len());
    }
    assert!(try_out(&[&bytes[..], &[0]].concat()).is_err());
    let mut other = bytes.clone();
    other[0] += 1;
    let why = try_out(&other).unwrap_err();
    assert_eq!(why, "it reads form 1 of what a holder passes on, and not 2");
    // A descriptor that is named twice.
    let mut twice = bytes.clone();
    twice.copy_within(12..20, 20);
    assert!(try_out(&twice).is_err());
}
