//! The tunnel endpoint: networks that span hosts, as VXLAN (RFC 7348) through one uplink.
//!
//! For the stages, the part of a network on other hosts is behind one more port, the *trunk*: a
//! vnic without a guest that bypasses filters. Learning, sessions and counters treat it like any
//! other; only delivery and arrival know the wire.
//!
//! Frames that arrive must be of the underlay's VLAN and addressed to the endpoint, or to the group
//! of the VNI that it names, and that network must have vnics or a router here. Floods, and frames
//! to unknown destinations, go to the network's multicast group, or to each peer that was named for
//! it. A next hop is learnt from outer source addresses, as in the original: that works through
//! routers and needs no ARP. So any host that can send VXLAN to the endpoint can move it; the
//! underlay has to be trusted.

pub(crate) mod arrive;
pub(crate) mod outer;
pub(crate) mod peers;
pub(crate) mod port;
pub(crate) mod punt;

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64},
    },
};

use butterfly_model::host_mac;
use butterfly_packet::{mac::Mac, vxlan};

use crate::engine::{
    counters::{Counters, Totals},
    reason::drop_reasons,
};
use crate::ip::{Address, mapped};
use crate::world::serving::Serving;

pub(crate) use arrive::{Arrivals, Arrived, impossible};
pub(crate) use outer::Source;
pub(crate) use peers::PeerTable;
pub(crate) use port::{SendHalf, UplinkPort, Wire};
pub(crate) use punt::{Own, Punt, Punted};

