//! A message on its way in: what of it is a request.

use super::{
    MORE, Request, push_header,
    refusal::{LONGEST_MESSAGE, LONGEST_ROUTE, MOST_PARTS, Refusal},
};
use crate::MAX_FRAME;

/// Most parts of a way back, delimiter included.
const MAX_HOPS: usize = 16;

/// Meaning of the part that is being received.
#[derive(Debug, Default, PartialEq, Eq)]
enum Part {
    /// An identity in front of the delimiter, kept.
    Hop,
    /// The request itself.
    Body,
    /// A part of no use.
    #[default]
    Other,
}

/// A message, as far as it came.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    parts: u32,
    bytes: u64,
    route: Vec<u8>,
    hops: usize,
    /// Its way back is longer than any: it is no request.
    lost: bool,
    delimited: bool,
    body: Option<Vec<u8>>,
    room: usize,
    part: Part,
    /// The length of a request for which there is no place yet.
    pub(super) waiting: Option<usize>,
}

impl Incoming {
    /// Begins a part of so many bytes. If it is the request, [`Self::begin`] has to follow.
    pub(super) fn part(&mut self, length: u64) -> Result<(), Refusal> {
        self.parts += 1;
        self.bytes = self.bytes.saturating_add(length);
        if length > MAX_FRAME as u64 || self.bytes > LONGEST_MESSAGE {
            return Err(Refusal::LongMessage(self.bytes));
        }
        if self.parts > MOST_PARTS {
            return Err(Refusal::Parts);
        }
        let length = length as usize;
        self.part = Part::Other;
        if !self.delimited {
            self.hop(length);
        } else if self.body.is_none() && !self.lost {
            self.waiting = Some(length);
        }
        Ok(())
    }

    fn hop(&mut self, length: usize) {
        self.hops += 1;
        self.delimited = length == 0;
        // The identity that the peer has with us would be one of them.
        self.lost |=
            self.hops >= MAX_HOPS || self.route.len() + length + 2 > LONGEST_ROUTE || length > 255;
        if !self.lost {
            push_header(&mut self.route, MORE, length);
            self.part = Part::Hop;
        }
    }

    /// Begins the request that was [`Self::waiting`], with so much room.
    pub(super) fn begin(&mut self, length: usize, room: usize) {
        self.waiting = None;
        self.room = room;
        self.body = Some(Vec::with_capacity(length));
        self.part = Part::Body;
    }

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        match self.part {
            Part::Hop => self.route.extend_from_slice(bytes),
            Part::Body => self.body.get_or_insert_default().extend_from_slice(bytes),
            Part::Other => {}
        }
    }

    /// Ends a part; after the last one the request, if it was one.
    pub(super) fn end_of_part(&mut self, more: bool) -> Option<Request> {
        if more {
            self.part = Part::Other;
            return None;
        }
        let Self { route, body, room, .. } = std::mem::take(self);
        body.map(|body| Request { route, body, room })
    }

    pub(super) fn has_begun(&self) -> bool {
        self.parts > 0
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.route.len() + self.body.as_ref().map_or(0, Vec::capacity)
    }

    pub(super) fn is_receiving(&self) -> bool {
        self.part == Part::Body
    }

    pub(super) fn room(&self) -> usize {
        self.room
    }
}
