//! The vnics as declared.

use butterfly_model::{Nic, NicId, SocketPath, Vni};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// All vnics by id, and by what two of them must not share.
#[derive(Debug, Default)]
pub struct Registry {
    nics: BTreeMap<NicId, Nic>,
    by_address: HashMap<(Vni, [u8; 6]), BTreeSet<NicId>>,
    by_socket: HashMap<SocketPath, NicId>,
    /// Which of two was declared first, whatever was changed since.
    orders: HashMap<NicId, u64>,
    next_order: u64,
}

/// Why a vnic cannot stand beside another.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// A socket leads to one vnic.
    #[error("socket {path} belongs to nic {owner:?}; give one of them another path")]
    Socket {
        /// The socket.
        path: String,
        /// Whose it is.
        owner: String,
    },
    /// A mirror sees its own network only.
    #[error(
        "nic {mirror:?} of VNI {vni} cannot mirror nic {target:?} of VNI {other}: a mirror sees its own network only; declare it with --vni {other}"
    )]
    OtherNetwork {
        /// The mirror.
        mirror: String,
        /// Its network.
        vni: Vni,
        /// What it should mirror.
        target: String,
        /// The network of that.
        other: Vni,
    },
    /// The same from the other end.
    #[error(
        "nic {nic:?} cannot be in VNI {vni}, as nic {by:?} of VNI {other} mirrors it: delete that one first"
    )]
    MirroredElsewhere {
        /// It.
        nic: String,
        /// Where it should be.
        vni: Vni,
        /// Its mirror.
        by: String,
        /// The network of that.
        other: Vni,
    },
    /// There are no copies of copies.
    #[error(
        "nic {mirror:?} cannot mirror nic {target:?}, which is a mirror itself: name the nic that {target:?} mirrors"
    )]
    OfMirror {
        /// The mirror.
        mirror: String,
        /// What it should mirror.
        target: String,
    },
    /// The same from the other end.
    #[error("nic {nic:?} cannot become a mirror, as nic {by:?} mirrors it: delete that one first")]
    IsMirrored {
        /// It.
        nic: String,
        /// By this one.
        by: String,
    },
    /// Nor of oneself.
    #[error("nic {0:?} cannot mirror itself: name another nic of its VNI as the sniff target")]
    OfItself(String),
}

impl Registry {
    /// The vnic called `id`.
    pub fn get(&self, id: &str) -> Option<&Nic> {
        self.nics.get(id)
    }