drop_reasons! { 7;
    /// A frame on the uplink that is not addressed to this host's tunnel endpoint, or is no VXLAN.
    NOT_OURS = "not-ours" {
        cause: "`-i` here is not what the other host sends to, unlike groups (`--group6`); over a TAP device in a bridge it is what the bridge floods, and harmless",
        remedy: "compare the packet's destination with the address that `butterfly tunnels` tells first and with its groups, on both hosts",
        charged: "the uplink",
    }
    /// An outer header that is cut short, has a wrong length or checksum, or comes from an
    /// impossible address.
    OUTER_MALFORMED = "outer-malformed" {
        cause: "a veth whose other end leaves checksums to the hardware, or an original Butterfly over IPv6, whose lengths are wrong",
        remedy: "`ethtool -K DEV tx off` at the other end of a veth; use IPv4 between hosts with an original Butterfly",
        charged: "the uplink",
    }
    /// An outer packet arrived in fragments: raise the MTU of the underlay, or lower that of the
    /// virtual machines.
    OUTER_FRAGMENT = "outer-fragment" {
        cause: "an MTU between the hosts that is smaller than the outer packets",
        remedy: "raise the MTU of the underlay, or lower that of the machines: `host_mtu=` on QEMU's `-device virtio-net-pci`",
        charged: "the uplink",
    }
    /// A VXLAN header with other flags than "the VNI is valid".
    VXLAN_FLAGS = "vxlan-flags" {
        cause: "a VXLAN extension (group based policy, GPE) at the other end",
        remedy: "switch the extension off at the other end",
        charged: "the uplink",
    }
    /// No vnic of this VNI is on this host.
    UNKNOWN_VNI = "unknown-vni" {
        cause: "a host that sends all of its networks here, which is normal; else a wrong `--vni`",
        remedy: "nothing, or compare the VNI of the packet with `butterfly nic show` of the vnic that should have got it",
        charged: "the uplink",
    }
    /// Strict peers are asked for, and the sender is none of those that were named for the network
    /// of the frame, or for all.
    UNKNOWN_PEER = "unknown-peer" {
        cause: "another host that was not named, or only for other networks, or somebody who forges packets",
        remedy: "if the packet's outer source address is one of your hosts: `butterfly peer add ADDRESS`, with `--vni VNI` for this network alone",
        charged: "the uplink",
    }
    /// The frame says that another host routed it than the one that sent it.
    FORGED_ROUTER = "forged-router" {
        cause: "a host whose frames do not come from its tunnel endpoint's address, as behind NAT, or one that forges frames of another; or a host that the table of peers has no room for",
        remedy: "the packet's source address names a host by its tunnel endpoint (b2:f1 and the IPv4 address): see to it that the outer source address is the same, or name the host (`butterfly peer add`, or as the host of a neighbour) so that it has its place",
        charged: "the network",
    }
    /// VXLAN, or a message to the endpoint, of another VLAN than the underlay's.
    OTHER_VLAN = "other-vlan" {
        cause: "`--underlay-vlan` here is not what the other hosts send in, or somebody in another VLAN of that wire sends VXLAN to this endpoint",
        remedy: "`butterfly uplink` tells the VLAN of the underlay here; if the packet is another host's, give both the same one, else see to it that the switch port carries no other VLAN",
        charged: "the uplink",
    }
    /// The link address of the next hop to the other host is not known.
    NO_NEIGHBOUR = "no-neighbour" {
        cause: "the other host or the gateway does not answer ARP or neighbour discovery, or no route leads there",
        remedy: "`butterfly tunnels VNI` tells next hops and their state: is the host up, is a route, `-i IP/LEN` or `--gateway` missing",
        charged: "the network; the uplink for frames that waited for it in vain",
    }
    /// The frame, in its outer headers, does not fit the uplink's MTU.
    TOO_BIG = "too-big" {
        cause: "the machine's MTU leaves no room for the outer headers; its sender is told by ICMP",
        remedy: "`butterfly nic show NIC` tells the `host_mtu=` for QEMU's `-device virtio-net-pci`; or raise the MTU of the underlay (`butterflyd -m`)",
        charged: "the sender; the network if the other end of a vhost-user uplink has too small buffers",
    }
    /// The uplink has no room: the wire is slower than the guests.
    UPLINK_FULL = "uplink-full" {
        cause: "the interface is slower than the machines, which is normal under overload",
        remedy: "see `butterfly uplink`: if `tx-failed` grows too, the interface refuses frames; else use a faster interface or send less",
        charged: "the network; the uplink for frames of the endpoint itself",
    }
    /// The uplink is not connected.
    UPLINK_DOWN = "uplink-down" {
        cause: "the interface is down, has no carrier or is gone, or nobody is at the other end of the vhost-user uplink",
        remedy: "`butterfly uplink` tells which: `ip link set DEV up`, or look at the cable; an interface that was removed and made again is taken up within seconds with `--state-dir`, else start butterflyd anew",
        charged: "the network; the uplink for frames of the endpoint itself",
    }
    /// More frames for the endpoint itself (ARP, ND, ping, IGMP, MLD) than it wants to answer.
    CONTROL_FULL = "control-full" {
        cause: "a storm on the underlay",
        remedy: "look with tcpdump at the underlay for who sends so much ARP, discovery, ping or membership messages to the endpoint",
        charged: "the uplink",
    }
    /// The daemon before this one ended by a frame from a vhost-user uplink. The frames that waited
    /// there were given back unseen.
    SKIPPED = "skipped" {
        cause: "a fault of the switch that a frame from another host sets off",
        remedy: "`butterfly events` tells of the end; please report it, with the log of the daemon that ended",
        charged: "the uplink",
    }
}

/// State of the tunnel endpoint for workers.
pub(crate) struct Tunnel {
    pub source: Source,
    /// Its address, as [`Address`].
    pub own: Address,
    /// MAC address from which it sends what routers of this host passed on.
    pub router_mac: Mac,
    pub groups: GroupPrefix,
    pub peers: PeerTable,
    pub port: UplinkPort,
    /// Service of its receive queues.
    pub serving: Box<[Arc<Serving>]>,
    /// Counters of the uplink's own frames and drops, which belong to no network.
    pub counters: Counters,
    /// The next block of identifications of outer IPv4 packets.
    pub identifications: AtomicU16,
    pub punt: Punt,
    /// Frames that waited for a next hop that was not found. Only the keeper writes this count, and
    /// only workers write the counters.
    pub lost_waiting: AtomicU64,
    /// Largest IP packet on the uplink.
    pub mtu: AtomicU32,
    /// True if the interface is down, without a carrier, or gone. Then no frames are put into its
    /// queue, where they would leave when they are long out of date.
    pub down: AtomicBool,
    /// True if only peers that the operator named are heard.
    pub strict: AtomicBool,
    /// The underlay's VLAN. 0: frames have no tag, or a priority tag.
    pub vlan: u16,
}

