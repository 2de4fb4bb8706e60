//! Machines that nobody declared: asked for by ARP and neighbour discovery.

use std::collections::BTreeMap;

use butterfly_datapath::{Mac, SoughtState, VnicPolicy};
use butterfly_packet::{arp, build};
use butterfly_vhost::net::NetHeader;

use crate::net::*;

/// A machine behind [`OPEN`], which bypasses filters and has no declared address.
const X: Machine = ("open", Mac([2, 0, 0, 0, 0, 0xe]), 50, [10, 1, 0, 20]);
/// The router address of a host without a tunnel.
const OWN: Mac = Mac([0xb2, 0xf1, 0, 0, 0, 0]);

type Got = BTreeMap<String, Vec<Vec<u8>>>;

impl Net {
    /// What machines got since the last look.
    fn got(&mut self) -> Got {
        let received = self.host.received().unwrap();
        let frames = |all: Vec<(NetHeader, Vec<u8>)>| all.into_iter().map(|(_, frame)| frame);
        received.into_iter().map(|(id, all)| (id, frames(all).collect())).collect()
    }

    /// Has due questions sent. Returns what machines got.
    fn seeks(&mut self) -> Got {
        self.host.seek();
        self.got()
    }

    /// Lets a second pass, and has due questions sent.
    fn second(&mut self) -> Got {
        self.host.pass(1);
        self.seeks()
    }

    fn states(&self) -> Vec<(String, SoughtState)> {
        self.host.sought().into_iter().map(|it| (it.address.to_string(), it.state)).collect()
    }
}

/// [`A`] and its router, and in the other network a vnic that may have any address. Its guest runs
/// for long.
fn net() -> Net {
    let mut net = Net::new(&[A, B], false);
    net.admit("10.0.0.0/8");
    let open = VnicPolicy { bypass: true, ..VnicPolicy::default() };
    net.host.vnic(X.0, X.1, X.2, &open).unwrap();
    net.host.begin_seeking();
    net.host.settle();
    net.host.pass(20);
    net.got();
    net.host.moved();
    net
}

fn one(id: &str, frame: Vec<u8>) -> Got {
    BTreeMap::from([(id.to_owned(), vec![frame])])
}

/// The question for [`X`]'s address.
fn question(to: Mac) -> Vec<u8> {
    let mut frame =
        build::ethernet(OWN, to).arp(arp::REQUEST, (OWN, [0; 4].into()), (Mac::ZERO, X.3.into()));
    frame.resize(60, 0);
    frame
}

/// The answer of a machine with this MAC address.
fn answer(mac: Mac) -> Vec<u8> {
    build::ethernet(mac, OWN).arp(arp::REPLY, (mac, X.3.into()), (OWN, [0; 4].into()))
}

fn udp(port: u16) -> impl Fn(build::Ip) -> Vec<u8> {
    move |ip| ip.udp(1000, port, b"x")
}

/// The packet waits for the answer, and all that follow go by it.
#[test]
fn a_machine_that_answers_is_found() {
    let mut net = net();
    let [sent, arrives] = routed(A, X, udp(53));
    assert_eq!(net.send(A, &sent), Got::new());
    assert_eq!(net.seeks(), one("open", question(Mac::BROADCAST)));
    assert_eq!(net.states(), [("10.1.0.20".into(), SoughtState::Asked)]);
    assert_eq!(net.send(X, &answer(X.1)), Got::new());
    assert_eq!(net.seeks(), one("open", arrives));
    assert_eq!(net.states(), [("10.1.0.20".into(), SoughtState::Found)]);
    for _ in 0..3 {
        let [sent, arrives] = routed(A, X, udp(53));
        net.passes(A, &sent, X, &arrives);
    }
    assert_eq!(net.seeks(), Got::new());
}
