//! Neighbour discovery (RFC 4861) and multicast listener discovery (RFC 2710, RFC 3810): the
//! messages that pass without a rule.
//!
//! IPv6 does not work without them. So a filtered vnic may receive and send the messages that a
//! host needs, for itself only; never those of a router.

use butterfly_packet::{
    Error, Mac,
    icmp::{self, Icmp, NdOptions, v6},
};

use crate::ip::Address;

/// Bytes of an ICMPv6 message before the options.
const SOLICITATION: usize = 8;
const ADVERTISEMENT: usize = 16;
const NEIGHBOUR: usize = 24;
const REDIRECT: usize = 40;
/// Bytes of a listener message of the first version: with the group.
const LISTENER: usize = 24;

/// Solicited flag of a neighbour advertisement.
const SOLICITED: u32 = 1 << 30;

/// A message of neighbour or multicast listener discovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Discovery {
    /// ICMPv6 type.
    pub kind: u8,
    /// Target of a neighbour solicitation, advertisement or redirect; group of a listener message
    /// of the first version; else 0.
    pub target: Address,
    /// The link-layer address in its option: of the source, or of the target for an advertisement
    /// or redirect.
    pub link_source: Option<Mac>,
    /// True if it passes every check that the RFCs ask of a receiver: hop limit, code, length,
    /// options, addresses, not fragmented (RFC 6980).
    pub valid: bool,
    /// Source address of the packet.
    pub source: Address,
    /// Destination MAC address of the frame, as a number, first byte lowest.
    pub to: u64,
}

/// Fields of the IPv6 header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub source: Address,
    pub destination: Address,
    pub hop_limit: u8,
    /// True if there was a fragment header, even an atomic one.
    pub fragmented: bool,
}

/// Returns whether an ICMPv6 type is one of these.
#[inline]
pub(crate) const fn is_discovery(kind: u8) -> bool {
    matches!(kind, v6::LISTENER_QUERY..=v6::REDIRECT | v6::LISTENER_REPORT_V2)
}

/// Returns the address that a host makes of its MAC (RFC 4291, appendix A).
#[inline]
pub(crate) const fn link_local(mac: Mac) -> Address {
    let Mac([a, b, c, d, e, f]) = mac;
    let interface = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    0xfe80 << 112 | interface as Address
}

/// Returns whether an address is link-local.
pub(crate) const fn is_link_local(address: Address) -> bool {
    address >> 118 == 0xfe80 >> 6
}

pub(crate) const fn is_multicast(address: Address) -> bool {
    address >> 120 == 0xff
}

/// `ff02::1:ff00:0/104` (RFC 4291, 2.7.1).
const SOLICITED_NODES: Address = 0xff02_0000_0000_0000_0000_0001_ff00_0000;

const fn is_solicited_node(address: Address) -> bool {
    address >> 24 == SOLICITED_NODES >> 24
}

/// Returns the solicited-node group of an address.
pub(crate) const fn solicited_node(address: Address) -> Address {
    SOLICITED_NODES | address & 0xff_ffff
}

impl Discovery {
    /// Reads a message for which [`is_discovery`] holds. `len` is its length; `bytes` may hold
    /// less.
    ///
    /// With `more` to be had, returns Truncated to ask for it. Without, options out of sight make a
    /// message invalid, except a router advertisement: those can be long, and none of their options
    /// are compared.
    pub fn read(
        bytes: &[u8],
        len: usize,
        more: bool,
        envelope: &Envelope,
    ) -> Result<Discovery, Error> {
        let message = Icmp::parse(bytes)?;
        let kind = message.kind();
        let mut discovery = Discovery {
            kind,
            target: 0,
            link_source: None,
            valid: false,
            source: envelope.source,
            to: 0,
        };
        let (fixed, hop_limit, link_option) = match kind {
            v6::ROUTER_SOLICITATION => (SOLICITATION, 255, icmp::OPTION_SOURCE_LINK_ADDRESS),
            v6::ROUTER_ADVERTISEMENT => (ADVERTISEMENT, 255, icmp::OPTION_SOURCE_LINK_ADDRESS),
            v6::NEIGHBOUR_SOLICITATION => (NEIGHBOUR, 255, icmp::OPTION_SOURCE_LINK_ADDRESS),
            v6::NEIGHBOUR_ADVERTISEMENT => (NEIGHBOUR, 255, icmp::OPTION_TARGET_LINK_ADDRESS),
            v6::REDIRECT => (REDIRECT, 255, icmp::OPTION_TARGET_LINK_ADDRESS),
            v6::LISTENER_REPORT_V2 => (icmp::LEN, 1, 0),
            _ => (LISTENER, 1, 0),
        };
        if len < fixed {
            return Ok(discovery);
        }
        if bytes.len() < fixed {
            return Err(Error::Truncated);
        }
        if !matches!(
            kind,
            v6::ROUTER_SOLICITATION | v6::ROUTER_ADVERTISEMENT | v6::LISTENER_REPORT_V2
        ) {
            discovery.target = message.target()?.to_bits();
        }
        if envelope.hop_limit != hop_limit || message.code() != 0 || envelope.fragmented {
            return Ok(discovery);
        }
        if link_option != 0 {
            let end = bytes.len().min(len);
            let options = bytes.get(fixed..end).unwrap_or_default();
            match link_address(options, link_option) {
                Ok(found) if end == len => discovery.link_source = found,
                // The bytes at hand end between two options.
                Ok(_) if more => return Err(Error::Truncated),
                Ok(_) if kind == v6::ROUTER_ADVERTISEMENT => {}
                Ok(_) => return Ok(discovery),
                Err(Error::Truncated) if end < len && more => return Err(Error::Truncated),
                Err(Error::Truncated) if end < len && kind == v6::ROUTER_ADVERTISEMENT => {}
                Err(_) => return Ok(discovery),
            }
        }
        discovery.valid = discovery.addresses_fit(envelope, message.rest_of_header());
        Ok(discovery)
    }