    /// All vnics in byte order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Nic> {
        self.nics.values()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.nics.len()
    }

    /// Checks `nic` against all others; an earlier state of itself is none of them.
    pub fn check(&self, nic: &Nic) -> Result<(), Conflict> {
        self.check_mirror(nic)?;
        let Some(socket) = nic.kind.socket() else { return Ok(()) };
        match self.by_socket.get(socket) {
            Some(owner) if *owner != nic.id => {
                Err(Conflict::Socket { path: socket.to_string(), owner: owner.as_str().to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// A mirror and its target are of one network, and only one of them is a mirror, whichever is
    /// declared first.
    fn check_mirror(&self, nic: &Nic) -> Result<(), Conflict> {
        let id = || nic.id.as_str().to_owned();
        for mirror in self.mirrors_of(nic.id.as_str()).filter(|mirror| mirror.id != nic.id) {
            let by = mirror.id.as_str().to_owned();
            if nic.sniff_target.is_some() {
                return Err(Conflict::IsMirrored { nic: id(), by });
            }
            if mirror.vni != nic.vni {
                return Err(Conflict::MirroredElsewhere {
                    nic: id(),
                    vni: nic.vni,
                    by,
                    other: mirror.vni,
                });
            }
        }
        let Some(target) = &nic.sniff_target else { return Ok(()) };
        match self.nics.get(target.as_str()) {
            _ if target == nic.id.as_str() => Err(Conflict::OfItself(id())),
            Some(found) if found.vni != nic.vni => Err(Conflict::OtherNetwork {
                mirror: id(),
                vni: nic.vni,
                target: target.clone(),
                other: found.vni,
            }),
            Some(found) if found.sniff_target.is_some() => {
                Err(Conflict::OfMirror { mirror: id(), target: target.clone() })
            }
            _ => Ok(()),
        }
    }

    /// The mirrors that name a vnic.
    pub fn mirrors_of<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a Nic> {
        self.nics.values().filter(move |nic| nic.sniff_target.as_deref() == Some(id))
    }

    /// The place of a vnic among those that declared their MAC address; of one that is not there,
    /// or was with another one, the last.
    pub fn order(&self, nic: &Nic) -> u64 {
        let address = |nic: &Nic| (nic.vni, nic.mac.octets(), nic.sniff_target.is_some());
        let same = self.nics.get(&nic.id).is_some_and(|old| address(old) == address(nic));
        self.orders.get(&nic.id).copied().filter(|_| same).unwrap_or(self.next_order)
    }

    /// All that declare the MAC address of a vnic in its network, itself among them if it is there,
    /// in the order of declaration.
    pub fn sharing(&self, nic: &Nic) -> Vec<&NicId> {
        let mut all: Vec<&NicId> =
            self.by_address.get(&(nic.vni, nic.mac.octets())).into_iter().flatten().collect();
        all.sort_by_key(|id| self.orders.get(*id));
        all
    }

    /// Adds `nic`, in place of one with its id, and of its age.
    pub fn insert(&mut self, nic: Nic) {
        let order = self.order(&nic);
        self.next_order = self.next_order.max(order + 1);
        self.remove(nic.id.as_str());
        self.orders.insert(nic.id.clone(), order);
        // A mirror is no station: its address is nobody's.
        if nic.sniff_target.is_none() {
            self.by_address.entry((nic.vni, nic.mac.octets())).or_default().insert(nic.id.clone());
        }
        if let Some(socket) = nic.kind.socket() {
            self.by_socket.insert(socket.clone(), nic.id.clone());
        }
        self.nics.insert(nic.id.clone(), nic);
    }

    /// Takes a vnic out.
    pub fn remove(&mut self, id: &str) -> Option<Nic> {
        let nic = self.nics.remove(id)?;
        self.orders.remove(&nic.id);
        let address = (nic.vni, nic.mac.octets());
        if let Some(sharing) = self.by_address.get_mut(&address) {
            sharing.remove(&nic.id);
            if sharing.is_empty() {
                self.by_address.remove(&address);
            }
        }
        if let Some(socket) = nic.kind.socket() {
            self.by_socket.remove(socket);
        }
        Some(nic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfly_model::{Kind, Mac, Role, SocketDir};
    use std::path::Path;

    fn nic(id: &str, mac: &str, vni: u32, bypass: bool) -> Nic {
        let id = NicId::new(id).unwrap();
        Nic {
            kind: Kind::vhost_user(Role::Server, &id, None, &SocketDir::new("/run/b".into()))
                .unwrap(),
            id,
            mac: Mac::parse(mac).unwrap(),
            vni: Vni::new(vni).unwrap(),
            ips: Default::default(),
            security_groups: Default::default(),
            ip_anti_spoof: false,
            bypass_filtering: bypass,
            forwards: false,
            shared_ip: false,
            router: false,
            sniff_target: None,
            packet_trace: false,
            packet_trace_path: None,
            trace_options: Default::default(),
        }
    }

    const MAC: &str = "42:00:00:00:00:aa";
    const SAME: &str = "42:00:00:00:00:AA";

    #[test]
    fn who_shares_an_address_is_known_in_the_order_of_declaration() {
        let mut registry = Registry::default();
        let sharing = |registry: &Registry| -> Vec<String> {
            registry
                .sharing(&nic("x", SAME, 1, false))
                .into_iter()
                .map(|id| id.as_str().to_owned())
                .collect()
        };
        registry.insert(nic("b", MAC, 1, false));
        registry.insert(nic("a", SAME, 1, true));
        registry.insert(nic("c", MAC, 2, true));
        assert_eq!(sharing(&registry), ["b", "a"]);
        registry.insert(nic("b", SAME, 1, true));
        assert_eq!(sharing(&registry), ["b", "a"], "it is as old as before");
        registry.remove("b");
        registry.insert(nic("b", MAC, 1, false));
        assert_eq!(sharing(&registry), ["a", "b"], "it is new");
        registry.insert(nic("a", "42:00:00:00:00:bb", 1, false));
        registry.insert(nic("a", MAC, 1, false));
        assert_eq!(sharing(&registry), ["b", "a"], "it had another one meanwhile");
    }

    #[test]
    fn a_socket_leads_to_one_vnic() {
        let mut registry = Registry::default();
        registry.insert(nic("a", MAC, 1, true));
        let mut client = nic("b", "42:00:00:00:00:bb", 1, true);
        let at = |path| SocketPath::new(Path::new(path)).unwrap();
        client.kind = Kind::VhostUser { role: Role::Client, socket: at("/run/b/qemu-vhost-a") };
        let expected = Conflict::Socket { path: "/run/b/qemu-vhost-a".into(), owner: "a".into() };
        assert_eq!(registry.check(&client), Err(expected));
        registry.remove("a");
        assert_eq!(registry.check(&client), Ok(()));
    }

    #[test]
    fn a_mirror_is_of_a_station_of_its_network() {
        let mirror = |id: &str, vni, target: &str| Nic {
            sniff_target: Some(target.to_owned()),
            ..nic(id, MAC, vni, false)
        };
        let mut registry = Registry::default();
        registry.insert(nic("a", MAC, 1, false));
        assert_eq!(registry.check(&mirror("m", 1, "a")), Ok(()), "whatever its address is");
        assert_eq!(registry.check(&mirror("m", 2, "later")), Ok(()));
        assert!(matches!(registry.check(&mirror("m", 2, "a")), Err(Conflict::OtherNetwork { .. })));
        assert_eq!(registry.check(&mirror("m", 1, "m")), Err(Conflict::OfItself("m".into())));
        registry.insert(mirror("m", 1, "a"));
        assert!(matches!(registry.check(&mirror("n", 1, "m")), Err(Conflict::OfMirror { .. })));
        assert!(matches!(registry.check(&mirror("a", 1, "x")), Err(Conflict::IsMirrored { .. })));
        registry.remove("a");
        assert!(registry.sharing(&nic("b", MAC, 1, false)).is_empty(), "the mirror has none");
        assert!(matches!(
            registry.check(&nic("a", MAC, 7, false)),
            Err(Conflict::MirroredElsewhere { .. })
        ));
        assert!(matches!(registry.check(&mirror("a", 7, "x")), Err(Conflict::IsMirrored { .. })));
        assert_eq!(registry.check(&nic("a", MAC, 1, false)), Ok(()));
        assert_eq!(registry.check(&mirror("m", 2, "b")), Ok(()), "it moves itself");
        registry.insert(nic("a", MAC, 1, false));
        assert_eq!(registry.mirrors_of("a").map(|nic| nic.id.as_str()).collect::<Vec<_>>(), ["m"]);
    }

    #[test]
    fn a_replaced_vnic_leaves_nothing_behind() {
        let mut registry = Registry::default();
        registry.insert(nic("a", MAC, 1, false));
        registry.insert(nic("a", MAC, 2, false));
        assert!(registry.sharing(&nic("b", MAC, 1, false)).is_empty());
        assert_eq!(registry.sharing(&nic("b", MAC, 2, false)).len(), 1);
        assert_eq!(registry.remove("a").unwrap().vni.number(), 2);
        assert_eq!(registry.remove("a"), None);
        assert!(
            registry.by_address.is_empty()
                && registry.by_socket.is_empty()
                && registry.orders.is_empty()
        );
    }
}
