//! Extension headers of IPv6, up to the upper layer or a fragment's payload (RFC 8200, 4).

use butterfly_packet::{
    Error,
    ipv6::{self, Extensions, Fragment},
    protocol,
};

/// The extension headers of a packet.
pub(super) struct Chain {
    /// Start of the upper layer, from the first byte of the IPv6 header.
    pub(super) end: usize,
    /// The fragment header, and its end.
    pub(super) fragment: Option<(Fragment, usize)>,
}

impl Chain {
    /// Walks to the upper layer, or to the payload of a fragment that is not the first. Errors also
    /// say whether this is a first fragment. Each header has at least 8 bytes, so the bytes at hand
    /// bound the walk.
    pub(super) fn walk(walk: &mut Extensions<'_>) -> Result<Chain, (Error, bool)> {
        let mut chain = Chain { end: ipv6::LEN, fragment: None };
        loop {
            let first = chain.fragment.is_some_and(|(fragment, _)| !fragment.is_atomic());
            let Some(extension) = walk.take_next().map_err(|error| (error, first))? else {
                return Ok(chain);
            };
            chain.end = extension.offset + extension.bytes.len();
            if extension.kind == protocol::FRAGMENT {
                if chain.fragment.is_some() {
                    // Fragments of fragments: hosts differ about them.
                    return Err((Error::Malformed, first));
                }
                let fragment = Fragment::parse(extension.bytes).map_err(|error| (error, first))?;
                chain.fragment = Some((fragment, chain.end));
                if fragment.offset() != 0 {
                    return Ok(chain);
                }
            }
        }
    }
}
