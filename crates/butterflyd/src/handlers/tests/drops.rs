//! Requests about what was dropped.

use super::host::Host;
use butterfly_datapath::Mac;
use butterfly_packet::build;

#[test]
fn drops_of_the_whole_host_are_listed_with_their_reasons() {
    let mut host = Host::with_nics();
    let list = host.ask("drop_list { }").drop_list.unwrap();
    assert_eq!(
        (list.time_ms(), list.window_ms(), list.total(), list.left_out),
        (107_000, 7_500, 7 + 3 * 106, None)
    );
    let text = host.succeeds("drop_list { }");
    let info: Vec<_> = butterfly_datapath::reasons().collect();
    let (own, foreign, gone) = (info[3].name, info[4].name, info[5].name);
    let of_vnic = |count| {
        format!(
            "drop {{ reason: \"{own}\" count: {count} recent: 1 last_ms: 300 last_packet: \"a packet\" }}"
        )
    };
    for part in [
        format!("place {{ kind: NIC nic_id: \"bypass\" vni: 2 {} }}", of_vnic(6)),
        format!("place {{ kind: NIC nic_id: \"n\" vni: 1 {} }}", of_vnic(1)),
        format!(
            "place {{ kind: NETWORK vni: 7 drop {{ reason: \"{foreign}\" count: 106 last_ms: 0 }} }}"
        ),
        format!("place {{ kind: UPLINK drop {{ reason: \"{foreign}\" count: 106 }} }}"),
        format!("place {{ kind: GONE drop {{ reason: \"{gone}\" count: 106 }} }}"),
    ] {
        assert!(text.contains(&part), "{part} is not in {text}");
    }
    // Each reason once, with everything that is known of it.
    let told: Vec<&str> = list.reason.iter().map(|reason| reason.name()).collect();
    assert_eq!(told, [own, foreign, gone]);
    for (reason, info) in list.reason.iter().zip(&info[3..]) {
        let told = [reason.description(), reason.cause(), reason.remedy(), reason.charged()];
        assert_eq!(told, [info.description.trim(), info.cause, info.remedy, info.charged]);
    }
}

#[test]
fn drops_of_one_vnic_are_listed_alone() {
    let mut host = Host::with_nics();
    let list = host.ask("drop_list { nic_id: \"bypass\" }").drop_list.unwrap();
    let places: Vec<_> = list.place.iter().map(|place| (place.nic_id(), place.vni())).collect();
    assert_eq!((places, list.total(), list.reason.len()), (vec![("bypass", 2)], 6, 1));
    assert_eq!(
        host.fails("drop_list { nic_id: \"nobody\" }").0,
        "NIC does not exist with id nobody"
    );
    assert_eq!(host.fails("drop_list { nic_id: \"\" }").0, "NIC does not exist with id ");
}

/// The advice is that of `explain`.
#[test]
fn what_to_do_has_the_words_of_the_last_packet() {
    let mut host = Host::with_nics();
    host.fake().reason = Some("ingress-denied");
    let remedy = |host: &mut Host| {
        let list = host.ask("drop_list { nic_id: \"n\" }").drop_list.unwrap();
        list.place[0].drop[0].remedy.clone()
    };
    assert_eq!(remedy(&mut host), None, "of a packet that nobody knows");
    let frame = build::ethernet(Mac([2; 6]), Mac([4; 6]))
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2])
        .tcp(&build::Tcp::new(1, 443, 2), &[]);
    host.fake().head = frame[..60.min(frame.len())].to_vec();
    let rule = "`butterfly sg rule add web --ip-proto tcp --port 443 --cidr 10.0.0.1/32`";
    let told = |host: &mut Host| remedy(host).unwrap();
    let alone = format!("add what the packet needs to one of its groups (web): {rule}");
    assert_eq!(told(&mut host), alone);
    // Of two groups the rule goes into one that is there.
    let group = |id: &str, peer: &str| {
        let rule = format!("direction: INBOUND protocol: 6 port_start: 443 port_end: 443 {peer}");
        format!("sg_add {{ id: \"{id}\" rule {{ {rule} }} }}")
    };
    host.succeeds("nic_update { id: \"n\" security_group: \"absent\" security_group: \"web\" }");
    host.succeeds(&group("web", "cidr { address: \"10.9.0.0\" mask_size: 16 }"));
    let both = alone.replace("(web)", "(absent, web)");
    assert_eq!(told(&mut host), both);
    // What needs no new rule comes first: a member of a group that is let in, a group to be in.
    host.succeeds(&group("web", "security_group: \"admins\""));
    host.succeeds(&group("support", "cidr { address: \"10.0.0.0\" mask_size: 24 }"));
    host.succeeds(&group("others", "cidr { address: \"10.0.1.0\" mask_size: 24 }"));
    assert_eq!(
        told(&mut host),
        format!(
            "if 10.0.0.1 belongs to admins: `butterfly sg member add admins 10.0.0.1`; if n belongs to support: \
             `butterfly nic sg add n support`; else {both}"
        )
    );
    // A group whose members are let in, where that is one.
    host.succeeds("sg_member_add { sg_id: \"admins\" member: \"10.0.0.1\" }");
    host.succeeds("sg_del: \"support\"");
    host.succeeds("nic_update { id: \"n\" security_group: \"absent\" }");
    assert_eq!(
        told(&mut host),
        format!(
            "if n belongs to web: `butterfly nic sg add n web`; else {}",
            both.replace("(absent, web)", "(absent)").replace("add web", "add absent")
        )
    );
}
