//! Drop reasons of the code that reads packets.

use crate::engine::reason::drop_reasons;

drop_reasons! { 6;
    /// The IP header contradicts itself or the bytes behind it: version, header length, lengths,
    /// extension headers.
    MALFORMED_IP = "malformed-ip" {
        cause: "a broken or hostile sender",
        remedy: "look at the packet with tcpdump in the machine that sends, and replace the program or driver that makes it",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// The IP packet is longer than the frame.
    TRUNCATED = "truncated" {
        cause: "a broken or hostile sender, or a driver that cuts packets",
        remedy: "look at the packet with tcpdump in the machine that sends, and replace the program or driver that makes it",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// The transport header is not within the first 256 bytes of the frame.
    HEADERS_TOO_LONG = "headers-too-long" {
        cause: "a long chain of IPv6 extension headers, or many VLAN tags; usually an attempt to go round a filter",
        remedy: "send it with fewer extension headers; between two vnics that were added with `--bypass-filtering` everything passes",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// A first fragment without the whole transport header.
    TINY_FRAGMENT = "tiny-fragment" {
        cause: "an attempt to hide the ports from a filter",
        remedy: "find the program that sends it: no network stack makes such fragments by itself",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// A fragment that repeats bytes of another one, or lies beyond the last.
    FRAGMENT_OVERLAP = "fragment-overlap" {
        cause: "a packet that was repeated in the network, or an attempt to go round a filter",
        remedy: "nothing for a few; else find the program that sends it, or avoid fragments: a smaller MTU in the machine that sends",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// A fragment whose first one was not let through, or not within the time-out for fragments (30
    /// seconds by default).
    FRAGMENT_ORPHAN = "fragment-orphan" {
        cause: "a first fragment that was dropped (see the other reasons), did not come within 2 ms of this one, or was forgotten for others: 64 packets in fragments are kept of one vnic, and of all other hosts of a network; 1,024 in all, and a full table takes from the network, and there from the vnic, that has most; of fragments that come before their first one, 8 of a vnic wait for it, and 64 at a worker",
        remedy: "look for the drop of the first fragment with `butterfly drops`; avoid fragments: a smaller MTU, or path MTU discovery, in the machine that sends",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// A fragmented packet with more gaps than are kept.
    FRAGMENTS_FULL = "fragments-full" {
        cause: "fragments of one packet in so wild an order that more than 16 stretches are missing between them",
        remedy: "avoid fragments: a smaller MTU, or path MTU discovery, in the machine that sends",
        charged: "the sender, or the network if the frame came from another host",
    }
    /// Neighbour discovery or multicast listener discovery that is invalid, or that speaks for
    /// another station.
    BAD_DISCOVERY = "bad-discovery" {
        cause: "an address that was not declared (also a probe for it, with `--enable-antispoof`), or a machine that wants to be a router",
        remedy: "declare the address too: `butterfly nic update --id NIC --ip ADDRESS..` (the whole list); a router needs `butterfly nic update --id NIC --router true` and `butterfly sg rule add SG --dir out --ip-proto 58 --cidr ::/0`; the first OUTBOUND rule of a vnic's groups ends \"everything may leave\", so add one for all else as well",
        charged: "the sender",
    }
    /// Neighbour discovery or multicast listener discovery that is as it should be, more of it than
    /// a machine needs: a vnic may send 1,024 messages at once and 256 per second, about half of
    /// that to one neighbour.
    DISCOVERY_LIMIT = "discovery-limit" {
        cause: "a machine that looks for the neighbours of a whole network (a scanner), answers thousands of them, or sends something else in this form",
        remedy: "look at what it sends with tcpdump in the machine; a machine that has to send more is to be declared anew with `butterfly nic add --id NIC ... --bypass-filtering`",
        charged: "the sender",
    }
    /// A DHCP request that is not shaped as one to its last option, or that asks for another
    /// station, and that no rule lets out; or one to the network itself (`--dhcp`) that cannot be
    /// read.
    BAD_DHCP = "bad-dhcp" {
        cause: "a DHCP client that is broken or asks for another MAC address, such as a relay or a container's bridge in the machine; or something else that uses the ports of DHCP. In a network with `--dhcp`: a request that is cut short, in fragments, with a wrong checksum or malformed options",
        remedy: "look at the request with tcpdump in the machine that sends; in a network with `--dhcp` no rule changes anything, else a relay needs an OUTBOUND rule, `butterfly sg rule add SG --dir out --ip-proto udp --port 67 --cidr SERVER/32`; the first OUTBOUND rule of a vnic's groups ends \"everything may leave\", so add one for all else as well",
        charged: "the sender",
    }
    /// More DHCP requests than a vnic may send without a rule: 8 at once and 4 per second of each
    /// family, and one a minute to a server that no answer named; or more than 64 at once and 16
    /// per second by a rule. Of those to the network itself (`--dhcp`) 8 at once and 4 per second
    /// are read.
    DHCP_LIMIT = "dhcp-limit" {
        cause: "a DHCP client that repeats itself without a pause; or, in a network without `--dhcp`, one that renews a lease which is older than the daemon, at a server that does not answer",
        remedy: "find the program that sends them; without `--dhcp` a lease that is older than the daemon is renewed at its next request, or when the client asks by broadcast",
        charged: "the sender",
    }
}
