//! Every packet that guests send at random arrives or is counted as a named drop.

use butterfly_guest_driver::{GuestConfig, Placement, Refill};
use butterfly_packet::{build, mac::Mac};
use butterfly_tests::{
    Host, Nic, Station,
    frames::{Choices, mac, numbered},
    station::{features, machine, usual},
};
use butterfly_vhost::net::NetHeader;

/// Sends good and bad frames to one receiver each, to receivers that are too slow, and to vnics
/// without guests.
#[test]
fn every_packet_is_somewhere() {
    let host = Host::new();
    let mut slow = machine(features::LINUX, 9000);
    slow.guest = GuestConfig { refill: Refill::Manually, ..slow.guest }.rings(32);
    let usual = usual();
    let mut stations: Vec<Station> = Vec::new();
    for vni in [1, 2] {
        for (n, nic) in [
            Nic::bypass("open", mac(1), vni),
            Nic::bypass("other", mac(2), vni),
            Nic::bypass("slow", mac(3), vni),
            Nic::filtered("filtered", mac(4), vni),
        ]
        .into_iter()
        .enumerate()
        {
            let nic = Nic { id: format!("{vni}-{}", nic.id), ..nic };
            stations.push(host.station(&nic, if n == 2 { &slow } else { &usual }));
        }
        host.add(&Nic::bypass(&format!("{vni}-empty"), mac(5), vni)).unwrap();
    }
    let mut choices = Choices::new(1);
    let (mut sent, mut sent_bytes) = (vec![0u64; stations.len()], vec![0u64; stations.len()]);
    let (mut received, mut received_bytes) =
        (vec![0u64; stations.len()], vec![0u64; stations.len()]);
    for number in 0..20_000 {
        let n = choices.below(stations.len());
        let own = stations[n].mac();
        let to = mac(choices.between(1, 5) as u32);
        let mut header = NetHeader::default();
        let frame = match choices.below(8) {
            0 => build::ethernet(own, to).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(
                1,
                2,
                &vec![7; choices.between(0, 1400)],
            ),
            1 => {
                header = NetHeader {
                    flags: 1,
                    csum_start: choices.below(100) as u16,
                    csum_offset: 6,
                    ..header
                };
                build::ethernet(own, to).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2, &[7; 100])
            }
            2 => numbered(mac(choices.between(1, 5) as u32), to, 1, number, 200),
            3 => numbered(own, Mac([1, 0x80, 0xc2, 0, 0, 3]), 1, number, 60),
            _ => {
                let len = choices.between(60, 9000);
                numbered(own, to, 1, number, len)
            }
        };
        stations[n].send_with(&frame, header);
        sent[n] += 1;
        sent_bytes[n] += frame.len() as u64;
        if choices.below(20) == 0 {
            for (n, station) in stations.iter_mut().enumerate() {
                if !station.nic.id.ends_with("slow") || choices.below(10) == 0 {
                    let frames = station.pending();
                    received[n] += frames.len() as u64;
                    received_bytes[n] += frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
                    station.vm.guest.refill(usize::MAX);
                }
            }
        }
    }
    let mut all: Vec<&mut Station> = stations.iter_mut().collect();
    host.settle(&mut all);
    let mut drops = 0;
    for (n, station) in stations.iter_mut().enumerate() {
        let frames = station.pending();
        received[n] += frames.len() as u64;
        received_bytes[n] += frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
        let show = host.show(&station.nic.id);
        assert_eq!(
            (show.received, show.delivered),
            ((sent[n], sent_bytes[n]), (received[n], received_bytes[n])),
            "{}",
            station.nic.id
        );
        assert_eq!(show.flooded, 0);
        drops += show.all_drops();
    }
    for vni in [1, 2] {
        let empty = host.show(&format!("{vni}-empty"));
        assert_eq!(empty.all_drops(), empty.drops("not-attached"));
        drops += empty.all_drops();
        assert!(
            host.show(&format!("{vni}-slow")).drops("ring-full") > 0,
            "the slow one was never too slow"
        );
    }
    assert_eq!(sent.iter().sum::<u64>(), received.iter().sum::<u64>() + drops);
    let names = [
        "bad-offload",
        "spoofed-mac",
        "link-local-group",
        "same-port",
        "spoofed-ip",
        "ingress-denied",
        "mac-claimed",
    ];
    for name in names {
        let count: u64 = host.ids().iter().map(|id| host.show(id).drops(name)).sum();
        assert!(count > 0, "no {name}");
    }
}

