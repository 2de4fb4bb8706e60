//! Changes of the desired state, and what one declaration of a vnic makes of another.

use crate::peers::TunnelPeer;
use butterfly_model::{
    External, ExternalId, GroupName, Kind, Member, Nat, Neighbour, Netns, Network, Nic, NicId,
    Router, RouterId, Rule, SecurityGroup, Vni,
};
use std::net::IpAddr;

/// One change of the desired state.
///
/// Changes of members and rules that change nothing (a member that is there is added) are no
/// errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A vnic comes, behind all others that declare its MAC address.
    AddVnic(Box<Nic>),
    /// A vnic changes while its VM stays attached: see [`NicChange::InPlace`].
    ChangeVnic(Box<Nic>),
    /// A vnic is removed and made again with the same id, which cuts its VM off. It keeps its place
    /// among those that declare its MAC address if the address stays.
    RemakeVnic(Box<Nic>),
    /// A vnic goes.
    RemoveVnic(NicId),
    /// A security group comes, or has this content as a whole from now on.
    DeclareGroup(SecurityGroup),
    /// A security group goes; vnics and rules may go on naming it.
    RemoveGroup(GroupName),
    /// A rule is added to a security group.
    AddRule(GroupName, Rule),
    /// A rule is removed from a security group.
    RemoveRule(GroupName, Rule),
    /// A member is added to a security group, behind the others.
    AddMember(GroupName, Member),
    /// A member is removed from a security group.
    RemoveMember(GroupName, Member),
    /// A tunnel endpoint is named.
    NamePeer(TunnelPeer),
    /// A tunnel endpoint is not named any more.
    UnnamePeer(TunnelPeer),
    /// A network comes, or has these subnets and this MTU from now on.
    DeclareNetwork(Network),
    /// A declared network goes; its vnics stay, as in a network that was never declared.
    RemoveNetwork(Vni),
    /// A router comes, or joins exactly these networks from now on.
    DeclareRouter(Router),
    /// A router goes.
    RemoveRouter(RouterId),
    /// A neighbour comes, or has this MAC address and host from now on.
    DeclareNeighbour(Neighbour),
    /// The neighbour with this address in this network goes.
    RemoveNeighbour(Vni, IpAddr),
    /// An external comes, or has these addresses, gateways and this wire from now on.
    DeclareExternal(External),
    /// An external goes; no router is attached to it.
    RemoveExternal(ExternalId),
    /// A router has exactly these translations at an external from now on.
    DeclareNat(RouterId, ExternalId, Vec<Nat>),
}

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
    ///
    /// ```
    /// # use butterfly_control::NicChange;
    /// # use butterfly_model::*;
    /// # let id = NicId::new("vm-1").unwrap();
    /// # let kind = Kind::Tap { netns: None };
    /// # let old = Nic {
    /// #     id, kind, mac: Mac::parse("52:54:00:00:00:01").unwrap(), vni: Vni::new(7).unwrap(),
    /// #     ips: IpSet::default(), prefixes: PrefixSet::default(),
    /// #     security_groups: GroupNames::default(), ip_anti_spoof: false,
    /// #     bypass_filtering: false, forwards: false, shared_ip: false, router: false,
    /// #     limits: Limits::default(), sniff_target: None, packet_trace: false,
    /// #     packet_trace_path: None, trace_options: TraceOptions::default(),
    /// # };
    /// let filtered_otherwise = Nic { ip_anti_spoof: true, ..old.clone() };
    /// assert_eq!(NicChange::between(&old, &filtered_otherwise), NicChange::InPlace);
    /// let moved = Nic { vni: Vni::new(8).unwrap(), ..old.clone() };
    /// assert_eq!(NicChange::between(&old, &moved), NicChange::Recreate(vec!["vni"]));
    /// ```
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
    use butterfly_model::{
        GroupNames, IpSet, Mac, PrefixSet, Role, SocketDir, SocketPath, TraceOptions,
    };
    use std::path::Path;

    fn nic() -> Nic {
        let id = NicId::new("nic-1").unwrap();
        let kind =
            Kind::vhost_user(Role::Server, &id, None, &SocketDir::new("/run/b".into())).unwrap();
        Nic {
            id,
            mac: Mac::parse("42:42:42:42:42:01").unwrap(),
            vni: Vni::new(1337).unwrap(),
            ips: IpSet::parse(["10.0.0.1"]).unwrap(),
            prefixes: Default::default(),
            security_groups: GroupNames::parse(["web"]).unwrap(),
            ip_anti_spoof: false,
            bypass_filtering: false,
            forwards: false,
            shared_ip: false,
            router: false,
            limits: Default::default(),
            sniff_target: None,
            kind,
            packet_trace: false,
            packet_trace_path: None,
            trace_options: TraceOptions::default(),
        }
    }

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
        let edits: [fn(&mut Nic); 11] = [
            |nic| nic.prefixes = PrefixSet::parse(["fd00:1::/64"]).unwrap(),
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
