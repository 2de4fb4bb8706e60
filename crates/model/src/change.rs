//! What has to happen when one declaration of a vnic replaces another.

use crate::{
    netns::Netns,
    nic::{Kind, Nic},
};

/// The way from one declared state of a vnic to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NicChange {
    /// They are the same.
    Nothing,
    /// The virtual machine stays attached.
    InPlace,
    /// The vnic has to be removed and made anew, and its virtual machine is cut: because of these
    /// properties.
    Recreate(Vec<&'static str>),
}

impl NicChange {
    /// From `old` to `new`, two states of one vnic.
    pub fn between(old: &Nic, new: &Nic) -> Self {
        let reasons: Vec<_> = [
            ("type", kind(&old.kind) != kind(&new.kind)),
            // Another spelling of the same address is only echoed.
            ("mac", old.mac.octets() != new.mac.octets()),
            ("vni", old.vni != new.vni),
            ("path", old.kind.socket() != new.kind.socket()),
            // A mirror is another thing than a station.
            ("sniff target", old.sniff_target != new.sniff_target),
            ("network namespace", netns(&old.kind) != netns(&new.kind)),
        ]
        .into_iter()
        .filter_map(|(name, differs)| differs.then_some(name))
        .collect();
        if !reasons.is_empty() {
            Self::Recreate(reasons)
        } else if old == new {
            Self::Nothing
        } else {
            Self::InPlace
        }
    }
}

/// The network namespace of a TAP device.
fn netns(kind: &Kind) -> Option<&Netns> {
    if let Kind::Tap { netns } = kind { netns.as_ref() } else { None }
}

/// The kind without the socket and the network namespace.
fn kind(kind: &Kind) -> impl PartialEq {
    match kind {
        Kind::VhostUser { role, .. } => (Some(*role), None, false),
        Kind::Bench(bench) => (None, Some(bench.clone()), false),
        Kind::Tap { .. } => (None, None, true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GroupNames, IpSet, Mac, Role, SocketPath, Vni, nic::tests::nic};
    use std::path::Path;

    fn change(edit: impl FnOnce(&mut Nic)) -> NicChange {
        let (old, mut new) = (nic(), nic());
        edit(&mut new);
        NicChange::between(&old, &new)
    }

    fn socket(role: Role, path: &str) -> Kind {
        Kind::VhostUser { role, socket: SocketPath::new(Path::new(path)).unwrap() }
    }

    #[test]
    fn identical_declarations_change_nothing() {
        assert_eq!(change(|_| ()), NicChange::Nothing);
    }

    #[test]
    fn addresses_groups_and_flags_change_in_place() {
        let edits: [fn(&mut Nic); 10] = [
            |nic| nic.ips = IpSet::default(),
            |nic| nic.security_groups = GroupNames::default(),
            |nic| nic.ip_anti_spoof = true,
            |nic| nic.bypass_filtering = true,
            |nic| nic.forwards = true,
            |nic| nic.shared_ip = true,
            |nic| nic.router = true,
            |nic| nic.packet_trace = true,
            |nic| nic.packet_trace_path = Some("/tmp/x".into()),
            |nic| nic.trace_options.snap_length = 100,
        ];
        for (number, edit) in edits.into_iter().enumerate() {
            assert_eq!(change(edit), NicChange::InPlace, "edit {number}");
        }
    }

    #[test]
    fn type_mac_vni_path_and_sniff_target_recreate() {
        let recreate = |reasons: &[&'static str]| NicChange::Recreate(reasons.to_vec());
        assert_eq!(
            change(|nic| nic.kind = socket(Role::Client, "/run/b/qemu-vhost-nic-1")),
            recreate(&["type"])
        );
        assert_eq!(change(|nic| nic.kind = socket(Role::Server, "/x")), recreate(&["path"]));
        assert_eq!(change(|nic| nic.kind = Kind::Tap { netns: None }), recreate(&["type", "path"]));
        assert_eq!(change(|nic| nic.vni = Vni::new(1).unwrap()), recreate(&["vni"]));
        assert_eq!(change(|nic| nic.sniff_target = Some("x".into())), recreate(&["sniff target"]));
        let mac = |text| Mac::parse(text).unwrap();
        assert_eq!(change(|nic| nic.mac = mac("42:42:42:42:42:02")), recreate(&["mac"]));
        let everything = change(|nic| {
            nic.kind = socket(Role::Client, "/x");
            nic.mac = mac("42:42:42:42:42:02");
            nic.vni = Vni::new(1).unwrap();
            nic.ip_anti_spoof = true;
        });
        assert_eq!(everything, recreate(&["type", "mac", "vni", "path"]));
    }

    #[test]
    fn another_network_namespace_recreates() {
        let tap = |netns: Option<&str>| {
            let kind = Kind::Tap { netns: netns.map(|text| Netns::new(text).unwrap()) };
            Nic { kind, ..nic() }
        };
        assert_eq!(NicChange::between(&tap(Some("a")), &tap(Some("a"))), NicChange::Nothing);
        for (old, new) in [(None, Some("a")), (Some("a"), None), (Some("a"), Some("b"))] {
            assert_eq!(
                NicChange::between(&tap(old), &tap(new)),
                NicChange::Recreate(vec!["network namespace"])
            );
        }
    }

    #[test]
    fn another_spelling_of_the_mac_is_no_other_mac() {
        let (mut old, mut new) = (nic(), nic());
        old.mac = Mac::parse("aa:00:00:00:00:01").unwrap();
        new.mac = Mac::parse("AA:00:00:00:00:01").unwrap();
        assert_eq!(NicChange::between(&old, &new), NicChange::InPlace);
    }
}