    fn addresses_fit(&self, envelope: &Envelope, rest_of_header: u32) -> bool {
        let Envelope { source, destination, .. } = *envelope;
        match self.kind {
            // RFC 4861, 6.1.1
            v6::ROUTER_SOLICITATION => source != 0 || self.link_source.is_none(),
            // 6.1.2
            v6::ROUTER_ADVERTISEMENT => is_link_local(source),
            // 7.1.1
            v6::NEIGHBOUR_SOLICITATION => {
                let probe = is_solicited_node(destination) && self.link_source.is_none();
                !is_multicast(self.target) && (source != 0 || probe)
            }
            // 7.1.2
            v6::NEIGHBOUR_ADVERTISEMENT => {
                !(is_multicast(self.target)
                    || is_multicast(destination) && rest_of_header & SOLICITED != 0)
            }
            // 8.1
            v6::REDIRECT => is_link_local(source),
            // RFC 3810, 5.1.14
            v6::LISTENER_QUERY => is_link_local(source),
            // RFC 3810, 5.2.13 and 5.2.14; RFC 2710, 3; RFC 3590, 4
            _ => (is_link_local(source) || source == 0) && is_multicast(destination),
        }
    }
}

/// Returns the link-layer address in the option of this type. Malformed also if it is no Ethernet
/// address, or if two options differ.
fn link_address(bytes: &[u8], wanted: u8) -> Result<Option<Mac>, Error> {
    let mut options = NdOptions::new(bytes);
    let mut found = None;
    while let Some((kind, value)) = options.take_next()? {
        if kind != wanted {
            continue;
        }
        let &mac = <&[u8; 6]>::try_from(value).map_err(|_| Error::Malformed)?;
        if found.is_some_and(|other| other != Mac(mac)) {
            return Err(Error::Malformed);
        }
        found = Some(Mac(mac));
    }
    Ok(found)
}

/// Returns whether a filtered vnic may send the message without a rule. `own` says whether an
/// address is the vnic's, link-local ones included. With `anti_spoof` the vnic probes only for its
/// own addresses: a probe for an address denies it to its owner (RFC 4862, 5.4.3).
pub(crate) fn may_send(
    discovery: &Discovery,
    mac: Mac,
    anti_spoof: bool,
    own: impl Fn(Address) -> bool,
) -> bool {
    let Discovery { source, target, .. } = *discovery;
    if !discovery.valid || discovery.link_source.is_some_and(|claimed| claimed != mac) {
        return false;
    }
    match discovery.kind {
        v6::NEIGHBOUR_SOLICITATION if source == 0 => !anti_spoof || own(target),
        v6::ROUTER_SOLICITATION | v6::NEIGHBOUR_SOLICITATION => source == 0 || own(source),
        v6::NEIGHBOUR_ADVERTISEMENT => own(source) && own(target),
        // Validity leaves link-local and unspecified sources.
        v6::LISTENER_REPORT | v6::LISTENER_DONE | v6::LISTENER_REPORT_V2 => {
            source == 0 || own(source)
        }
        _ => false,
    }
}

/// Returns whether a filtered vnic may receive the message without a rule.
pub(crate) fn may_receive(discovery: &Discovery) -> bool {
    discovery.valid
        && matches!(
            discovery.kind,
            v6::NEIGHBOUR_SOLICITATION
                | v6::NEIGHBOUR_ADVERTISEMENT
                | v6::ROUTER_ADVERTISEMENT
                | v6::LISTENER_QUERY
                | v6::LISTENER_REPORT
                | v6::LISTENER_DONE
                | v6::LISTENER_REPORT_V2
        )
}

#[cfg(test)]
mod tests;
