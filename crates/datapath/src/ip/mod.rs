//! Flow: what an IP frame is to a filter: who talks to whom, with what, and where in a conversation
//! it stands.
//!
//! [`parse`] reads a frame as far as the transport header and refuses what cannot be read without
//! doubt; [`tcp`] says whether a segment fits its connection; [`fragments`] remembers what was
//! decided on first fragments; [`discovery`] and [`dhcp`] know the frames that need no rule.

pub(crate) mod address;
pub(crate) mod dhcp;
pub(crate) mod discovery;
pub(crate) mod fragments;
pub(crate) mod frame;
pub(crate) mod packet;
pub(crate) mod parse;
mod reasons;
pub(crate) mod tcp;

pub(crate) use address::{Address, TAGGED, is_v4, mapped};
pub(crate) use dhcp::Dhcp;
pub(crate) use discovery::Discovery;
pub(crate) use packet::{L4, Packet, Piece, Quoted, Tuple};
pub(crate) use reasons::*;
pub(crate) use tcp::Segment;
