//! Virtual network interfaces (vnics).

use crate::{
    address::IpSet,
    limits::{Limit, Limits},
    mac::Mac,
    netns::Netns,
    nic_id::NicId,
    prefix::PrefixSet,
    security_group::GroupNames,
    socket::{SocketDir, SocketPath, SocketPathError},
    vni::Vni,
};
use std::{net::IpAddr, path::Path};

/// Butterfly's end of a vhost-user socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Butterfly listens, the virtual machine's process connects.
    Server,
    /// The virtual machine's process listens, Butterfly connects.
    Client,
}

/// Kind of attachment of a vnic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A virtual machine, through this socket.
    VhostUser {
        /// Our end of it.
        role: Role,
        /// Path of the socket.
        socket: SocketPath,
    },
    /// A network device of the host's kernel.
    Tap {
        /// The network namespace that it is moved to.
        netns: Option<Netns>,
    },
    /// A traffic generator inside the switch.
    Bench(Bench),
}

impl Kind {
    /// Makes a vhost-user vnic called `id`. Only a client may have a `path` of its own, for a
    /// server it means nothing. Fails if no Unix socket can have the path.
    pub fn vhost_user(
        role: Role,
        id: &NicId,
        path: Option<&Path>,
        directory: &SocketDir,
    ) -> Result<Self, SocketPathError> {
        let socket = match path.filter(|_| role == Role::Client) {
            Some(path) => SocketPath::new(path)?,
            None => directory.socket(id)?,
        };
        Ok(Self::VhostUser { role, socket })
    }

    /// Returns the socket, if it has one.
    pub fn socket(&self) -> Option<&SocketPath> {
        match self {
            Self::VhostUser { socket, .. } => Some(socket),
            Self::Tap { .. } | Self::Bench(_) => None,
        }
    }
}

/// Role of the traffic generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bench {
    /// Sends echo requests there and measures the answers.
    IcmpSender {
        /// Address to which it sends.
        ip: IpAddr,
        /// Address from which it sends.
        mac: Mac,
    },
    /// Sends back what it gets.
    IcmpReceiver,
}

/// A vnic as declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its name.
    pub id: NicId,
    /// Its Ethernet address.
    pub mac: Mac,
    /// Its network.
    pub vni: Vni,
    /// The addresses it owns.
    pub ips: IpSet,
    /// Blocks of IPv6 in which it owns all addresses. Its machine may make some up. No other vnic
    /// has an address there.
    pub prefixes: PrefixSet,
    /// Groups whose rules it obeys.
    pub security_groups: GroupNames,
    /// True if its ARP is held to `mac` and `ips`.
    pub ip_anti_spoof: bool,
    /// True if it is neither filtered nor held to its addresses.
    pub bypass_filtering: bool,
    /// True if it passes on packets of others, which may be from addresses of filtered vnics. Means
    /// something if it bypasses filtering.
    pub forwards: bool,
    /// True if its addresses are those of vnics of other hosts, too.
    pub shared_ip: bool,
    /// True if it may send router advertisements and redirects, if a rule names their protocol.
    pub router: bool,
    /// Limits of its traffic.
    pub limits: Limits,
    /// Id of the vnic whose traffic a mirror gets copies of. A mirror gets nothing else, and it
    /// sends nothing. The other vnic need not exist.
    pub sniff_target: Option<String>,
    /// The other side of the vnic.
    pub kind: Kind,
    /// True if all its frames are written to a file.
    pub packet_trace: bool,
    /// Path of that file, if it was named.
    pub packet_trace_path: Option<String>,
    /// Choice of these frames, and the form of the file.
    pub trace_options: TraceOptions,
}

/// Options of writing packets into files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceOptions {
    /// Filter in the syntax of libpcap; empty: every packet.
    pub filter: String,
    /// Bytes of each packet at most; 0: as many as a packet has.
    pub snap_length: u32,
    /// Bytes of a file after which the next one begins; 0: no bound.
    pub file_size: u64,
    /// Files before the first one is overwritten.
    pub file_count: Option<u32>,
}

/// A partial change of a vnic: absent values stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // As in `Nic`.
pub struct NicUpdate {
    pub ip_anti_spoof: Option<bool>,
    pub forwards: Option<bool>,
    pub shared_ip: Option<bool>,
    pub router: Option<bool>,
    pub limit_from_guest: Option<Limit>,
    pub limit_to_guest: Option<Limit>,
    pub ips: Option<IpSet>,
    pub prefixes: Option<PrefixSet>,
    pub security_groups: Option<GroupNames>,
    pub packet_trace: Option<bool>,
    pub packet_trace_path: Option<String>,
    pub trace_options: Option<TraceOptions>,
}

