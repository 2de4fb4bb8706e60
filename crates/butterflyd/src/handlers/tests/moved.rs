//! Requests about vnics whose machines move to another host, or come from one.

use super::host::Host;

/// Returns the data of an export, as a request has it.
fn exported(host: &mut Host, request: &str) -> String {
    let answer = host.succeeds(request);
    let (_, data) = answer.split_once("data: ").unwrap();
    let (data, counts) = data.split_once(" } ").unwrap();
    assert_eq!(counts, "sessions: 0 left_out: 0 }");
    data.to_owned()
}

#[test]
fn an_export_is_imported_where_it_is_declared_alike() {
    let mut host = Host::with_nics();
    let data = exported(&mut host, "nic_export: \"n\"");
    assert_eq!(data, exported(&mut host, "nic_export_to { id: \"n\" to: \"192.0.2.7\" }"));
    let taken = "nic_import { id: \"n\" taken: 0 known: 0 ended: 0 left_out: 0 }";
    let import = format!("nic_import {{ data: {data} }}");
    assert_eq!(host.succeeds(&import), taken);
    for (change, why) in [
        ("mac: \"42:00:00:00:00:ab\"", "MAC 42:00:00:00:00:ab here, 42:00:00:00:00:aa there"),
        ("vni: 2", "VNI 2 here, 1 there"),
        ("ip: \"10.0.0.2\"", "addresses [10.0.0.2] here, [10.0.0.1] there"),
        ("security_group: \"db\"", "security groups [\"db\"] here, [\"web\"] there"),
    ] {
        let mut other = Host::new();
        other.succeeds(&super::nic_with(change));
        let (refused, help) = other.fails(&import);
        let expected = format!("nic n is not declared as on the other host: {why}");
        assert_eq!(refused, expected);
        assert_eq!(help, "declare both alike, then import again");
    }
    let (refused, help) = Host::new().fails(&import);
    assert_eq!(refused, "NIC does not exist with id n");
    assert_eq!(help, "declare it here first, as it is declared on the other host");
}

#[test]
fn what_is_no_export_and_no_host_is_refused() {
    let mut host = Host::with_nics();
    for (request, why) in [
        ("nic_export_to { id: \"x\" to: \"192.0.2.7\" }", "NIC does not exist with id x"),
        ("nic_export_to { id: \"n\" }", "\"\" is no IP address of a tunnel endpoint"),
        ("nic_export_to { id: \"n\" to: \"h2\" }", "\"h2\" is no IP address of a tunnel endpoint"),
        (
            "nic_export_to { id: \"n\" to: \"::1\" }",
            "nic n cannot leave for ::1: the tunnel's addresses are of the other family",
        ),
        (
            "nic_import { data: \"{}\" }",
            "the export is refused: it is no export: missing field `kind` at line 1 column 2",
        ),
    ] {
        assert_eq!(host.fails(request).0, why, "{request}");
    }
}
