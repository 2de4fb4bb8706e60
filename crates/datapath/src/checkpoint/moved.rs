//! Moved vnics: the text that an export of a vnic is, and its import on another host.
//!
//! The text is JSON, and read like a guest's word: its size, its layout, each count and each
//! session are checked, and what fails is refused by reason. Ages stand in it, not times: two hosts
//! have two clocks.

use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Serialize};

use crate::checkpoint::{TakenOver, Text, counters::Counts, fitting};
use crate::engine::counters::Totals;
use crate::ip::{
    Tuple,
    tcp::{TcpState, Track},
};
use crate::plane::{
    Plane,
    moves::{ImportedSessions, MovedSession},
};
use crate::session::{NO_TRACK, Past, State};
use crate::world::rules::{address, number};
use crate::world::snapshot::VnicShared;

/// Number of the text's layout. Hosts of two releases speak by it, so it is not that of a
/// checkpoint's texts.
const LAYOUT: u32 = 1;

/// Kind of the text.
const KIND: &str = "butterfly-vnic";
/// Most bytes of a text. A request has room for it, and is weighed before it is read.
pub const MOST_MOVED: usize = 8 << 20;

/// Most letters of a reason that quotes a text.
const LONGEST: usize = 200;

/// Declaration of a vnic, as far as it has to be the same on two hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedVnic {
    /// Its id.
    pub id: String,
    /// Its MAC address.
    pub mac: String,
    /// Its network.
    pub vni: u32,
    /// Its addresses, sorted.
    pub addresses: Vec<IpAddr>,
    /// Its prefixes, sorted. Texts of releases that know none have no such field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<String>,
    /// Its security groups, sorted.
    pub groups: Vec<String>,
    /// True if it is not filtered.
    pub bypass: bool,
}

/// Protocol, addresses and ports of opener and other end, tag.
type Ends = (u8, IpAddr, u16, IpAddr, u16, u16);
/// State; seconds since it was made, and since its last frame; packets and bytes both ways.
type Life = (u8, u32, u32, [u64; 2], [u64; 2]);
/// FINs, scales, and the three marks of both sides.
type Marks = (u8, [u8; 2], [u32; 2], [u32; 2], [u32; 2]);

/// One session. The first field is true if the vnic opened it.
type SessionText = (bool, Ends, Life, Option<Marks>);

/// The whole text.
#[derive(Serialize, Deserialize)]
struct MovedText {
    kind: String,
    layout: u32,
    vnic: MovedVnic,
    #[serde(default)]
    counts: Counts,
    #[serde(default)]
    sessions: Vec<SessionText>,
    /// Those that a router joined with machines of other networks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    routed: Vec<SessionText>,
    /// Sessions that found no room.
    #[serde(default)]
    left_out: u64,
}

impl Text for MovedText {
    fn layout(&self) -> u32 {
        self.layout
    }
}

/// Vnic that comes from another host, as its text says.
#[derive(Clone, Debug)]
pub struct Moved {
    /// Its declaration there.
    pub vnic: MovedVnic,
    /// Sessions that found no room in the text.
    pub left_out: u64,
    counts: Totals,
    sessions: Vec<MovedSession>,
    /// Entries that were not understood, by reason.
    refused: BTreeMap<&'static str, u64>,
}

/// Account of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// The sessions.
    pub sessions: ImportedSessions,
    /// Sessions that were left out where the vnic was exported.
    pub left_out: u64,
}

/// Export of a vnic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedVnic {
    /// The text.
    pub text: Vec<u8>,
    /// Sessions in it, and those that found no room.
    pub sessions: u64,
    /// Sessions that found no room.
    pub left_out: u64,
}

/// Writes the text of a vnic. Returns `None` if there is none of that name.
pub(crate) fn export(plane: &Plane, vnic: MovedVnic) -> Option<ExportedVnic> {
    let here = plane.vnic(&vnic.id)?;
    let sessions = plane.sessions_of(&here);
    let all = sessions.len();
    let of = |routed| sessions.iter().filter(move |session| session.routed == routed);
    let text = MovedText {
        kind: KIND.into(),
        layout: LAYOUT,
        vnic,
        counts: Counts::of(&here.shared.counters.totals()),
        sessions: of(false).map(written).collect(),
        routed: of(true).map(written).collect(),
        left_out: 0,
    };
    let noted = fitting(text, MOST_MOVED, |text, keep| {
        for sessions in [&mut text.sessions, &mut text.routed] {
            sessions.truncate(sessions.len() * keep / 1000);
        }
        let left_out = all - text.sessions.len() - text.routed.len();
        text.left_out = left_out as u64;
        left_out
    });
    let left_out = noted.left_out as u64;
    Some(ExportedVnic { text: noted.text, sessions: all as u64 - left_out, left_out })
}

