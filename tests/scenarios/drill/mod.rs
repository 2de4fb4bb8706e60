//! Drills for docs/troubleshooting.md: broken set-ups, diagnosed and fixed by following the page.
//!
//! Only the broken [`Scene`] knows the cause. The drill runs the page's commands as written. They
//! have to lead to the right cause and to no other, and after the page's fix the packet arrives.
//! With `DRILL` in the environment and `--nocapture` it shows the commands and their answers.

mod one_host;
mod two_hosts;

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use butterfly_guest_driver::{Refill, Vm};
use butterfly_packet::{Mac, build, tcp};
use butterfly_tests::{
    Daemon, PATIENCE, Station, eventually,
    frames::mac,
    net::{Net, ip4, segment},
    programs::program,
    runbook::{Document, Place, Reader, Site},
};

const PAGE: &str = include_str!("../../../docs/troubleshooting.md");
const A: u8 = 1;
const B: u8 = 2;
const C: u8 = 3;
const D: u8 = 4;
const PORT: u16 = 443;
/// Time between two tries of the VM to send the packet.
const AGAIN: Duration = Duration::from_millis(20);

/// The sending VM and its packet.
struct Machine {
    nic: &'static str,
    mac: Mac,
    ip: [u8; 4],
    to: Mac,
    /// Largest IP packet that the VM sends.
    mtu: usize,
    data: Vec<u8>,
}

impl Machine {
    fn new(nic: &'static str, number: u8) -> Machine {
        Machine {
            nic,
            mac: mac(number.into()),
            ip: [10, 0, 0, number],
            to: mac(B.into()),
            mtu: 1500,
            data: Vec::new(),
        }
    }

    /// Returns the SYN of a connection, or data on a connection, in segments as the MTU allows.
    fn frames(&self) -> Vec<Vec<u8>> {
        let ip = build::ethernet(self.mac, self.to).ipv4(self.ip, [10, 0, 0, B]);
        if self.data.is_empty() {
            return vec![ip.tcp(&segment((4000, PORT), tcp::SYN, 1, 0), b"")];
        }
        let cut = self.data.chunks(self.mtu - 40).scan(1, |sequence, part| {
            let frame = ip.tcp(&segment((4000, PORT), tcp::ACK, *sequence, 1), part);
            *sequence += part.len() as u32;
            Some(frame)
        });
        cut.collect()
    }
}

/// Hosts and VMs with a fault.
struct Scene {
    /// The sender's host.
    net: Net,
    /// The receiver's host, if it is another one.
    far: Option<Net>,
    machine: Machine,
}

impl Scene {
    fn new(net: Net, machine: Machine) -> Scene {
        Scene { net, far: None, machine }
    }

    fn near(&self) -> &Daemon {
        self.net.host.daemon()
    }

    fn far_daemon(&self) -> &Daemon {
        self.far.as_ref().unwrap_or(&self.net).host.daemon()
    }

    /// Words that the operator knows from the start.
    fn given(&self) -> Vec<(&'static str, String)> {
        let far = self.far.as_ref().map(|far| ("FAR", far.host.daemon().endpoint().to_owned()));
        let own = [
            ("SENDER", self.machine.nic.to_owned()),
            ("RECEIVER", "b".to_owned()),
            ("DESTINATION", ip4(B)),
        ];
        own.into_iter()
            .chain([("PROTO", "tcp".to_owned()), ("PORT", PORT.to_string())])
            .chain(far)
            .collect()
    }

    fn receiver(&mut self) -> Option<&mut Station> {
        self.far.as_mut().unwrap_or(&mut self.net).stations.get_mut("b")
    }

    fn send(&mut self) {
        let Scene { net, machine, .. } = self;
        let station = net.station(machine.nic);
        machine.frames().iter().for_each(|frame| station.send(frame));
        assert!(station.vm.guest.drain(PATIENCE).unwrap(), "{} is not served", machine.nic);
    }

    /// Returns true if the packet arrives. Between two hosts it tries several times, as hosts look
    /// for each other with pauses.
    fn arrives_soon(&mut self) -> bool {
        let tries = if self.far.is_some() { 10 } else { 1 };
        (0..tries).any(|_| self.arrives(true))
    }

    /// Returns true if the packet arrives, in order and unchanged. Waits longer if it `should`.
    fn arrives(&mut self, should: bool) -> bool {
        let frames = self.machine.frames();
        if let Some(station) = self.receiver() {
            station.pending();
        }
        self.send();
        let mut got = Vec::new();
        let patience = if should { Duration::from_secs(2) } else { AGAIN };
        let Some(station) = self.receiver() else { return false };
        while got.len() < frames.len() {
            match station.vm.guest.recv_wait(patience) {
                Ok(Some((_, frame))) => got.push(frame),
                _ => return false,
            }
        }
        got == frames
    }

    /// Attaches the receiver again if the daemon cut it off, as QEMU does with `reconnect=1`.
    fn reconnect(&mut self) {
        if let Some(station) = self.receiver()
            && station.vm.connection.is_closed()
        {
            station.vm = Vm::connect(&station.path, &station.config, PATIENCE).unwrap();
            station.vm.connection.sync().unwrap();
        }
    }