/// Every copy of a flooded frame is delivered, or is a named drop of its receiver.
#[test]
fn every_copy_of_a_flood_is_somewhere() {
    let host = Host::new();
    let mut sender = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut few = usual();
    few.guest = GuestConfig { refill: Refill::Manually, rx_fill: Some(100), ..few.guest };
    let mut receivers = [
        host.station(&Nic::bypass("r0", mac(10), 1), &usual()),
        host.station(&Nic::bypass("r1", mac(11), 1), &few),
        host.station(&Nic::filtered("r2", mac(12), 1), &usual()),
    ];
    host.add(&Nic::filtered("r3", mac(13), 1)).unwrap();
    let mut received = [0; 3];
    let (mut plain, mut ip) = (0, 0);
    for number in 0..2000 {
        if number % 3 == 0 {
            sender.send(
                &build::ethernet(mac(1), Mac::BROADCAST)
                    .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
                    .ping(1, 1, b"x"),
            );
            ip += 1;
        } else {
            sender.send(&numbered(mac(1), Mac::BROADCAST, 1, number, 100));
            plain += 1;
        }
        if number % 50 == 0 {
            host.settle(&mut [&mut sender]);
            for (n, station) in receivers.iter_mut().enumerate() {
                received[n] += station.pending().len() as u64;
            }
        }
    }
    host.settle(&mut [&mut sender]);
    for (n, station) in receivers.iter_mut().enumerate() {
        received[n] += station.pending().len() as u64;
    }
    let show = |id: &str| host.show(id);
    assert_eq!((show("a").received.0, show("a").flooded, show("a").all_drops()), (2000, 2000, 0));
    assert_eq!((received[0], show("r0").delivered.0, show("r0").all_drops()), (2000, 2000, 0));
    assert_eq!(
        (
            received[1],
            show("r1").delivered.0,
            show("r1").all_drops(),
            show("r1").drops("ring-full")
        ),
        (100, 100, 1900, 1900)
    );
    assert_eq!(
        (
            received[2],
            show("r2").delivered.0,
            show("r2").drops("ingress-denied"),
            show("r2").all_drops()
        ),
        (plain, plain, ip, ip)
    );
    assert_eq!(
        (
            show("r3").drops("not-attached"),
            show("r3").drops("ingress-denied"),
            show("r3").all_drops()
        ),
        (plain, ip, 2000)
    );
}

/// A malformed chain counts as one frame of its guest, and as one drop.
#[test]
fn bad_chains_are_counted() {
    let host = Host::new();
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    let mut before = host.counters();
    for number in 0..100 {
        let good = numbered(mac(1), mac(2), 1, number, 300);
        a.vm.guest.enqueue(&good, NetHeader::default()).unwrap();
        // An address that the guest does not have, in the middle of a batch.
        let outside = butterfly_guest_driver::Buffer { addr: 0x10, len: 100, writable: false };
        a.vm.guest.tx_mut().add(&[outside], Placement::Direct, u64::MAX).unwrap();
        a.vm.guest.enqueue(&good, NetHeader::default()).unwrap();
        a.vm.guest.flush();
        b.expect(&good);
        b.expect(&good);
        while a.vm.guest.tx().outstanding() > 0 {
            a.vm.guest.tx_mut().wait(butterfly_tests::PATIENCE).unwrap();
            a.vm.guest.tx_mut().pop().unwrap();
        }
        let config = a.config.clone();
        a = if number % 10 == 9 { a.reboot(&config) } else { a };
        if number % 10 != 9 {
            // The driver did not make this chain and cannot reclaim it: start the driver again.
            let features = a.vm.guest.features();
            a.vm.change_features(features).unwrap();
        }
    }
    host.moved(&mut before, &[("a.in", 300), ("a.drop.bad-chain", 100), ("b.out", 200)]);
}
