//! Opening the uplink, and its settings and peers as the operator declares them.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
};

use butterfly_packet::mac::Mac;
use butterfly_uplink::{
    Info, Meter, Uplink,
    groups::Groups,
    kernel::Kernel,
    packet::PacketSocket,
    tap::{Tap, TapConfig},
    xdp::{self, Adopted, Ending, Parts, Xdp, XdpConfig},
};
use butterfly_vhost::{control::Role, port::Port};

use crate::endpoint::{
    control::ControlConfig,
    keeper::{HostSide, LeftSockets},
    link::LinkWatch,
};
use crate::overlay::{Tunnel, TunnelConfig, UplinkPort, Wire};

/// The tunnel endpoint of a host, as an operator declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelSpec {
    /// Its address. The family is that of all outer packets.
    pub endpoint: IpAddr,
    /// Length of its network's prefix: hosts in it are reached directly, others by a gateway.
    pub prefix: Option<u8>,
    /// The way out.
    pub uplink: UplinkSpec,
    /// Tunnel endpoints that get floods of all networks. Without any, networks have groups.
    pub peers: Vec<IpAddr>,
    /// Gateways to hosts for which the host's kernel has no route; one per family.
    pub gateways: Vec<IpAddr>,
    /// First bytes of the IPv6 groups of networks; the VNI is in the last four bytes.
    pub group6: Ipv6Addr,
    /// True if UDP checksums are computed over IPv6; else they are zero (RFC 6935).
    pub udp6_checksum: bool,
    /// True if only named peers are heard, each in its networks.
    pub strict_peers: bool,
    /// The VLAN of all frames on the uplink; 0: none.
    pub vlan: u16,
    /// Largest IP packet on the uplink in bytes, if not the interface's MTU.
    pub mtu: Option<u32>,
}

/// A way out of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UplinkSpec {
    /// A network interface, by AF_XDP.
    Xdp {
        /// Its name.
        interface: String,
        /// Receive queues to serve; all by default.
        queues: Option<u32>,
    },
    /// A TAP device of our own.
    Tap {
        /// Its name; the kernel chooses one by default.
        name: Option<String>,
    },
    /// A vhost-user port.
    VhostUser {
        /// The socket.
        path: PathBuf,
        /// The side that owns the socket.
        role: Role,
    },
}

/// MTU of an uplink that has none of its own.
const DEFAULT_MTU: u32 = 1500;

/// Name of the TAP device among the parts that outlast this process. No vnic's has it.
pub(crate) const TAP: &str = "tap:\u{1}uplink";

/// Beginning of the names of packet sockets on the uplink's interface. They are kept so that the
/// interface listens to groups until a successor does, and so that a process that dies need not
/// close them: each takes the kernel some milliseconds.
pub(crate) const PACKETS: &str = "packets:";

/// A place for descriptors that outlast this process.
pub(crate) trait Outlasting {
    /// Takes those that a former process left and whose names begin so.
    fn former(&self, beginning: &str) -> Parts;

    /// Has one kept.
    fn keep(&self, name: &str, file: BorrowedFd<'_>) -> std::io::Result<()>;

    /// Has one let go.
    fn forget(&self, name: &str);

    /// Returns what has some kept, in place of those before, when it is called.
    fn later(&self, files: Vec<(String, OwnedFd)>) -> Box<dyn FnOnce() + Send>;
}

/// Fate of the uplink that a former process left.
#[derive(Clone, Debug)]
pub(crate) enum FormerUplink {
    /// It goes on.
    Adopted(Adopted),
    /// It was ended, and another one was opened, because of this.
    OpenedAnew(String),
}

impl std::fmt::Display for FormerUplink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FormerUplink::Adopted(Adopted { held: 0 }) => write!(f, "taken over"),
            FormerUplink::Adopted(Adopted { held }) => {
                write!(f, "taken over, but for {held} frames that were under way")
            }
            FormerUplink::OpenedAnew(why) => write!(f, "opened anew: {why}"),
        }
    }
}

