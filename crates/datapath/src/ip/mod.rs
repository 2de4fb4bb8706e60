//! Flow: a filter's view of an IP frame, with its addresses, ports and protocol, and its place in a
//! conversation.
//!
//! [`parse`] reads a frame as far as the transport header and refuses frames with more than one
//! meaning; [`tcp`] says whether a segment fits its connection; [`fragments`] remembers the
//! verdicts on first fragments; [`discovery`] and [`dhcp`] know the frames that need no rule.

pub(crate) mod address;
pub(crate) mod dhcp;
pub(crate) mod discovery;
pub(crate) mod fragments;
pub(crate) mod frame;
pub(crate) mod packet;
pub(crate) mod parse;
mod reasons;
pub(crate) mod tcp;

pub(crate) use address::{Address, TAGGED, is_v4, mapped, upper};
pub(crate) use dhcp::Dhcp;
pub(crate) use discovery::Discovery;
pub(crate) use packet::{L4, Packet, Piece, Quoted, Tuple};
pub(crate) use reasons::*;
pub(crate) use tcp::Segment;