impl Nic {
    /// Returns the vnic after `update`.
    pub fn updated(&self, update: NicUpdate) -> Self {
        Self {
            ip_anti_spoof: update.ip_anti_spoof.unwrap_or(self.ip_anti_spoof),
            forwards: update.forwards.unwrap_or(self.forwards),
            shared_ip: update.shared_ip.unwrap_or(self.shared_ip),
            router: update.router.unwrap_or(self.router),
            limits: Limits {
                from_guest: update.limit_from_guest.unwrap_or(self.limits.from_guest),
                to_guest: update.limit_to_guest.unwrap_or(self.limits.to_guest),
            },
            ips: update.ips.unwrap_or_else(|| self.ips.clone()),
            prefixes: update.prefixes.unwrap_or_else(|| self.prefixes.clone()),
            security_groups: update.security_groups.unwrap_or_else(|| self.security_groups.clone()),
            packet_trace: update.packet_trace.unwrap_or(self.packet_trace),
            packet_trace_path: update.packet_trace_path.or_else(|| self.packet_trace_path.clone()),
            trace_options: update.trace_options.unwrap_or_else(|| self.trace_options.clone()),
            ..self.clone()
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn nic() -> Nic {
        let id = NicId::new("nic-1").unwrap();
        let kind =
            Kind::vhost_user(Role::Server, &id, None, &SocketDir::new("/run/b".into())).unwrap();
        Nic {
            id,
            mac: Mac::parse("42:42:42:42:42:01").unwrap(),
            vni: Vni::new(1337).unwrap(),
            ips: IpSet::parse(["10.0.0.1"]).unwrap(),
            prefixes: PrefixSet::default(),
            security_groups: GroupNames::parse(["web"]).unwrap(),
            ip_anti_spoof: false,
            bypass_filtering: false,
            forwards: false,
            shared_ip: false,
            router: false,
            limits: Limits::default(),
            sniff_target: None,
            kind,
            packet_trace: false,
            packet_trace_path: None,
            trace_options: TraceOptions::default(),
        }
    }

    #[test]
    fn only_a_client_has_a_path_of_its_own() {
        let (id, directory) = (NicId::new("n").unwrap(), SocketDir::new("/run/b".into()));
        let path = |role, path: Option<&str>| {
            let kind = Kind::vhost_user(role, &id, path.map(Path::new), &directory)?;
            Ok::<_, SocketPathError>(kind.socket().unwrap().to_string())
        };
        assert_eq!(path(Role::Server, None).unwrap(), "/run/b/qemu-vhost-n");
        assert_eq!(path(Role::Server, Some("/elsewhere")).unwrap(), "/run/b/qemu-vhost-n");
        assert_eq!(path(Role::Server, Some("relative")).unwrap(), "/run/b/qemu-vhost-n");
        assert_eq!(path(Role::Client, None).unwrap(), "/run/b/qemu-vhost-n");
        assert_eq!(path(Role::Client, Some("/elsewhere")).unwrap(), "/elsewhere");
        assert!(path(Role::Client, Some("relative")).is_err());
    }

    #[test]
    fn an_update_changes_what_it_names() {
        let nic = nic();
        assert_eq!(nic.updated(NicUpdate::default()), nic);
        let limit = Limit::new(1_000_000, 10, 0, 0).unwrap();
        let options = TraceOptions { snap_length: 100, ..nic.trace_options.clone() };
        let update = NicUpdate {
            ip_anti_spoof: Some(true),
            forwards: Some(true),
            shared_ip: Some(true),
            router: Some(true),
            limit_from_guest: None,
            limit_to_guest: Some(limit),
            ips: Some(IpSet::default()),
            prefixes: Some(PrefixSet::parse(["fd00:1::/64"]).unwrap()),
            security_groups: Some(GroupNames::parse(["db"]).unwrap()),
            packet_trace: Some(true),
            packet_trace_path: Some("/tmp/x".into()),
            trace_options: Some(options.clone()),
        };
        let expected = Nic {
            ip_anti_spoof: true,
            forwards: true,
            shared_ip: true,
            router: true,
            limits: Limits { to_guest: limit, ..Limits::default() },
            ips: IpSet::default(),
            prefixes: PrefixSet::parse(["fd00:1::/64"]).unwrap(),
            security_groups: GroupNames::parse(["db"]).unwrap(),
            packet_trace: true,
            packet_trace_path: Some("/tmp/x".into()),
            trace_options: options,
            ..nic.clone()
        };
        assert_eq!(nic.updated(update), expected);
        assert_eq!(expected.updated(NicUpdate::default()), expected);
    }
}
