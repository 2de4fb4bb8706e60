//! Externals where an operator looks: what passes by their wires, and their names.

use super::host::Host;
use butterfly_datapath::{
    Front, Mac, Machine, Origin, OutsideEnd, VnicPolicy, VnicSpec, WireConfig, WireLoss,
    WireReport, WireState,
};
use butterfly_model::Vni;

const NETWORK: &str = "network_add { vni: 42 subnet { cidr { address: \"10.0.0.0\" mask_size: 24 } gateway: \"10.0.0.1\" } }";
const INTERNET: &str = "external_add { id: \"internet\" uplink: \"eth1\" address: \"192.0.2.7/24\" gateway: \"192.0.2.1\" }";
const LAB: &str = "external_add { id: \"lab\" vni: 51 address: \"198.51.100.7/24\" }";

fn report(state: WireState) -> WireReport {
    let loss = |name, frames| WireLoss {
        name,
        description: "Frames.",
        remedy: "`ip link set dev IFACE up`",
        frames,
    };
    let losses = vec![loss("wire-gone", 0), loss("wire-tx-full", 3)];
    WireReport { interface: "eth1".into(), is_tap: false, state, losses }
}

/// A host with an external that has a wire, and one that has none.
fn host() -> Host {
    let mut host = Host::new();
    for request in [NETWORK, INTERNET, LAB] {
        host.succeeds(request);
    }
    let config = WireConfig { interface: "eth1".into(), vlan: 0 };
    let spec = VnicSpec {
        id: "wire/internet".into(),
        mac: Mac([2, 0, 0, 0, 0, 1]),
        vni: Vni::new(16_777_215).unwrap(),
        front: Front::Inside(Machine::Wire(config)),
        policy: VnicPolicy { bypass: true, ..VnicPolicy::default() },
        sniff_target: None,
        order: 0,
        birth: 0,
    };
    host.fake().vnics.insert(spec.id.clone(), spec);
    host.fake().wire = Some(report(WireState::Up));
    host
}

#[test]
fn a_wire_is_told_with_what_it_lost() {
    let mut host = host();
    let list = host.ask("external_list: true").external_list;
    let [internet, lab] = &list[..] else { panic!("{list:?}") };
    assert!(lab.wire.is_none());
    let wire = &internet.wire;
    assert_eq!((wire.interface(), wire.trouble.as_ref()), ("eth1", None));
    let passed = [wire.in_packets(), wire.in_bytes(), wire.out_packets(), wire.out_bytes()];
    assert_eq!(passed, [1, 100, 2, 200]);
    assert_eq!(wire.drop.len(), butterfly_datapath::reasons().count());
    let [loss] = &wire.loss[..] else { panic!("{wire:?}") };
    assert_eq!((loss.reason(), loss.count()), ("wire-tx-full", 3));
    assert_eq!((loss.description(), loss.remedy()), ("Frames.", "`ip link set dev eth1 up`"));
}

#[test]
fn an_interface_by_which_nothing_passes_is_told() {
    let mut host = host();
    for (state, is_tap, told) in [
        (WireState::Down, false, "eth1 is down, nothing passes: `ip link set dev eth1 up`"),
        (WireState::NoCarrier, false, "its interface eth1 has no carrier"),
        (WireState::Gone, false, "it is opened anew when it is back"),
        (WireState::Gone, true, "its TAP device eth1 is gone, nothing passes: detach"),
    ] {
        host.fake().wire = Some(WireReport { is_tap, ..report(state) });
        let list = host.ask("external_list: true").external_list;
        let trouble = list[0].wire.trouble();
        assert!(trouble.contains(told), "{trouble}");
    }
    host.fake().wire = Some(report(WireState::Up));
    host.fake().gone.insert("wire/internet".into());
    assert_eq!(host.ask("external_list: true").external_list[0].wire.trouble(), "it crashed");
}

#[test]
fn a_wire_is_asked_about_like_a_vnic() {
    let mut host = host();
    let list = host.ask("drop_list { nic_id: \"wire/internet\" }").drop_list.unwrap();
    let places: Vec<_> = list.place.iter().map(|place| place.nic_id()).collect();
    assert_eq!(places, ["wire/internet"]);
    for (id, why) in [
        ("wire/lab", "external lab has no wire"),
        ("wire/intern", "\"intern\""),
        ("wire/", "\"\""),
        ("internet", "NIC does not exist with id internet"),
    ] {
        for request in [
            format!("drop_list {{ nic_id: \"{id}\" }}"),
            format!("trace {{ start {{ target {{ nic_id: \"{id}\" }} }} }}"),
        ] {
            let (told, _) = host.fails(&request);
            assert!(told.contains(why), "{told}");
        }
    }
    // Of a wire that is known it is only refused as the recorder of tests has no thread.
    let trace = "trace { start { target { nic_id: \"wire/internet\" } } }";
    assert!(!host.ask(trace).to_string().contains("wire/internet"));
}

#[test]
fn packets_from_outside_come_by_the_name_of_an_external() {
    let mut host = host();
    let from = |by: &str| {
        let to = "to_address: \"10.0.0.2\" destination_mac: \"02:00:00:00:00:04\"";
        format!("explain {{ {by} {to} source: \"198.51.100.1\" }}")
    };
    let answer = host.ask(&from("external: \"internet\"")).explain.unwrap();
    assert_eq!(host.fake().question.take().unwrap().from, Origin::Outside(16_777_215));
    assert_eq!(answer.external, None, "the answer is about network 1");
    let walk = &answer.walk[0];
    assert_eq!((walk.routed.vni(), walk.routed.external()), (51, "lab"));
    let step = &walk.step[0];
    assert_eq!(step.text(), "because of external lab");
    assert_eq!(step.detail, ["more of VNI 510, external lab: VNI x"]);
    for (by, why) in [
        ("", "nobody sends the packet"),
        ("external: \"internets\"", "\"internets\""),
        ("external: \"lab\" vni: 42", "a packet comes from a network or from an external"),
    ] {
        let (told, _) = host.fails(&from(by));
        assert!(told.contains(why), "{told}");
    }
}

#[test]
fn sessions_tell_the_ends_outside() {
    let mut host = host();
    let address = "192.0.2.80".parse().unwrap();
    host.fake().outside = Some(OutsideEnd { vni: 16_777_215, address, port: 4001 });
    let list = host.ask("session_list { limit: 1 }").session_list.unwrap();
    let session = &list.session[0];
    let outside = &session.opener.outside;
    let told = (outside.external(), outside.address(), outside.port());
    assert_eq!(told, ("internet", "192.0.2.80", 4001));
    assert!(session.responder.outside.is_none());
}

#[test]
fn what_is_declared_for_routers_is_counted() {
    let mut host = host();
    host.succeeds(
        "router_add { id: \"r\" attachment { vni: 42 } attachment { external: \"internet\" } \
         route { cidr { address: \"10.9.0.0\" mask_size: 16 } via: \"10.0.0.9\" } }",
    );
    host.succeeds("nat_add { router: \"r\" kind: FLOATING external: \"internet\" address: \"192.0.2.10\" inside: \"10.0.0.11\" }");
    let health = host.ask("app_health: true").app_health.unwrap();
    let counts = [health.networks(), health.routers(), health.routes(), health.externals()];
    assert_eq!((counts, health.nats()), ([1, 1, 1, 2], 1));
}