/// An uplink that was opened.
pub(crate) struct OpenedUplink {
    pub tunnel: Tunnel,
    pub control: ControlConfig,
    pub host: Option<HostSide>,
    /// The uplink's description and meter, if it is a port of its own kind.
    pub wire: Option<(Info, Meter)>,
    /// The port in which a vhost-user device puts its rings.
    pub ring: Option<Arc<Port>>,
    /// Fate of a former process's uplink on an interface, if there was one.
    pub former: Option<FormerUplink>,
    /// Lets go of the interface, if the uplink outlasts this process.
    pub ending: Option<Ending>,
    /// Why it could not be opened: nothing leaves by it.
    pub missing: Option<String>,
    /// True if a successor has to open the interface anew, for which nobody may have our rings
    /// mapped any more.
    pub opened_anew: bool,
}

/// Ends what a former process left of an uplink on an interface.
pub(crate) fn end_former(outlasting: &dyn Outlasting) {
    let parts = outlasting.former(xdp::PARTS);
    let names: Vec<String> = parts.keys().cloned().collect();
    xdp::end(parts);
    names.iter().for_each(|name| outlasting.forget(name));
}

/// Opens an interface, or goes on with the uplink there that a former process left. What that left
/// and cannot be used is ended.
fn open_xdp(
    interface: &str,
    config: &XdpConfig,
    outlasting: Option<&dyn Outlasting>,
) -> Result<(Xdp, Option<FormerUplink>), std::io::Error> {
    let parts = outlasting.map(|it| it.former(xdp::PARTS)).unwrap_or_default();
    let names: Vec<String> = parts.keys().cloned().collect();
    let mut former = None;
    if !parts.is_empty() {
        match Xdp::adopt(interface, config, parts) {
            Ok((xdp, adopted)) => return Ok((xdp, Some(FormerUplink::Adopted(adopted)))),
            Err(why) => {
                tracing::warn!(interface, %why, "the uplink is opened anew");
                former = Some(FormerUplink::OpenedAnew(why.to_string()));
            }
        }
        outlasting.iter().for_each(|it| names.iter().for_each(|name| it.forget(name)));
    }
    let xdp = Xdp::open(interface, config).map_err(std::io::Error::other)?;
    Ok((xdp, former))
}

/// Has an uplink outlast this process, if all of its parts can be kept.
fn outlast(xdp: &mut Xdp, outlasting: &dyn Outlasting) -> Result<Ending, std::io::Error> {
    let ending = xdp.outlast().map_err(std::io::Error::other)?;
    if !xdp.can_be_adopted() {
        tracing::warn!("this kernel is older than Linux 6.4: a restart pauses the tunnel");
    }
    let parts = xdp.parts();
    let kept = parts.iter().try_for_each(|(name, part)| outlasting.keep(name, *part));
    if let Err(error) = kept {
        tracing::error!(%error, "the uplink would not outlast this process");
        parts.iter().for_each(|(name, _)| outlasting.forget(name));
    }
    Ok(ending)
}

