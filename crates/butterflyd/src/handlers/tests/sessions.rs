//! Requests about sessions.

use super::host::Host;
use butterfly_datapath::SessionFilter;

#[test]
fn sessions_are_told_with_what_admitted_them() {
    let mut host = Host::with_nics();
    let first = "session { vni: 1 vlan: 2 protocol: 17 opener { nic_id: \"n\" address: \"10.0.0.1\" port: 4000 } \
                 responder { address: \"::0.1.0.0\" port: 53 } state: \"answered\" age: 3 idle: 4 expires: 5 \
                 opener_packets: 6 opener_bytes: 8 responder_packets: 7 responder_bytes: 9 egress { kind: DEFAULT_EGRESS } \
                 ingress { kind: RULE security_group: \"web\" rule { direction: INBOUND protocol: 17 port_start: 0 \
                 port_end: 65535 cidr { address: \"1.2.3.0\" mask_size: 24 } } } }";
    let one = host.succeeds("session_list { limit: 1 }");
    assert_eq!(one, format!("session_list {{ matching: 70 {first} }}"));
    let two = host.succeeds("session_list { }");
    assert!(
        two.starts_with(&format!(
            "session_list {{ matching: 70 {first} session {{ vni: 1 protocol: 17 "
        )),
        "{two}"
    );
    assert!(two.ends_with("egress { kind: BYPASS } ingress { kind: GONE } } }"), "{two}");
    assert_eq!(host.succeeds("session_list { limit: 0 }"), "session_list { matching: 70 }");
}

#[test]
fn what_is_meant_reaches_the_data_path() {
    let all = SessionFilter::default;
    for (filter, expected) in [
        ("", all()),
        ("nic_id: \"n\"", SessionFilter { nic: Some("n".into()), ..all() }),
        ("vni: 16777215", SessionFilter { vni: Some(0xff_ffff), ..all() }),
        ("protocol: 255", SessionFilter { protocol: Some(255), ..all() }),
        ("address: \"0::1\"", SessionFilter { address: Some("::1".parse().unwrap()), ..all() }),
        ("port: 65535", SessionFilter { port: Some(65535), ..all() }),
    ] {
        let mut host = Host::with_nics();
        host.succeeds(&format!("session_list {{ filter {{ {filter} }} limit: 10000 }}"));
        let asked = |host: &mut Host| {
            let (filter, limit) = host.fake().asked.take().unwrap();
            (format!("{filter:?}"), limit)
        };
        let expected = format!("{expected:?}");
        assert_eq!(asked(&mut host), (expected.clone(), 10_000));
        host.succeeds(&format!("session_list {{ filter {{ {filter} }} }}"));
        assert_eq!(asked(&mut host), (expected.clone(), 1000), "the limit if none is given");
        assert_eq!(
            host.succeeds(&format!("session_flush {{ {filter} }}")),
            "session_flush { flushed: 71 }"
        );
        assert_eq!(asked(&mut host).0, expected);
    }
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for (filter, description) in [
        ("nic_id: \"x\"", "NIC does not exist with id x"),
        ("vni: 16777216", "VNI 16777216 is out of range: VNIs are 0 to 16777215"),
        ("protocol: 256", "protocol 256 is out of range: 0 to 255"),
        ("port: 65536", "port 65536 is out of range: 0 to 65535"),
        ("address: \"10.0.0.0/8\"", "Bad IP format"),
    ] {
        let mut host = Host::with_nics();
        for request in [
            format!("session_list {{ filter {{ {filter} }} }}"),
            format!("session_flush {{ {filter} }}"),
        ] {
            assert_eq!(host.fails(&request).0, description, "{request}");
            assert!(host.fake().asked.take().is_none(), "{request}");
        }
    }
    let (description, help) = Host::new().fails("session_list { limit: 10001 }");
    assert_eq!(description, "limit 10001 is out of range: 0 to 10000");
    assert!(help.contains("filter"), "{help}");
}

#[test]
fn the_table_is_told_with_the_time_outs_in_force() {
    let mut host = Host::new();
    let table = host.ask("session_table: false").session_table.unwrap();
    assert_eq!((table.capacity(), table.used(), table.memory()), (73, 74, "memory"));
    assert_eq!((table.tcp_pickup(), table.share()), (75, 76));
    let timeouts: Vec<_> =
        table.timeout.iter().map(|timeout| (timeout.name(), timeout.seconds())).collect();
    assert_eq!(timeouts.len(), crate::config::timeouts::ALL.len());
    assert_eq!(timeouts[0], ("tcp-new", 30));
    assert!(timeouts.contains(&("other", 77)) && timeouts.contains(&("tcp-established", 86400)));
    assert!(table.timeout.iter().all(|timeout| !timeout.description().is_empty()));
}
