//! The vnics as declared, and what two of them must not share.

use crate::{refused::Refused, routed::Routed};
use butterfly_model::{
    Bench, Kind, MAX_PREFIXES, Nic, NicId, Prefix, SocketPath, Vni, is_reserved_mac,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

/// All vnics, in byte order of their ids.
///
/// Several vnics of a network may declare one MAC address: they stand in line for it, in the order
/// of declaration. The first has it; those behind it wait, unless they and all before them bypass
/// filtering.
#[derive(Clone, Debug, Default)]
pub struct Vnics {
    nics: BTreeMap<NicId, Entry>,
    lines: HashMap<Station, BTreeMap<u64, NicId>>,
    by_socket: HashMap<SocketPath, NicId>,
    by_target: HashMap<String, BTreeSet<NicId>>,
    /// Those that declare an address of a network; mirrors do not count. Never with an empty set.
    by_address: BTreeMap<(Vni, IpAddr), BTreeSet<NicId>>,
    /// Those that have a prefix in a network, likewise.
    by_prefix: HashMap<(Vni, Prefix), BTreeSet<NicId>>,
    next_order: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    nic: Nic,
    /// Tells which of two was declared first, whatever was changed since.
    order: u64,
}

/// A network and a MAC address of it.
type Station = (Vni, [u8; 6]);

/// The line that a vnic stands in; none for a mirror, which has no address of its own.
pub(crate) fn station(nic: &Nic) -> Option<Station> {
    nic.sniff_target.is_none().then(|| (nic.vni, nic.mac.octets()))
}

/// Equal if they are echoed alike and all lines are in the same order.
impl PartialEq for Vnics {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
            && self.lines.iter().all(|(station, line)| line.values().eq(other.line(station)))
    }
}

impl Eq for Vnics {}

impl Vnics {
    /// The vnic called `id`.
    pub fn get(&self, id: &str) -> Option<&Nic> {
        self.nics.get(id).map(|entry| &entry.nic)
    }

