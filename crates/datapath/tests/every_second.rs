//! A stage that drops every second frame shows in the worker, in explanations, in counts of
//! instructions and in docs/drops.md, by its own file and one line of the pipeline.

use butterfly_datapath::{
    DropPlace, Fate, Mac, Origin, Question, Target, VnicPolicy, drops_document,
    harness::{Error, Host, stages},
};
use butterfly_packet::{build, protocol::UDP};
use butterfly_vhost::net::NetHeader;

#[test]
fn a_stage_is_one_file_and_one_line() -> Result<(), Error> {
    let (a, b) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
    let mut host = Host::new()?;
    for (id, mac, last) in [("a", a, 1), ("b", b, 2)] {
        let ips = vec![[10, 0, 0, last].into()];
        host.vnic(id, mac, 1, &VnicPolicy { bypass: true, ips, ..VnicPolicy::default() })?;
    }
    let frame = build::ethernet(a, b).ipv4([10, 0, 0, 1], [10, 0, 0, 2]).udp(1, 2, b"one");
    // The worker.
    for _ in 0..4 {
        host.send("a", &frame, NetHeader::default())?;
    }
    assert_eq!(host.received()?.get("b").map(Vec::len), Some(2));
    let report = host.drop_report(None)?;
    let place = report.places.first().ok_or("nothing was dropped")?;
    assert_eq!(place.place, DropPlace::Vnic { id: "a".into(), vni: 1 });
    let rows: Vec<_> = place.rows.iter().map(|row| (row.info.name, row.count)).collect();
    assert_eq!(rows, [("second", 2)]);
    // Explanations: the answer is the second frame.
    let question = Question {
        from: Origin::Vnic("a".into()),
        to: Target::Vnic("b".into()),
        source: None,
        source_mac: None,
        destination_mac: None,
        protocol: UDP,
        source_port: Some(1),
        destination_port: Some(2),
        flags: None,
        icmp: None,
        length: None,
        reply: true,
    };
    let walks = host.explain(&question)?.walks;
    let [there, back] = &walks[..] else { return Err(format!("{walks:?}").into()) };
    assert_eq!(there.fate, Fate::Delivered("b".into()));
    let Fate::Dropped(refused) = &back.fate else { return Err(format!("{back:?}").into()) };
    assert_eq!((refused.reason.name, refused.charged.as_str()), ("second", "b"));
    assert_eq!(back.steps.last().map(|step| step.stage), Some("every_second"));
    // Counts and documents.
    let names = stages();
    let at = |name| names.iter().position(|stage| *stage == name);
    assert!(at("offload") < at("every_second") && at("every_second") < at("forward"));
    assert!(drops_document().contains("\n## second\n\nThe frame is the second of two.\n"));
    Ok(())
}

/// Frames that cross to another network meet that one's vnics, whether one or all of them, in a
/// batch with frames that stay; and receivers get the header that the stage rewrote.
#[test]
fn frames_leave_by_another_network_than_they_came() -> Result<(), Error> {
    let mac = |n: u8| Mac([2, 0, 0, 0, 0, n]);
    let mut host = Host::new()?;
    for (id, n, vni) in [("a", 1, 2), ("near", 2, 2), ("far", 3, 3), ("further", 4, 3)] {
        host.vnic(id, mac(n), vni, &VnicPolicy { bypass: true, ..VnicPolicy::default() })?;
    }
    host.settle();
    let frame = |to: Mac, kind: u16| build::ethernet(mac(1), to).payload(kind, &[7; 46]);
    let (crosses, stays) = (0x88b6, 0x88b5);
    let sent = [
        frame(mac(3), crosses),
        frame(mac(2), stays),
        frame(Mac::BROADCAST, crosses),
        frame(Mac::BROADCAST, stays),
    ];
    let guest = host.guest("a").ok_or("no guest")?;
    for frame in &sent {
        // Every second frame is dropped by the other stage of this build.
        guest.enqueue(frame, NetHeader::default())?;
        guest.enqueue(frame, NetHeader::default())?;
    }
    guest.flush();
    host.settle();
    let mut crossed = sent.clone();
    crossed.iter_mut().for_each(|frame| frame[6..12].copy_from_slice(&[2, 0xcc, 0, 0, 0, 0]));
    let got = host.received()?;
    let sorted = |mut frames: Vec<Vec<u8>>| {
        frames.sort();
        frames
    };
    let of = |id: &str| sorted(got[id].iter().map(|(_, frame)| frame.clone()).collect());
    assert_eq!(of("far"), sorted(vec![crossed[0].clone(), crossed[2].clone()]));
    assert_eq!(of("further"), [crossed[2].clone()]);
    assert_eq!(of("near"), sorted(vec![sent[1].clone(), sent[3].clone()]));
    assert!(!got.contains_key("a"), "a frame came back to its sender");
    assert_eq!(host.learnt(), 0, "the address that the stage wrote is no station's");
    let moved = host.moved();
    let count = |name: &str| moved.get(name).copied().unwrap_or(0);
    assert_eq!((count("a.in.packets"), count("a.flooded"), count("a.drop.second")), (8, 2, 4));
    Ok(())
}
