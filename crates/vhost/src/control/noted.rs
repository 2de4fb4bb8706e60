//! A device's state as text, for whoever goes on with its front end after this process.
//!
//! Descriptors are named, as the holder keeps them. A successor trusts none of it: the text is read
//! into types, and every value then passes the checks of the message that once brought it.

use std::{collections::HashMap, os::fd::OwnedFd, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    session::{Refused, Session},
    state::{DeviceState, Kick, LogState, Name, Named, RingAddresses, RingState},
};
use crate::{
    memory::{MAX_REGIONS, RegionSpec},
    net::Features,
    port::Queue,
};

/// Number of a message, and place in it.
type File = (u64, u32);

/// State of a connection.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Noted {
    /// Any since the first: it stays until the front end says something.
    layout: u32,
    /// In rehearsals alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rehearsed: Option<u32>,
    /// The front end has spoken.
    pub attached: bool,
    /// Since when, in seconds since 1970.
    pub since: u64,
    /// Process of the front end.
    pub pid: Option<u32>,
    /// Number of the message that told of it.
    #[serde(default)]
    connection: u64,
    /// Block of the notes about its packed rings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<u32>,
    features: Option<u64>,
    protocol: Option<u64>,
    regions: Vec<Region>,
    log: Option<Log>,
    /// The rings of as many pairs as the front end told of, one at least.
    rings: Vec<Ring>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Region {
    file: File,
    guest: u64,
    size: u64,
    user: u64,
    offset: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Log {
    file: File,
    size: u64,
    offset: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ring {
    size: Option<u16>,
    at: Option<At>,
    position: u16,
    /// A message said it.
    #[serde(default)]
    given: bool,
    /// Number of the message that said where it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    set: Option<u64>,
    /// Position that is not known any more.
    #[serde(default)]
    lost: bool,
    kick: Option<How>,
    call: Option<File>,
    enabled: Option<bool>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct At {
    desc: u64,
    avail: u64,
    used: u64,
    log: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum How {
    Polled,
    Eventfd(File),
}

/// Checks that a state that another process noted can be read here. Returns the reason if not.
pub fn check(text: &[u8]) -> Result<(), String> {
    Noted::read(text).map(drop).map_err(|Refused(why)| why)
}

/// The block of notes about packed rings that a state names.
pub fn block_of(text: &[u8]) -> Option<u32> {
    Noted::read(text).ok().and_then(|noted| noted.block)
}

fn file(name: Name) -> File {
    (name.message, name.place)
}

impl Noted {
    /// Notes a connection.
    pub fn of(session: &Session, attached: bool, since: u64, pid: Option<u32>) -> Noted {
        let ring = |queue: Queue| {
            let ring = session.ring(queue);
            Ring {
                size: ring.size,
                at: ring.addresses.map(|at| At {
                    desc: at.desc,
                    avail: at.avail,
                    used: at.used,
                    log: at.used_log,
                }),
                position: session.position(queue),
                given: ring.given,
                set: ring.set,
                lost: ring.lost,
                kick: ring.kick.as_ref().map(|kick| match kick {
                    Kick::Polled => How::Polled,
                    Kick::Eventfd(kick) => How::Eventfd(file(kick.name)),
                }),
                call: ring.call.as_ref().map(|call| file(call.name)),
                enabled: ring.enabled,
            }
        };
        let region = |Named { name, it }: &Named<RegionSpec>| Region {
            file: file(*name),
            guest: it.guest_addr,
            size: it.size,
            user: it.user_addr,
            offset: it.mmap_offset,
        };
        let log = |Named { name, it }: &Named<LogState>| Log {
            file: file(*name),
            size: it.size,
            offset: it.offset,
        };
        let layout = butterfly_layout::in_force();
        Noted {
            layout,
            rehearsed: butterfly_layout::rehearsed(layout),
            attached,
            since,
            pid,
            connection: session.connection(),
            block: session.block(),
            features: session.features().map(|features| features.0),
            protocol: session.protocol(),
            regions: session.regions().iter().map(region).collect(),
            log: session.log().map(log),
            rings: session.known_rings().map(ring).collect(),
        }
    }

    /// The text.
    pub fn text(&self) -> Vec<u8> {
        // Numbers, lists and names: nothing in it can fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a text.
    pub fn read(text: &[u8]) -> Result<Noted, Refused> {
        let noted: Noted = serde_json::from_slice(text)
            .map_err(|error| Refused(format!("its notes cannot be read: {error}")))?;
        if !(butterfly_layout::FIRST..=butterfly_layout::newest()).contains(&noted.layout) {
            let why = butterfly_layout::unreadable(noted.layout.into());
            return Err(Refused(format!("its notes cannot be read: {why}")));
        }
        if noted.rehearsed != butterfly_layout::rehearsed(noted.layout) {
            return Err(Refused("its notes have a field of another layout".to_owned()));
        }
        if noted.regions.len() > MAX_REGIONS {
            return Err(Refused(format!("its notes have {} memory regions", noted.regions.len())));
        }
        let rings = noted.rings.len();
        if !(2..=Queue::COUNT).contains(&rings) || !rings.is_multiple_of(2) {
            return Err(Refused(format!("its notes have {rings} rings")));
        }
        Ok(noted)
    }

    /// Names of the descriptors that the state needs.
    pub fn files(&self) -> impl Iterator<Item = Name> {
        let rings = self.rings.iter().flat_map(|ring| {
            let kick = match &ring.kick {
                Some(How::Eventfd(file)) => Some(*file),
                _ => None,
            };
            [kick, ring.call].into_iter().flatten()
        });
        let regions = self.regions.iter().map(|region| region.file);
        let log = self.log.iter().map(|log| log.file);
        regions.chain(log).chain(rings).map(|(message, place)| Name { message, place })
    }

    /// The state, with the descriptors that were kept. Each is taken once.
    pub fn state(self, kept: &mut HashMap<Name, OwnedFd>) -> Result<DeviceState, Refused> {
        fn named<T>(
            kept: &mut HashMap<Name, OwnedFd>,
            (message, place): File,
            make: impl FnOnce(OwnedFd) -> T,
        ) -> Result<Named<T>, Refused> {
            let name = Name { message, place };
            let fd = kept.remove(&name).ok_or_else(|| {
                Refused(format!("descriptor {place} of message {message} was not kept for it"))
            })?;
            Ok(Named { name, it: make(fd) })
        }
        let mut regions = Vec::with_capacity(self.regions.len());
        for Region { file, guest, size, user, offset } in self.regions {
            regions.push(named(kept, file, |file| RegionSpec {
                guest_addr: guest,
                size,
                user_addr: user,
                mmap_offset: offset,
                file,
            })?);
        }
        let log = match self.log {
            None => None,
            Some(Log { file, size, offset }) => {
                Some(named(kept, file, |file| LogState { file, size, offset })?)
            }
        };
        let mut ring = |ring: Ring| -> Result<RingState, Refused> {
            Ok(RingState {
                size: ring.size,
                addresses: ring.at.map(|at| RingAddresses {
                    desc: at.desc,
                    avail: at.avail,
                    used: at.used,
                    used_log: at.log,
                }),
                position: ring.position,
                given: ring.given,
                set: ring.set,
                lost: ring.lost,
                kick: match ring.kick {
                    None => None,
                    Some(How::Polled) => Some(Kick::Polled),
                    Some(How::Eventfd(file)) => Some(Kick::Eventfd(named(kept, file, Arc::new)?)),
                },
                call: ring.call.map(|file| named(kept, file, |fd| fd)).transpose()?,
                enabled: ring.enabled,
            })
        };
        Ok(DeviceState {
            connection: self.connection,
            features: self.features.map(Features),
            protocol_features: self.protocol,
            rings: self.rings.into_iter().map(&mut ring).collect::<Result<_, _>>()?,
            regions,
            log,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfly_holder::protocol::{MAX_KEPT, MAX_STATE};

    /// The largest state there can be is one that the holder takes.
    #[test]
    fn each_state_has_room_in_a_packet() {
        let file = (u64::MAX, u32::MAX);
        let (guest, size, user, offset) = (u64::MAX, u64::MAX, u64::MAX, u64::MAX);
        let ring = || Ring {
            size: Some(u16::MAX),
            at: Some(At { desc: u64::MAX, avail: u64::MAX, used: u64::MAX, log: Some(u64::MAX) }),
            position: u16::MAX,
            given: false,
            set: Some(u64::MAX),
            lost: false,
            kick: Some(How::Eventfd(file)),
            call: Some(file),
            enabled: Some(false),
        };
        let noted = Noted {
            layout: u32::MAX,
            rehearsed: Some(u32::MAX),
            attached: false,
            since: u64::MAX,
            pid: Some(u32::MAX),
            connection: u64::MAX,
            block: Some(u32::MAX),
            features: Some(u64::MAX),
            protocol: Some(u64::MAX),
            regions: (0..MAX_REGIONS).map(|_| Region { file, guest, size, user, offset }).collect(),
            log: Some(Log { file, size, offset }),
            rings: (0..Queue::COUNT).map(|_| ring()).collect(),
        };
        assert!(noted.text().len() <= MAX_STATE, "{} bytes", noted.text().len());
        assert!(noted.files().count() <= MAX_KEPT);
    }
}