    /// All vnics in byte order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Nic> {
        self.nics.values().map(|entry| &entry.nic)
    }

    /// The number of vnics.
    pub fn len(&self) -> usize {
        self.nics.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.nics.is_empty()
    }

    /// The mirrors of the vnic called `id`, which need not exist.
    pub fn mirrors_of(&self, id: &str) -> impl Iterator<Item = &Nic> {
        let mirrors = self.by_target.get(id).into_iter().flatten();
        mirrors.filter_map(|id| self.get(id.as_str()))
    }

    /// The place of `nic` among those that declare its MAC address: of a vnic that is not there, or
    /// is with another address, a place behind all. Lower numbers come first; the numbers mean
    /// nothing else.
    pub fn order(&self, nic: &Nic) -> u64 {
        let old = self.nics.get(&nic.id);
        let same = old.filter(|old| station(&old.nic) == station(nic));
        same.map_or(self.next_order, |old| old.order)
    }

    /// All that declare the MAC address of `nic` in its network, itself among them if it is there,
    /// in the order of declaration.
    pub fn sharing(&self, nic: &Nic) -> Vec<&NicId> {
        self.line(&(nic.vni, nic.mac.octets())).collect()
    }

    pub(crate) fn line(&self, station: &Station) -> impl Iterator<Item = &NicId> {
        self.lines.get(station).into_iter().flat_map(BTreeMap::values)
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = (&Station, impl Iterator<Item = &NicId>)> {
        self.lines.iter().map(|(station, line)| (station, line.values()))
    }

    /// A place behind all.
    pub(crate) fn next_order(&self) -> u64 {
        self.next_order
    }

    /// Ids in the order of declaration.
    pub(crate) fn by_order(&self) -> BTreeMap<u64, &NicId> {
        self.nics.iter().map(|(id, entry)| (entry.order, id)).collect()
    }

    /// Checks `nic` by itself and against all others; an earlier state of itself is none of them.
    pub(crate) fn check(&self, nic: &Nic) -> Result<(), Refused> {
        check_alone(nic)?;
        self.check_mirror(nic)?;
        self.check_prefixes(nic)?;
        let Some(socket) = nic.kind.socket() else { return Ok(()) };
        match self.by_socket.get(socket) {
            Some(owner) if *owner != nic.id => {
                Err(Refused::Socket { path: socket.to_string(), owner: owner.as_str().to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Checks that no router or external has an address of `nic` in its network, and that vnics may
    /// be in it. Sharing addresses is for vnics alone: a router answers for its own.
    pub(crate) fn check_routed(nic: &Nic, routed: &Routed) -> Result<(), Refused> {
        let addresses = nic.ips.addresses().filter(|_| station(nic).is_some());
        routed.check_vnic((nic.vni, &nic.mac), addresses, nic.prefixes.iter())
    }

    /// A vnic in a network, mirrors among them. Looks at all.
    pub(crate) fn in_network(&self, vni: Vni) -> Option<&NicId> {
        self.iter().find(|nic| nic.vni == vni).map(|nic| &nic.id)
    }

    /// A vnic that declares an address of a network, mirrors apart.
    pub(crate) fn with_address(&self, vni: Vni, address: IpAddr) -> Option<&NicId> {
        self.by_address.get(&(vni, address))?.first()
    }

    /// A vnic that has an address of a network, declared or by its prefix, mirrors apart.
    pub(crate) fn owner(&self, vni: Vni, address: IpAddr) -> Option<&NicId> {
        let by_prefix = || self.with_prefix(vni, address).map(|nic| &nic.id);
        self.with_address(vni, address).or_else(by_prefix)
    }

    /// A vnic that has an address of a network by its prefix.
    pub(crate) fn with_prefix(&self, vni: Vni, address: IpAddr) -> Option<&Nic> {
        let ids = self.by_prefix.get(&(vni, Prefix::around(address)?))?;
        ids.first().and_then(|id| self.get(id.as_str()))
    }

    /// Checks that no vnic of another MAC address has a prefix of `nic`, nor an address in one, and
    /// that none of its addresses is in such a vnic's prefix. Those of one MAC address stand in
    /// line: one of them has all of it.
    fn check_prefixes(&self, nic: &Nic) -> Result<(), Refused> {
        let Some(own) = station(nic) else { return Ok(()) };
        let is_other = |id: &&NicId| {
            **id != nic.id && self.get(id.as_str()).and_then(station).is_some_and(|it| it != own)
        };
        let taken = |what: String, owner: &NicId| Refused::PrefixTaken {
            nic: nic.id.as_str().to_owned(),
            what,
            vni: nic.vni,
            owner: owner.as_str().to_owned(),
        };
        for prefix in nic.prefixes.iter() {
            let same = self.by_prefix.get(&(nic.vni, prefix)).into_iter().flatten();
            let ends = (nic.vni, prefix.first().into())..=(nic.vni, prefix.last().into());
            let within = self.by_address.range(ends).flat_map(|(_, ids)| ids);
            if let Some(owner) = same.chain(within).find(is_other) {
                return Err(taken(format!("the prefix {prefix}"), owner));
            }
        }
        for address in nic.ips.addresses() {
            let Some(prefix) = Prefix::around(address) else { continue };
            let mut owners = self.by_prefix.get(&(nic.vni, prefix)).into_iter().flatten();
            if let Some(owner) = owners.find(is_other) {
                return Err(taken(format!("the address {address}"), owner));
            }
        }
        Ok(())
    }

    /// A mirror and its target are of one network, and only one of them is a mirror, whichever is
    /// declared first.
    fn check_mirror(&self, nic: &Nic) -> Result<(), Refused> {
        let id = || nic.id.as_str().to_owned();
        for mirror in self.mirrors_of(nic.id.as_str()).filter(|mirror| mirror.id != nic.id) {
            let by = mirror.id.as_str().to_owned();
            if nic.sniff_target.is_some() {
                return Err(Refused::IsMirrored { nic: id(), by });
            }
            if mirror.vni != nic.vni {
                let (vni, other) = (nic.vni, mirror.vni);
                return Err(Refused::MirroredElsewhere { nic: id(), vni, by, other });
            }
        }
        let Some(target) = &nic.sniff_target else { return Ok(()) };
        match self.get(target.as_str()) {
            _ if target == nic.id.as_str() => Err(Refused::OfItself(id())),
            Some(found) if found.vni != nic.vni => Err(Refused::OtherNetwork {
                mirror: id(),
                vni: nic.vni,
                target: target.clone(),
                other: found.vni,
            }),
            Some(found) if found.sniff_target.is_some() => {
                Err(Refused::OfMirror { mirror: id(), target: target.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Adds `nic`, which was checked, in place of one with its id, and of its age.
    pub(crate) fn insert(&mut self, nic: Nic) {
        let order = self.order(&nic);
        self.insert_at(nic, order);
    }

    /// The same, with the place that it had elsewhere.
    pub(crate) fn insert_at(&mut self, nic: Nic, order: u64) {
        self.next_order = self.next_order.max(order + 1);
        self.remove(nic.id.as_str());
        if let Some(station) = station(&nic) {
            self.lines.entry(station).or_default().insert(order, nic.id.clone());
            for address in nic.ips.addresses() {
                self.by_address.entry((nic.vni, address)).or_default().insert(nic.id.clone());
            }
            for prefix in nic.prefixes.iter() {
                self.by_prefix.entry((nic.vni, prefix)).or_default().insert(nic.id.clone());
            }
        }
        if let Some(socket) = nic.kind.socket() {
            self.by_socket.insert(socket.clone(), nic.id.clone());
        }
        if let Some(target) = &nic.sniff_target {
            self.by_target.entry(target.clone()).or_default().insert(nic.id.clone());
        }
        self.nics.insert(nic.id.clone(), Entry { nic, order });
    }

    /// Takes a vnic out.
    pub(crate) fn remove(&mut self, id: &str) -> Option<Nic> {
        let Entry { nic, order } = self.nics.remove(id)?;
        if let Some(station) = station(&nic)
            && let Some(line) = self.lines.get_mut(&station)
        {
            line.remove(&order);
            if line.is_empty() {
                self.lines.remove(&station);
            }
            for at in nic.ips.addresses().map(|address| (nic.vni, address)) {
                let Some(ids) = self.by_address.get_mut(&at) else { continue };
                ids.remove(&nic.id);
                if ids.is_empty() {
                    self.by_address.remove(&at);
                }
            }
            for at in nic.prefixes.iter().map(|prefix| (nic.vni, prefix)) {
                let Some(ids) = self.by_prefix.get_mut(&at) else { continue };
                ids.remove(&nic.id);
                if ids.is_empty() {
                    self.by_prefix.remove(&at);
                }
            }
        }
        if let Some(socket) = nic.kind.socket() {
            self.by_socket.remove(socket);
        }
        if let Some(target) = &nic.sniff_target
            && let Some(mirrors) = self.by_target.get_mut(target)
        {
            mirrors.remove(&nic.id);
            if mirrors.is_empty() {
                self.by_target.remove(target);
            }
        }
        Some(nic)
    }
}

/// Checks what can be said of a vnic without knowing others.
fn check_alone(nic: &Nic) -> Result<(), Refused> {
    if !nic.prefixes.is_empty() && (nic.shared_ip || nic.sniff_target.is_some()) {
        let why = if nic.shared_ip { "shares its addresses with other hosts" } else { "mirrors" };
        return Err(Refused::NoPrefix { nic: nic.id.as_str().to_owned(), why });
    }
    if nic.prefixes.len() > MAX_PREFIXES {
        let owner = format!("nic {:?}", nic.id.as_str());
        return Err(Refused::TooMany { owner, what: "prefixes", most: MAX_PREFIXES });
    }
    let target = match &nic.kind {
        Kind::Bench(Bench::IcmpSender { mac, .. }) => Some(mac),
        _ => None,
    };
    let mut macs = [&nic.mac].into_iter().chain(target);
    if let Some(mac) = macs.find(|mac| is_reserved_mac(mac.octets())) {
        let (nic, mac) = (nic.id.as_str().to_owned(), mac.text().to_owned());
        return Err(Refused::ReservedMac { nic, mac });
    }
    if let Kind::Bench(bench) = &nic.kind {
        let own = nic.ips.addresses().next().ok_or(Refused::BenchWithoutAddress)?;
        match bench {
            Bench::IcmpSender { ip, .. } if ip.is_ipv4() != own.is_ipv4() => {
                return Err(Refused::BenchFamily { own, target: *ip });
            }
            _ => {}
        }
    }
    if nic.forwards && !nic.bypass_filtering {
        return Err(Refused::CannotForward(nic.id.as_str().to_owned()));
    }
    Ok(())
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
            prefixes: Default::default(),
            security_groups: Default::default(),
            ip_anti_spoof: false,
            bypass_filtering: bypass,
            forwards: false,
            shared_ip: false,
            router: false,
            limits: Default::default(),
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
        let mut vnics = Vnics::default();
        let sharing = |vnics: &Vnics| -> Vec<String> {
            vnics
                .sharing(&nic("x", SAME, 1, false))
                .into_iter()
                .map(|id| id.as_str().to_owned())
                .collect()
        };
        vnics.insert(nic("b", MAC, 1, false));
        vnics.insert(nic("a", SAME, 1, true));
        vnics.insert(nic("c", MAC, 2, true));
        assert_eq!(sharing(&vnics), ["b", "a"]);
        vnics.insert(nic("b", SAME, 1, true));
        assert_eq!(sharing(&vnics), ["b", "a"], "it is as old as before");
        vnics.remove("b");
        vnics.insert(nic("b", MAC, 1, false));
        assert_eq!(sharing(&vnics), ["a", "b"], "it is new");
        vnics.insert(nic("a", "42:00:00:00:00:bb", 1, false));
        vnics.insert(nic("a", MAC, 1, false));
        assert_eq!(sharing(&vnics), ["b", "a"], "it had another one meanwhile");
    }

    #[test]
    fn a_socket_leads_to_one_vnic() {
        let mut vnics = Vnics::default();
        vnics.insert(nic("a", MAC, 1, true));
        let mut client = nic("b", "42:00:00:00:00:bb", 1, true);
        let at = |path| SocketPath::new(Path::new(path)).unwrap();
        client.kind = Kind::VhostUser { role: Role::Client, socket: at("/run/b/qemu-vhost-a") };
        let expected = Refused::Socket { path: "/run/b/qemu-vhost-a".into(), owner: "a".into() };
        assert_eq!(vnics.check(&client), Err(expected));
        vnics.remove("a");
        assert_eq!(vnics.check(&client), Ok(()));
    }

    #[test]
    fn a_mirror_is_of_a_station_of_its_network() {
        let mirror = |id: &str, vni, target: &str| Nic {
            sniff_target: Some(target.to_owned()),
            ..nic(id, MAC, vni, false)
        };
        let mut vnics = Vnics::default();
        vnics.insert(nic("a", MAC, 1, false));
        assert_eq!(vnics.check(&mirror("m", 1, "a")), Ok(()), "whatever its address is");
        assert_eq!(vnics.check(&mirror("m", 2, "later")), Ok(()));
        assert!(matches!(vnics.check(&mirror("m", 2, "a")), Err(Refused::OtherNetwork { .. })));
        assert_eq!(vnics.check(&mirror("m", 1, "m")), Err(Refused::OfItself("m".into())));
        vnics.insert(mirror("m", 1, "a"));
        assert!(matches!(vnics.check(&mirror("n", 1, "m")), Err(Refused::OfMirror { .. })));
        assert!(matches!(vnics.check(&mirror("a", 1, "x")), Err(Refused::IsMirrored { .. })));
        vnics.remove("a");
        assert!(vnics.sharing(&nic("b", MAC, 1, false)).is_empty(), "the mirror has none");
        assert!(matches!(
            vnics.check(&nic("a", MAC, 7, false)),
            Err(Refused::MirroredElsewhere { .. })
        ));
        assert!(matches!(vnics.check(&mirror("a", 7, "x")), Err(Refused::IsMirrored { .. })));
        assert_eq!(vnics.check(&nic("a", MAC, 1, false)), Ok(()));
        assert_eq!(vnics.check(&mirror("m", 2, "b")), Ok(()), "it moves itself");
        vnics.insert(nic("a", MAC, 1, false));
        assert_eq!(vnics.mirrors_of("a").map(|nic| nic.id.as_str()).collect::<Vec<_>>(), ["m"]);
    }

    #[test]
    fn a_replaced_vnic_leaves_nothing_behind() {
        let mut vnics = Vnics::default();
        let ips = butterfly_model::IpSet::parse(["10.0.0.1"]).unwrap();
        vnics.insert(Nic { ips: ips.clone(), ..nic("a", MAC, 1, false) });
        vnics.insert(Nic { ips, ..nic("a", MAC, 2, false) });
        let having = |vni| vnics.with_address(Vni::new(vni).unwrap(), [10, 0, 0, 1].into());
        assert!(having(1).is_none() && having(2).is_some());
        assert!(vnics.sharing(&nic("b", MAC, 1, false)).is_empty());
        assert_eq!(vnics.sharing(&nic("b", MAC, 2, false)).len(), 1);
        assert_eq!(vnics.remove("a").unwrap().vni.number(), 2);
        assert_eq!(vnics.remove("a"), None);
        assert!(vnics.lines.is_empty() && vnics.by_socket.is_empty() && vnics.by_target.is_empty());
        assert!(vnics.by_address.is_empty());
    }
}