/// Opens an uplink, or goes on with the one that a former process left there.
pub(crate) fn open(
    spec: &TunnelSpec,
    outlasting: Option<&dyn Outlasting>,
) -> Result<OpenedUplink, std::io::Error> {
    let (mut former, mut ending, mut opened_anew) = (None, None, false);
    if !matches!(spec.uplink, UplinkSpec::Xdp { .. }) {
        outlasting.into_iter().for_each(end_former);
    }
    let mut host = None;
    let mut answers = true;
    let mut wire = None;
    let mut ring = None;
    let (port, mac, mtu) = match &spec.uplink {
        UplinkSpec::VhostUser { .. } => {
            let port = Arc::new(Port::default());
            ring = Some(port.clone());
            (UplinkPort::Ring(port), own_mac(spec.endpoint), spec.mtu.unwrap_or(DEFAULT_MTU))
        }
        UplinkSpec::Tap { name } => {
            let config = TapConfig { name: name.clone(), mtu: spec.mtu };
            let left = outlasting.and_then(|it| it.former(TAP).remove(TAP));
            let tap = match left.and_then(|left| Tap::take_up(&config, left).ok()) {
                Some(tap) => tap,
                None => Tap::open(&config).map_err(std::io::Error::other)?,
            };
            if let Some(Err(error)) = outlasting.map(|it| it.keep(TAP, tap.device())) {
                tracing::error!(%error, "the uplink's TAP device would not outlast this process");
            }
            let kernel = Kernel::open().map_err(std::io::Error::other)?;
            let (info, meter) = (tap.info().clone(), tap.meter());
            let (mac, mtu) = (info.mac, info.mtu);
            host = Some(HostSide {
                kernel,
                packets: None,
                groups: None,
                link: LinkWatch::new(&info, mtu, spec.vlan),
                left: None,
            });
            wire = Some((info, meter));
            (on_wire(tap), mac, mtu)
        }
        UplinkSpec::Xdp { interface, .. } => {
            let mut kernel = Kernel::open().map_err(std::io::Error::other)?;
            let found = kernel.interface(interface).map_err(std::io::Error::other)?;
            // The host may hold it on the VLAN's own interface.
            answers =
                !found.holds(spec.endpoint) && !kernel.vlan_holds(&found, spec.vlan, spec.endpoint);
            let config = xdp_config(spec, answers);
            let (mut xdp, left) = open_xdp(interface, &config, outlasting)?;
            former = left;
            ending = outlasting.map(|it| outlast(&mut xdp, it)).transpose()?;
            opened_anew = !xdp.can_be_adopted();
            let packets =
                PacketSocket::open(found.index, spec.vlan).map_err(std::io::Error::other)?;
            let groups = Groups::open(found.index).map_err(std::io::Error::other)?;
            let (info, meter) = (xdp.info().clone(), xdp.meter());
            let (mac, mtu) = (info.mac, spec.mtu.unwrap_or(info.mtu).min(info.mtu));
            let link = LinkWatch::new(&info, mtu, spec.vlan);
            let mut left = None;
            if let Some(it) = outlasting {
                let former: Vec<OwnedFd> = it.former(PACKETS).into_values().collect();
                let ours = [("control", packets.as_fd()), ("groups", groups.as_fd())];
                let ours = ours.map(|(name, socket)| {
                    Ok((format!("{PACKETS}{name}"), socket.try_clone_to_owned()?))
                });
                let ours = ours.into_iter().collect::<Result<_, std::io::Error>>()?;
                let keep = it.later(ours);
                match former.is_empty() {
                    true => keep(),
                    false => left = Some(LeftSockets { former, keep }),
                }
            }
            let (packets, groups) = (Some(packets), Some(groups));
            host = Some(HostSide { kernel, packets, groups, link, left });
            wire = Some((info, meter));
            (on_wire(xdp), mac, mtu)
        }
    };
    let (tunnel, control) = endpoint(spec, port, mac, mtu, answers)?;
    let missing = None;
    Ok(OpenedUplink { tunnel, control, host, wire, ring, former, ending, missing, opened_anew })
}

/// Returns the endpoint of an uplink that cannot be opened, because of `why`. It is like a socket
/// at whose other end nobody is: frames that would leave are dropped by name.
pub(crate) fn missing(spec: &TunnelSpec, why: String) -> Result<OpenedUplink, std::io::Error> {
    let port = UplinkPort::Ring(Arc::new(Port::default()));
    let mtu = spec.mtu.unwrap_or(DEFAULT_MTU);
    let (tunnel, control) = endpoint(spec, port, own_mac(spec.endpoint), mtu, false)?;
    let missing = Some(why);
    let (host, wire, ring, former, ending) = (None, None, None, None, None);
    Ok(OpenedUplink {
        tunnel,
        control,
        host,
        wire,
        ring,
        former,
        ending,
        missing,
        opened_anew: false,
    })
}

/// Opens an uplink, and lets go of it again.
pub(crate) fn try_open(spec: &TunnelSpec) -> Result<(), butterfly_uplink::Error> {
    match &spec.uplink {
        UplinkSpec::Xdp { interface, .. } => {
            Xdp::open(interface, &xdp_config(spec, false)).map(drop)
        }
        UplinkSpec::Tap { name } => {
            Tap::open(&TapConfig { name: name.clone(), mtu: spec.mtu }).map(drop)
        }
        UplinkSpec::VhostUser { .. } => Ok(()),
    }
}