/// Settings of the tunnel endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelConfig {
    /// Its address. The family is that of all outer packets.
    pub endpoint: IpAddr,
    /// Its link address.
    pub mac: Mac,
    /// True if UDP checksums are computed over IPv6 (RFC 8200, 8.1); else they are zero (RFC 6935).
    pub udp6_checksum: bool,
    /// First bytes of the IPv6 groups of networks; the VNI is in the last four bytes.
    pub group6: std::net::Ipv6Addr,
    /// Largest IP packet on the uplink, in bytes.
    pub mtu: u32,
    /// True if only named peers are heard.
    pub strict_peers: bool,
    /// The underlay's VLAN; 0: none.
    pub vlan: u16,
}

impl TunnelConfig {
    /// Returns the default settings for an Ethernet.
    pub fn new(endpoint: IpAddr, mac: Mac) -> TunnelConfig {
        TunnelConfig {
            endpoint,
            mac,
            udp6_checksum: false,
            group6: std::net::Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0),
            mtu: 1500,
            strict_peers: false,
            vlan: 0,
        }
    }
}

impl Tunnel {
    pub fn new(
        config: &TunnelConfig,
        port: UplinkPort,
        workers: usize,
    ) -> Result<Tunnel, std::io::Error> {
        let groups = match config.endpoint {
            IpAddr::V4(_) => GroupPrefix::V4,
            IpAddr::V6(_) => GroupPrefix::V6(config.group6),
        };
        Ok(Tunnel {
            source: Source {
                mac: config.mac,
                ip: config.endpoint,
                udp6_checksum: config.udp6_checksum,
                vlan: config.vlan,
            },
            own: crate::world::rules::number(config.endpoint),
            router_mac: Mac(host_mac(config.endpoint)),
            groups,
            peers: PeerTable::new(workers),
            serving: (0..port.queues()).map(|_| Arc::default()).collect(),
            port,
            counters: Counters::new(workers),
            identifications: AtomicU16::new(0),
            punt: Punt::new(config.mtu as usize + 64)?,
            lost_waiting: AtomicU64::new(0),
            mtu: AtomicU32::new(config.mtu),
            down: AtomicBool::new(false),
            strict: AtomicBool::new(config.strict_peers),
            vlan: config.vlan,
        })
    }

    /// Makes the counters that are missing for so many workers.
    pub fn grow(&self, workers: usize) {
        self.counters.grow(workers);
        self.peers.grow(workers);
    }

    /// Returns the sums of the counters of frames that belong to no network.
    pub fn totals(&self) -> Totals {
        let mut totals = self.counters.totals();
        totals
            .add_drops(NO_NEIGHBOUR, self.lost_waiting.load(std::sync::atomic::Ordering::Relaxed));
        totals
    }

    /// Returns the largest inner IP packet that fits.
    pub fn inner_mtu(&self) -> u32 {
        self.largest().saturating_sub(butterfly_packet::ethernet::HEADER_LEN as u32)
    }

    /// Returns the largest inner frame that fits, with its Ethernet header.
    #[inline(always)]
    pub fn largest(&self) -> u32 {
        let v6 = matches!(self.source.ip, IpAddr::V6(_));
        self.mtu.load(std::sync::atomic::Ordering::Relaxed).saturating_sub(outer::overhead(v6))
    }
}

/// Mapping from VNIs to groups.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GroupPrefix {
    /// 230.a.b.c, with a.b.c as the VNI.
    V4,
    /// This prefix, the VNI in the last four bytes.
    V6(std::net::Ipv6Addr),
}

impl GroupPrefix {
    /// Returns the group of a network, as [`Address`].
    #[inline(always)]
    pub fn number_of(self, vni: u32) -> Address {
        match self {
            GroupPrefix::V4 => mapped(Ipv4Addr::from_bits(230 << 24 | vni)),
            GroupPrefix::V6(prefix) => prefix.to_bits() & !0xffff_ffff | Address::from(vni),
        }
    }

    /// Returns the group of a network with its link address (RFC 1112, 6.4; RFC 2464, 7).
    pub fn of(self, vni: u32) -> (Mac, IpAddr) {
        match self {
            GroupPrefix::V4 => {
                let group = vxlan::group_v4(vni);
                (Mac::of_group_v4(group), group.into())
            }
            GroupPrefix::V6(prefix) => {
                let group = vxlan::group_v6(prefix, vni);
                (Mac::of_group_v6(group), group.into())
            }
        }
    }
}
