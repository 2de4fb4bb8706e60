//! Random sequences of requests, and checks of what must always be true.

use super::host::Host;
use butterfly_datapath::{Front, VnicPolicy};
use butterfly_model::{Network, Vni};
use std::collections::BTreeMap;

/// Returns a random request. Its ids, addresses and networks are few, so that requests collide.
fn any_request() -> impl proptest::strategy::Strategy<Value = String> {
    use proptest::prelude::*;
    let id = prop_oneof![Just("a"), Just("b"), Just("c")];
    let flags = (any::<bool>(), any::<bool>());
    let kind = prop_oneof![
        Just(""),
        Just("type: VHOST_USER_CLIENT"),
        Just("type: VHOST_USER_CLIENT path: \"/run/b/qemu-vhost-a\"")
    ];
    let add =
        (id.clone(), 1..3, 1..3, flags, kind).prop_map(|(id, mac, vni, (bypass, spoof), kind)| {
            format!(
                "nic_add {{ id: \"{id}\" mac: \"02:00:00:00:00:0{mac}\" vni: {vni} \
                 bypass_filtering: {bypass} ip_anti_spoof: {spoof} {kind} }}"
            )
        });
    let change = [
        "ip: \"::1\"",
        "ip: \"\"",
        "ip: \"x\"",
        "security_group: \"g\" security_group: \"h\"",
        "security_group: \"\"",
    ];
    let nics = proptest::collection::vec(add.clone(), 0..4);
    let apply = (nics, any::<bool>(), any::<bool>()).prop_map(|(nics, group, prune)| {
        let nics = nics.join(" ").replace("nic_add", "nic");
        let group = match group {
            true => {
                "security_group { id: \"g\" member: \"::1\" \
                 rule { direction: INBOUND protocol: -1 security_group: \"h\" } }"
            }
            false => "",
        };
        format!("apply {{ {nics} {group} prune: {prune} }}")
    });
    let update = (id.clone(), any::<bool>(), proptest::sample::select(change.to_vec())).prop_map(
        |(id, spoof, ip)| format!("nic_update {{ id: \"{id}\" ip_anti_spoof: {spoof} {ip} }}"),
    );
    let group = prop_oneof![
        Just("sg_add { id: \"G\" member: \"M\" rule { R } rule { R } }"),
        Just("sg_add { id: \"G\" }"),
        Just("sg_del: \"G\""),
        Just("sg_rule_add { sg_id: \"G\" rule { R } }"),
        Just("sg_rule_del { sg_id: \"G\" rule { R } }"),
        Just("sg_member_add { sg_id: \"G\" member: \"M\" }"),
        Just("sg_member_del { sg_id: \"G\" member: \"M\" }"),
    ];
    let routed = [
        "network_add { vni: 1 subnet { cidr { address: \"10.0.0.0\" mask_size: 8 } gateway: \"10.0.0.1\" } }",
        "network_add { vni: 1 subnet { cidr { address: \"fd00::\" mask_size: 64 } gateway: \"fd00::1\" } }",
        "network_add { vni: 2 subnet { cidr { address: \"10.0.0.0\" mask_size: 24 } } }",
        "network_del: 1",
        "network_del: 2",
        "router_add { id: \"r\" }",
        "router_add { id: \"s\" attachment { vni: 2 address: \"10.0.0.7\" } }",
        "router_attach { router: \"r\" vni: 1 }",
        "router_attach { router: \"s\" vni: 1 address: \"10.0.0.2\" }",
        "router_detach { router: \"r\" vni: 1 }",
        "router_del: \"s\"",
        "route_add { router: \"r\" cidr { address: \"192.0.2.0\" mask_size: 24 } via: \"10.0.0.8\" }",
        "route_add { router: \"s\" cidr { address: \"0.0.0.0\" mask_size: 0 } }",
        "route_del { router: \"r\" cidr { address: \"192.0.2.0\" mask_size: 24 } }",
        "neighbour_add { vni: 1 address: \"10.0.0.1\" mac: \"02:00:00:00:00:09\" }",
        "neighbour_add { vni: 1 address: \"10.0.0.2\" mac: \"02:00:00:00:00:09\" host: \"192.0.2.2\" }",
        "neighbour_add { vni: 1 address: \"10.0.0.2\" mac: \"02:00:00:00:00:08\" }",
        "neighbour_add { vni: 2 address: \"::1\" mac: \"02:00:00:00:00:09\" }",
        "neighbour_add { vni: 2 address: \"fd00::9\" mac: \"02:00:00:00:00:09\" }",
        "neighbour_del { vni: 1 address: \"10.0.0.2\" }",
        "neighbour_del { vni: 2 address: \"fd00::9\" }",
        "external_add { id: \"x\" uplink: \"eth1\" address: \"192.0.2.7/24\" gateway: \"192.0.2.1\" }",
        "external_add { id: \"x\" uplink: \"gone\" address: \"192.0.2.7/24\" }",
        "external_add { id: \"y\" vni: 2 address: \"10.0.0.7/24\" }",
        "external_del: \"x\"",
        "router_attach { router: \"r\" external: \"x\" address: \"192.0.2.7\" }",
        "router_attach { router: \"s\" external: \"x\" }",
        "router_detach { router: \"r\" external: \"x\" }",
        "nat_add { router: \"r\" external: \"x\" kind: SNAT address: \"192.0.2.9\" }",
        "nat_add { router: \"s\" external: \"x\" kind: FORWARD address: \"192.0.2.9\" inside: \"10.0.0.7\" protocol: 6 port: 80 }",
        "nat_add { router: \"s\" external: \"x\" kind: FLOATING address: \"192.0.2.10\" inside: \"10.0.0.7\" }",
        "nat_del { external: \"x\" address: \"192.0.2.9\" }",
        "nat_del { external: \"x\" address: \"192.0.2.9\" protocol: 6 port: 80 }",
        "apply { external { id: \"x\" uplink: \"eth2\" address: \"192.0.2.7/24\" } router { id: \"r\" attachment { external: \"x\" } } nat { router: \"r\" external: \"x\" kind: SNAT address: \"192.0.2.9\" } prune: true }",
        "apply { external { id: \"x\" uplink: \"gone\" address: \"192.0.2.7/24\" } }",
        "apply { neighbour { vni: 1 address: \"10.0.0.7\" mac: \"02:00:00:00:00:09\" } prune: true }",
    ];
    let rules = [
        "direction: INBOUND protocol: -1 security_group: \"g\"",
        "direction: OUTBOUND protocol: 6 port_start: 1 port_end: 2 cidr { address: \"::\" mask_size: 0 }",
        "direction: OUTBOUND protocol: 6",
    ];
    let members = ["10.0.0.1", "::1", "10.0.0"];
    let select = |of: &[&'static str]| proptest::sample::select(of.to_vec());
    let group = (group, select(&["g", "h"]), select(&rules), select(&members)).prop_map(
        |(request, name, rule, member)| {
            request
                .replace('G', name)
                .replace("\"M\"", &format!("\"{member}\""))
                .replace("{ R }", &format!("{{ {rule} }}"))
        },
    );
    prop_oneof![4 => add, 3 => apply, 1 => update, 1 => id.prop_map(|id| format!("nic_del: \"{id}\"")), 6 => group, 3 => select(&routed).prop_map(str::to_owned)]
}

/// Checks that the data path has what was declared, and that no two vnics have what only one may
/// have.
fn check_invariants(host: &mut Host) {
    let daemon = host.envelope.handler();
    let declared: Vec<_> = daemon.desired.vnics().iter().collect();
    assert!(declared.iter().map(|nic| nic.id.as_str()).eq(daemon.dataplane.vnics.keys()));
    for (nic, spec) in declared.iter().zip(daemon.dataplane.vnics.values()) {
        let policy = VnicPolicy {
            prefixes: nic.prefixes.iter().collect(),
            bypass: nic.bypass_filtering,
            ip_anti_spoof: nic.ip_anti_spoof,
            forwards: nic.forwards,
            shared_ip: nic.shared_ip,
            router: nic.router,
            limits: nic.limits,
            ips: nic.ips.addresses().collect(),
            groups: nic.security_groups.names().to_vec(),
        };
        assert_eq!((spec.mac.0, spec.vni, &spec.policy), (nic.mac.octets(), nic.vni, &policy));
        let Front::Socket { path, .. } = &spec.front else { panic!("{spec:?}") };
        assert_eq!(path, nic.kind.socket().unwrap().path());
        assert_eq!(spec.order, daemon.desired.vnics().order(nic));
    }
    assert_eq!(*daemon.desired.groups(), daemon.dataplane.groups);
    let routed = daemon.desired.routed();
    let outside = routed.externals().map(|external| (external.vni(), external.network().clone()));
    let networks = routed.networks().map(|network| (network.vni(), network.clone()));
    let networks: BTreeMap<Vni, Network> = networks.chain(outside).collect();
    assert_eq!(networks, daemon.dataplane.networks);
    let lowered = routed.routers().map(|router| routed.lowered(router, None, |_| true));
    assert!(lowered.eq(daemon.dataplane.routers.values().cloned()));
    let wires = routed.externals().map(|external| (external.vni(), external.clone()));
    assert!(wires.collect::<BTreeMap<_, _>>() == daemon.dataplane.wires);
    let nats = routed.translating().map(|(router, external)| {
        let vni = routed.external(external.as_str()).unwrap().vni();
        ((router.clone(), vni), routed.nats(router, external).copied().collect::<Vec<_>>())
    });
    assert!(nats.collect::<BTreeMap<_, _>>() == daemon.dataplane.nats);
    assert!(routed.neighbours().eq(daemon.dataplane.neighbours.values()));
    for (number, one) in declared.iter().enumerate() {
        for other in &declared[..number] {
            assert_ne!(one.kind.socket(), other.kind.socket());
        }
    }
}

proptest::proptest! {
    #[test]
    fn any_sequence_keeps_declaration_and_data_path_together(
        sequence in proptest::collection::vec((any_request(), proptest::array::uniform2(proptest::bool::weighted(0.2))), 1..30)
    ) {
        let mut host = Host::new();
        host.fake().no_interface = Some("gone".into());
        for (request, refusals) in sequence {
            let before = host.declared();
            host.fake().refusals = refusals.map(|refused| refused.then_some("no")).into();
            let response = host.ask(&request);
            check_invariants(&mut host);
            let help = response.status.error.help();
            let gone = help.contains("gone") || help.contains("could not be restored");
            if !response.status.status() && !gone {
                assert_eq!(host.declared(), before, "{request} failed and changed something");
            }
        }
    }
}