    /// Runs the client and returns its output. The VM sends again meanwhile, so that a command that
    /// watches sees packets.
    fn client(&mut self, command: &str) -> String {
        let words: Vec<&str> = command.split(' ').collect();
        let mut client = Command::new(program("butterfly"));
        client.args(&words);
        if !words.contains(&"-e") {
            client.args(["-e", self.near().endpoint()]);
        }
        let mut running = client
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        if words.first() == Some(&"trace") {
            eventually("the trace ends", || {
                self.send();
                std::thread::sleep(AGAIN);
                running.try_wait().unwrap().is_some()
            });
        }
        let output = running.wait_with_output().unwrap();
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat()
    }

    /// Runs a command that is not Butterfly's: the test does what the VM or its QEMU would do.
    fn other(&mut self, place: Place, words: &[&str]) -> String {
        match (place, words) {
            (Place::Here, ["kill", "-CONT", process]) => {
                // The VM is simulated in this process.
                assert_eq!(*process, std::process::id().to_string());
                let guest = &mut self.receiver().unwrap().vm.guest;
                guest.set_refill(Refill::Immediately);
                guest.refill(usize::MAX);
            }
            (Place::Here, ["qemu-system-x86_64", "...", "-chardev", chardev, "..."]) => {
                let path = chardev.split(',').find_map(|part| part.strip_prefix("path=")).unwrap();
                let nic = butterfly_tests::net::filtered("b", B, "web");
                let config = butterfly_tests::station::usual();
                let mut vm = Vm::connect(path, &config, PATIENCE).unwrap();
                vm.connection.sync().unwrap();
                let station = Station { nic, path: path.into(), listener: None, vm, config };
                self.net.stations.insert("b".to_owned(), station);
            }
            (Place::Machine, ["ip", "link", "set", "dev", "eth0", "address", address]) => {
                self.machine.mac = address.parse().unwrap();
            }
            (Place::Machine, ["ip", "link", "set", "dev", "eth0", "mtu", mtu]) => {
                self.machine.mtu = mtu.parse().unwrap()
            }
            (Place::Far, ["ip", ..]) => {
                let space = format!("--net=/proc/{}/ns/net", self.far_daemon().pid());
                let output = Command::new("nsenter").arg(space).args(words).output().unwrap();
                return String::from_utf8(output.stdout).unwrap();
            }
            _ => panic!("nobody here obeys {words:?} at {place:?}"),
        }
        String::new()
    }
}

impl Site for Scene {
    fn run(&mut self, place: Place, command: &str) -> String {
        let answer = match command.strip_prefix("butterfly ") {
            Some(command) => self.client(command),
            None => self.other(place, &command.split(' ').collect::<Vec<_>>()),
        };
        if std::env::var_os("DRILL").is_some() {
            println!("{place:?} $ {command}\n{answer}");
        }
        answer
    }
}

/// Follows a page with the words that the operator knows. It must lead to this cause and to no
/// other, and its fix must help.
fn followed(page: &str, scene: &mut Scene, cause: &str) -> Result<(), String> {
    if scene.arrives(false) {
        return Err("nothing is wrong".to_owned());
    }
    let document = Document::read(page);
    let given = scene.given();
    let given: Vec<(&str, &str)> = given.iter().map(|(word, is)| (*word, is.as_str())).collect();
    let mut reader = Reader::new(&document, &given);
    let found = reader.follow(scene)?;
    if found.title != cause {
        return Err(format!("it came to {:?}: {:?}", found.title, reader.path));
    }
    let proved = Reader::new(&document, &given).proved(scene);
    if proved != [cause] {
        return Err(format!("{proved:?} are proved"));
    }
    reader.mend(found, scene)?;
    scene.reconnect();
    if scene.arrives_soon() {
        Ok(())
    } else {
        Err(format!("it does not arrive: {:?}", reader.words()))
    }
}

/// As [`followed`], with docs/troubleshooting.md as it is.
#[track_caller]
fn drill(mut scene: Scene, cause: &str) {
    if let Err(why) = followed(PAGE, &mut scene, cause) {
        panic!("docs/troubleshooting.md does not help: {why}");
    }
}

/// Every link of the page leads to a section, and every cause can be reached.
#[test]
fn no_link_of_the_page_leads_nowhere() {
    let document = Document::read(PAGE);
    let links: Vec<&String> =
        document.sections.iter().flat_map(|section| &section.rows).map(|row| &row.to).collect();
    let linked: Vec<&str> =
        links.iter().map(|to| document.section(to).unwrap().title.as_str()).collect();
    for section in document.sections.iter().filter(|section| section.is_cause()) {
        assert!(linked.contains(&section.title.as_str()), "nothing leads to {}", section.title);
    }
    assert!(document.sections.iter().filter(|section| section.is_cause()).count() >= 10);
    for word in ["SENDER", "RECEIVER", "DESTINATION", "PROTO", "PORT", "FAR"] {
        assert!(document.words.contains(word), "{word} is not explained");
    }
}
