//! The vnics as declared.

use butterfly_model::{Nic, NicId, SocketPath, Vni};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// All vnics by id, and by what two of them must not share.
#[derive(Debug, Default)]
pub struct Registry {
    nics: BTreeMap<NicId, Nic>,
    by_address: HashMap<(Vni, [u8; 6]), BTreeSet<NicId>>,
    by_socket: HashMap<SocketPath, NicId>,
}

/// Why a vnic cannot stand beside another.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// Frames to a filtered vnic must not go to another.
    #[error(
        "MAC address {mac} belongs to nic {owner:?} of VNI {vni}; two nics may share an address only if both bypass filtering"
    )]
    Address {
        /// The address.
        mac: String,
        /// Its network.
        vni: Vni,
        /// Who has it.
        owner: String,
    },
    /// A socket leads to one vnic.
    #[error("socket {path} belongs to nic {owner:?}; give one of them another path")]
    Socket {
        /// The socket.
        path: String,
        /// Whose it is.
        owner: String,
    },
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
        let address = (nic.vni, nic.mac.octets());
        let sharing = self.by_address.get(&address).into_iter().flatten();
        let other = sharing.filter(|id| **id != nic.id).filter_map(|id| self.nics.get(id));
        if let Some(owner) = other.into_iter().find(|other| !(other.bypass_filtering && nic.bypass_filtering)) {
            let owner = owner.id.as_str().to_owned();
            return Err(Conflict::Address { mac: nic.mac.text().to_owned(), vni: nic.vni, owner });
        }
        let Some(socket) = nic.kind.socket() else { return Ok(()) };
        match self.by_socket.get(socket) {
            Some(owner) if *owner != nic.id => {
                Err(Conflict::Socket { path: socket.to_string(), owner: owner.as_str().to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Adds `nic`, in place of one with its id.
    pub fn insert(&mut self, nic: Nic) {
        self.remove(nic.id.as_str());
        self.by_address.entry((nic.vni, nic.mac.octets())).or_default().insert(nic.id.clone());
        if let Some(socket) = nic.kind.socket() {
            self.by_socket.insert(socket.clone(), nic.id.clone());
        }
        self.nics.insert(nic.id.clone(), nic);
    }

    /// Takes a vnic out.
    pub fn remove(&mut self, id: &str) -> Option<Nic> {
        let nic = self.nics.remove(id)?;
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
            kind: Kind::vhost_user(Role::Server, &id, None, &SocketDir::new("/run/b".into())).unwrap(),
            id,
            mac: Mac::parse(mac).unwrap(),
            vni: Vni::new(vni).unwrap(),
            ips: Default::default(),
            security_groups: Default::default(),
            ip_anti_spoof: false,
            bypass_filtering: bypass,
            sniff_target: None,
            packet_trace: false,
            packet_trace_path: None,
            trace_options: Default::default(),
        }
    }

    const MAC: &str = "42:00:00:00:00:aa";
    const SAME: &str = "42:00:00:00:00:AA";

    #[test]
    fn an_address_is_shared_by_bypass_vnics_only() {
        for (first, second, fine) in [(false, false, false), (true, false, false), (false, true, false), (true, true, true)] {
            let mut registry = Registry::default();
            registry.insert(nic("a", MAC, 1, first));
            assert_eq!(registry.check(&nic("b", SAME, 1, second)).is_ok(), fine, "{first} {second}");
            assert!(registry.check(&nic("b", MAC, 2, second)).is_ok(), "another network");
            assert!(registry.check(&nic("a", MAC, 1, second)).is_ok(), "itself");
        }
    }

    #[test]
    fn one_of_several_owners_is_enough_to_object() {
        let mut registry = Registry::default();
        registry.insert(nic("a", MAC, 1, true));
        registry.insert(nic("b", MAC, 1, true));
        assert!(registry.check(&nic("b", MAC, 1, false)).is_err(), "b stops to bypass");
        registry.remove("a");
        assert!(registry.check(&nic("b", MAC, 1, false)).is_ok());
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
    fn a_replaced_vnic_leaves_nothing_behind() {
        let mut registry = Registry::default();
        registry.insert(nic("a", MAC, 1, false));
        registry.insert(nic("a", MAC, 2, false));
        assert!(registry.check(&nic("b", MAC, 1, false)).is_ok());
        assert!(registry.check(&nic("b", MAC, 2, false)).is_err());
        assert_eq!(registry.remove("a").unwrap().vni.number(), 2);
        assert_eq!(registry.remove("a"), None);
        assert!(registry.by_address.is_empty() && registry.by_socket.is_empty());
    }
}
