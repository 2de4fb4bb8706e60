//! Drop reasons of the filter.

use crate::engine::reason::drop_reasons;

drop_reasons! { 4;
    /// No rule of the sending vnic's security groups lets it out.
    EGRESS_DENIED = "egress-denied" {
        cause: "the first OUTBOUND rule of a vnic's groups ends \"everything may leave\"; what DHCP servers and routers say is not part of \"everything\": an answer of DHCP that no request asked for, a redirect",
        remedy: "add what the packet needs to one of its groups (`butterfly nic sg list NIC`): `butterfly sg rule add SG --dir out --ip-proto PROTO --port PORT --cidr DESTINATION/32`; a DHCP server needs INBOUND rules for UDP 67 and, over IPv6, 547; a router `butterfly nic update --id NIC --router true` and an OUTBOUND rule for protocol 58. The first OUTBOUND rule of a vnic's groups ends \"everything may leave\", so add one for all else as well",
        charged: "the sender",
    }
    /// No rule of the receiving vnic's security groups lets it in.
    INGRESS_DENIED = "ingress-denied" {
        cause: "no group of the vnic has such a rule, or it is about members of a group that the packet's source is not among",
        remedy: "add what the packet needs to one of its groups (`butterfly nic sg list NIC`): `butterfly sg rule add SG --ip-proto PROTO --port PORT --cidr SOURCE/32`, or `butterfly sg member add GROUP SOURCE`",
        charged: "the receiver",
    }
    /// A router solicitation or IGMP report, as machines multicast to routers, that no rule of the
    /// receiving vnic lets in.
    FOR_ROUTERS = "for-routers" {
        harmless: true,
        cause: "a machine of the network starts: it asks all routers for their prefixes, and all snooping switches for its groups",
        remedy: "nothing; only a vnic whose machine is a router needs it: `butterfly sg rule add SG --ip-proto icmpv6 --cidr ::/0`, for IGMP `butterfly sg rule add SG --ip-proto 2`",
        charged: "the receiver",
    }
    /// IP to or from a filtered vnic behind several VLAN tags or LLC, or with a type that
    /// contradicts its version.
    IP_HIDDEN = "ip-hidden" {
        cause: "stacked VLANs or SNAP where a filter cannot follow, or an attempt to go round it",
        remedy: "send IP behind one VLAN tag at most; between two vnics that were added with `--bypass-filtering` everything passes",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// The source address is not one of the sending vnic's.
    SPOOFED_IP = "spoofed-ip" {
        cause: "an address that was not declared or that the VM made up by itself (SLAAC), or a machine that routes, bridges or runs containers",
        remedy: "declare all of its addresses, as the new list replaces the old one: `butterfly nic update --id NIC --ip ADDRESS..`, for SLAAC a prefix: `... --prefix PREFIX`; a router needs `butterfly nic add --id NIC ... --bypass-filtering --forwards`",
        charged: "the sender",
    }
    /// A TCP segment that does not fit its connection: out of window.
    TCP_WINDOW = "tcp-window" {
        cause: "a very late or a forged segment, or a connection of which one direction takes another way",
        remedy: "nothing for a few; for many, see the connection in `butterfly sessions NIC --proto tcp`, let both directions pass here, and open it anew",
        charged: "the receiver if it is filtered, else the sender",
    }
    /// A TCP segment that opens no connection and belongs to none that is known.
    TCP_NO_SESSION = "tcp-no-session" {
        cause: "a connection that was silent for longer than its time-out, whose rule was taken away, or that is older than the daemon and was not picked up in time",
        remedy: "open the connection anew; if it was silent for long, use TCP keepalive or a longer `butterflyd --timeout tcp-established=SECONDS`; if it is older than the daemon, `--tcp-pickup SECONDS`",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// An SCTP packet that opens no association and belongs to none that is known.
    SCTP_NO_SESSION = "sctp-no-session" {
        cause: "an association that was silent for longer than its time-out, or that is older than the daemon",
        remedy: "open the association anew; if it was silent for long, use heartbeats or a longer `butterflyd --timeout sctp-established=SECONDS`",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// The table of sessions is full, or all of it that is not reserved for other networks, and
    /// none in it may go.
    SESSIONS_FULL = "sessions-full" {
        cause: "a scan or flood that opens sessions, or more connections than the table was made for; half of it is reserved, in equal parts, for the networks with filtered vnics",
        remedy: "`butterfly sessions --count` and `butterfly sessions NIC --count` tell who has them: stop it, or start butterflyd with a larger `--sessions`",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// This vnic, or its network, has its share of all sessions already, and among those looked at
    /// none that is not established.
    SESSION_SHARE = "session-share" {
        cause: "a scan or flood that opens sessions, one machine that has most of the host's connections, or a quarter of what one machine may receive",
        remedy: "`butterfly sessions NIC --count` tells how many it has, `--vni VNI --count` how many its network has; start butterflyd with more `--sessions` or a larger `--session-share`",
        charged: "the vnic that has its share: who opened the sessions before who received them; if its network has, the sender",
    }
    /// The vnic opens sessions faster than it may: more than `--session-rate` (200,000) per second,
    /// after half of that at once.
    SESSION_RATE = "session-rate" {
        cause: "a scan or flood that opens sessions",
        remedy: "`butterfly trace NIC` shows what it sends: stop it in the machine; spread a load generator, or a gateway of very many machines, over several vnics, or start butterflyd with a larger `--session-rate`, which then holds for every machine of the host",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// There are four sessions of the same addresses, ports and protocol in this network already,
    /// between other vnics.
    SESSION_COPIES = "session-copies" {
        cause: "a machine that sends one flow to many MAC addresses, or addresses that many machines use",
        remedy: "nothing for a scan; else give each machine addresses of its own, or wait for the time-out of the older ones",
        charged: "the sender, or the network if the frame came from another host",
    }
}