fn written(session: &MovedSession) -> SessionText {
    let MovedSession { opened, routed: _, tuple, state, track, past } = session;
    let ends = (
        tuple.protocol,
        address(tuple.source),
        tuple.source_port,
        address(tuple.destination),
        tuple.destination_port,
        tuple.vlan,
    );
    let life = (state.number(), past.age, past.idle, past.packets, past.bytes);
    let marks = matches!(state, State::Tcp(_)).then_some((
        track.fins,
        track.scale,
        track.end,
        track.allow,
        track.acked,
    ));
    (*opened, ends, life, marks)
}

/// Returns the session that a text tells of; the reason if there is none like it.
fn read_session(text: &SessionText, routed: bool) -> Result<MovedSession, &'static str> {
    let (opened, ends, (number_of_state, age, idle, packets, bytes), marks) = *text;
    let (protocol, source, source_port, destination, destination_port, vlan) = ends;
    let state = State::from_number(number_of_state);
    if state.number() != number_of_state {
        return Err("its state cannot be");
    }
    if source.is_ipv4() != destination.is_ipv4() {
        return Err("its ends are of two families");
    }
    let track = match (state, marks) {
        (State::Tcp(state), Some((fins, scale, end, allow, acked))) => {
            Track { state, fins, scale, end, allow, acked }
        }
        (State::Tcp(state @ TcpState::Cut), None) => Track { state, ..NO_TRACK },
        (State::Tcp(_), None) | (_, Some(_)) => return Err("its marks cannot be"),
        (_, None) => NO_TRACK,
    };
    let (source, destination) = (number(source), number(destination));
    let tuple = Tuple { source, destination, source_port, destination_port, vlan, protocol };
    let past = Past { age, idle, packets, bytes };
    Ok(MovedSession { opened, routed, tuple, state, track, past })
}

impl Moved {
    /// Reads a text. Whoever wrote it is not trusted.
    pub fn read(text: &[u8]) -> Result<Moved, String> {
        if text.len() > MOST_MOVED {
            return Err(format!("it has {} bytes; {MOST_MOVED} are the most", text.len()));
        }
        let text: MovedText = serde_json::from_slice(text).map_err(|why| {
            // The reason may quote what was read.
            let why: String = why.to_string().chars().take(LONGEST).collect();
            format!("it is no export: {why}")
        })?;
        if text.kind != KIND {
            return Err("it is no export of a vnic".into());
        }
        if text.layout != LAYOUT {
            return Err(format!("it has layout {}, and this is layout {LAYOUT}", text.layout));
        }
        let mut taken = TakenOver::default();
        let counts = text.counts.read(&mut taken);
        let mut refused: BTreeMap<_, _> =
            taken.refused.into_iter().map(|(why, n)| (why, n as u64)).collect();
        let mut sessions = Vec::new();
        let routed = text.routed.iter().map(|session| (session, true));
        for (session, routed) in text.sessions.iter().map(|session| (session, false)).chain(routed)
        {
            match read_session(session, routed) {
                Ok(session) => sessions.push(session),
                Err(why) => *refused.entry(why).or_default() += 1,
            }
        }
        Ok(Moved { vnic: text.vnic, left_out: text.left_out, counts, sessions, refused })
    }
}

/// Takes over what a vnic was on another host. Returns `None` if there is none of that name.
pub(crate) fn import(plane: &Plane, moved: &Moved) -> Option<Imported> {
    let vnic = plane.vnic(&moved.vnic.id)?;
    let mut sessions = plane.take_sessions(&moved.vnic.id, &moved.sessions);
    for (why, n) in &moved.refused {
        *sessions.refused.entry(why).or_default() += n;
    }
    count_on(&vnic.shared, &moved.counts);
    Some(Imported { sessions, left_out: moved.left_out })
}

/// Adds the counts of another host, once. As long as the machine does not run here, the larger
/// count holds; later the growth since the last import is added.
fn count_on(vnic: &VnicShared, counts: &Totals) {
    let mut before = vnic.counted.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let base = match &*before {
        _ if vnic.elsewhere.load(std::sync::atomic::Ordering::Relaxed) => vnic.counters.totals(),
        Some(before) => Totals::clone(before),
        None => Totals::default(),
    };
    vnic.counters.add_moved(&counts.beyond(&base));
    *before = Some(Box::new(counts.clone()));
}