/// Returns why an uplink cannot be opened by the successor of a process that has it, as far as that
/// can be told meanwhile.
pub fn check_uplink(spec: &TunnelSpec) -> Result<(), String> {
    match &spec.uplink {
        UplinkSpec::Xdp { interface, .. } => {
            Xdp::check(interface, &xdp_config(spec, false)).map_err(|why| why.to_string())
        }
        UplinkSpec::Tap { .. } | UplinkSpec::VhostUser { .. } => Ok(()),
    }
}

/// Returns whether a successor would take up the uplink, as far as its interface is concerned.
pub(crate) fn is_as_opened(spec: &TunnelSpec, info: &Info) -> bool {
    match spec.uplink {
        UplinkSpec::Xdp { .. } => xdp::is_as_opened(info, &xdp_config(spec, false)),
        UplinkSpec::Tap { .. } | UplinkSpec::VhostUser { .. } => true,
    }
}

fn xdp_config(spec: &TunnelSpec, answers: bool) -> XdpConfig {
    let queues = match spec.uplink {
        UplinkSpec::Xdp { queues, .. } => queues,
        UplinkSpec::Tap { .. } | UplinkSpec::VhostUser { .. } => None,
    };
    XdpConfig {
        answers,
        group6: spec.group6,
        queues,
        vlan: spec.vlan,
        ..XdpConfig::new(spec.endpoint)
    }
}

/// Returns the endpoint behind a port: the part of the workers, and that of the keeper.
fn endpoint(
    spec: &TunnelSpec,
    port: UplinkPort,
    mac: Mac,
    mtu: u32,
    answers: bool,
) -> Result<(Tunnel, ControlConfig), std::io::Error> {
    let config = TunnelConfig {
        endpoint: spec.endpoint,
        mac,
        udp6_checksum: spec.udp6_checksum,
        group6: spec.group6,
        mtu,
        strict_peers: spec.strict_peers,
        vlan: spec.vlan,
    };
    let control = ControlConfig {
        mac,
        endpoint: spec.endpoint,
        prefix: spec.prefix,
        answers,
        gateways: spec.gateways.clone(),
        group6: spec.group6,
    };
    Ok((Tunnel::new(&config, port, 1)?, control))
}

fn on_wire(uplink: impl Uplink) -> UplinkPort {
    UplinkPort::Wire(Wire::new(uplink.split()))
}

/// A link address that is as unique as the endpoint's own, and the same after a restart.
fn own_mac(endpoint: IpAddr) -> Mac {
    let [a, b, c, d] = match endpoint {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            let folded =
                (bits >> 96) as u32 ^ (bits >> 64) as u32 ^ (bits >> 32) as u32 ^ bits as u32;
            folded.to_be_bytes()
        }
    };
    Mac([0x02, 0xbf, a, b, c, d])
}

/// Named peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// Peers of all networks.
    pub all: Vec<IpAddr>,
    /// Peers of some networks.
    pub of: BTreeMap<u32, Vec<IpAddr>>,
}

/// Reason for refusing a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the texts say it
pub enum TunnelError {
    #[error("this host has no uplink: start the daemon with --uplink")]
    NoUplink,
    #[error("{peer} is of another family than the tunnel endpoint {endpoint}")]
    OtherFamily { peer: IpAddr, endpoint: IpAddr },
    #[error("{0} is this host's own tunnel endpoint")]
    Own(IpAddr),
    #[error("there is no room for {0}: {max} tunnel endpoints are known at most", max = crate::overlay::peers::MAX_PEERS)]
    Full(IpAddr),
}

/// Checks whether a host's address can be a peer's of this endpoint.
pub(crate) fn check_peer(peer: IpAddr, endpoint: IpAddr) -> Result<(), TunnelError> {
    if peer.is_ipv4() != endpoint.is_ipv4() {
        Err(TunnelError::OtherFamily { peer, endpoint })
    } else if peer == endpoint {
        Err(TunnelError::Own(peer))
    } else {
        Ok(())
    }
}
