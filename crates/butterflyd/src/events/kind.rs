//! The kinds of events, declared once. docs/events.md has them all, which a test sees to.

use std::time::Duration;

/// Rate at which an operator wants to read of one kind about one vnic, or of none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Events at once.
    pub burst: u32,
    /// Then one in so long.
    pub every: Duration,
}

/// Events that a guest, other hosts or any client of the API can cause.
const USUAL: Limit = Limit { burst: 10, every: Duration::from_secs(1) };
/// Events that an operator decided, and wants to find again.
const CHANGE: Limit = Limit { burst: 100, every: Duration::from_millis(100) };

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal, $limit:ident;)+) => {
        /// Sort of an event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Kind {
            /// All there are.
            #[cfg_attr(not(test), allow(dead_code))]
            pub const ALL: &[Kind] = &[$(Kind::$name),+];

            /// Its name in every output.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Kind::$name => $text,)+
                }
            }

            /// Returns its meaning, for the operator.
            #[cfg_attr(not(test), allow(dead_code))]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Kind::$name => concat!($($doc),+).trim_ascii(),)+
                }
            }

            /// Returns the rate at which it may be reported.
            pub const fn limit(self) -> Limit {
                match self {
                    $(Kind::$name => $limit,)+
                }
            }
        }
    };
}

kinds! {
    /// The daemon started: its version, its API, its sockets.
    DaemonStarted = "daemon-started", CHANGE;
    /// The daemon took over from one that ended: how that one ended, what goes on, and what does
    /// not.
    DaemonResumed = "daemon-resumed", CHANGE;
    /// An upgrade began: the program that is to go on proves itself.
    UpgradeBegan = "upgrade-began", CHANGE;
    /// An upgrade failed, and why. The program before it goes on.
    UpgradeFailed = "upgrade-failed", CHANGE;
    /// An upgrade was committed: what is kept has another layout, and the release before cannot go
    /// on with it any more.
    UpgradeCommitted = "upgrade-committed", CHANGE;
    /// A change is in force and would not outlast the daemon, and why.
    NotKept = "not-kept", USUAL;
    /// The API or the metrics cannot be reached where they should be, and why; or can be after all.
    NotListening = "not-listening", USUAL;
    /// A client or a signal asked the daemon to stop.
    DaemonStopping = "daemon-stopping", CHANGE;
    /// A vnic was added.
    NicAdded = "nic-added", CHANGE;
    /// A vnic was changed while its VM stayed attached: what was changed from what to what.
    NicUpdated = "nic-updated", CHANGE;
    /// A vnic was made anew because of its type, MAC, VNI or path; its VM was cut off and may
    /// attach again.
    NicRemade = "nic-remade", CHANGE;
    /// A vnic was deleted.
    NicRemoved = "nic-removed", CHANGE;
    /// A vnic waits for its MAC address, which one that was declared before has: it gets nothing
    /// and may send nothing until then.
    NicWaits = "nic-waits", CHANGE;
    /// A vnic that waited has its MAC address.
    NicTookOver = "nic-took-over", CHANGE;
    /// A vnic was exported for a VM that leaves for another host: which one, and how many
    /// sessions.
    NicExported = "nic-exported", CHANGE;
    /// A vnic took over what it was on another host: how many sessions, and how many were refused.
    NicImported = "nic-imported", CHANGE;
    /// The vnic, or the uplink, is to be recorded and is not, as its file cannot be written, and
    /// why.
    NotRecorded = "not-recorded", USUAL;
    /// The vnic's rings are held: workers ended the daemon twice within ten minutes while they
    /// touched them. Why, and for how long.
    NicHeld = "nic-held", CHANGE;
    /// The vnic's rings are served again, and why.
    NicReleased = "nic-released", CHANGE;
    /// Frames from the uplink are not looked at: workers ended the daemon three times within ten
    /// minutes by them. Why, and for how long.
    UplinkHeld = "uplink-held", CHANGE;
    /// Frames from the uplink are looked at again.
    UplinkReleased = "uplink-released", CHANGE;
    /// The daemon did not come as far as to run for a minute, three times in a row, and leaves out
    /// what may be the cause: the store is not read, and changes are refused. Or that is over.
    DaemonDegraded = "daemon-degraded", CHANGE;
    /// A VM attached to the vnic's socket.
    GuestAttached = "guest-attached", USUAL;
    /// The VM left or was detached, and why.
    GuestDetached = "guest-detached", USUAL;
    /// The guest's driver, or the VM's firmware before it, took virtio features: which, and which
    /// it refused.
    FeaturesNegotiated = "features-negotiated", USUAL;
    /// The guest's driver uses both its queues: frames flow.
    QueuesStarted = "queues-started", USUAL;
    /// The guest's driver stopped a queue, as when it is unloaded, restarted or the VM migrates.
    QueuesStopped = "queues-stopped", USUAL;
    /// A queue that was started cannot run, or nothing that the VM writes is to be seen, and why.
    QueueTrouble = "queue-trouble", USUAL;
    /// The guest put something impossible into a queue, which rests until its driver sets it up
    /// anew.
    QueueBroken = "queue-broken", USUAL;
    /// Interrupting the VM takes long, as too much waits for its interrupts: a thread of their own
    /// sends them until another one attaches.
    SlowInterrupts = "slow-interrupts", USUAL;
    /// The switch had to touch more of the VM's memory first than there is a budget for: the vnic
    /// rests now and then.
    FirstTouches = "first-touches", USUAL;
    /// The switch had to sleep for a page of the VM's memory, which is in swap or where a hole is
    /// punched: the vnic rests twenty times as long.
    MemoryStalled = "memory-stalled", USUAL;
    /// A security group was made, or given other content as a whole.
    SgDeclared = "sg-declared", CHANGE;
    /// A security group was deleted.
    SgRemoved = "sg-removed", CHANGE;
    /// A rule was added to a security group.
    SgRuleAdded = "sg-rule-added", CHANGE;
    /// A rule was taken from a security group: sessions that it admitted are decided again.
    SgRuleRemoved = "sg-rule-removed", CHANGE;
    /// A member was added to a security group.
    SgMemberAdded = "sg-member-added", CHANGE;
    /// A member was taken from a security group.
    SgMemberRemoved = "sg-member-removed", CHANGE;
    /// A group of the vnic lost its last OUTBOUND rule, and no other of its groups has one: the
    /// vnic may send anything.
    EgressOpened = "egress-opened", CHANGE;
    /// Sessions were ended by request.
    SessionsFlushed = "sessions-flushed", CHANGE;
    /// The log level was changed.
    LogLevel = "log-level", CHANGE;
    /// The configuration was read again: which settings changed, and which wait for the next start.
    ConfigReloaded = "config-reloaded", CHANGE;
    /// The configuration was read again and is wrong, and why. Nothing has changed.
    ConfigRefused = "config-refused", CHANGE;
    /// The store was read, and what it has is declared.
    StoreOpened = "store-opened", CHANGE;
    /// The store cannot be used, so that changes are refused, and why; or it can be used again.
    StoreTrouble = "store-trouble", USUAL;
    /// The store was damaged. It has another name now, and an empty one its place.
    StoreSetAside = "store-set-aside", CHANGE;
    /// A request was refused, and why. Nothing has changed by it unless the text says so.
    RequestFailed = "request-failed", USUAL;
    /// The connection of a client was ended because it took more of the API than its part: which
    /// client, and what it did.
    ClientCut = "client-cut", USUAL;
    /// The connection of a client that never came as far as a request was ended: it speaks
    /// something else, another version of ZeroMQ's protocol, or nothing.
    ClientRefused = "client-refused", USUAL;
    /// The table of sessions is more than 80 % full.
    SessionsNearlyFull = "sessions-nearly-full", USUAL;
    /// The table of sessions is less than 70 % full again.
    SessionsRoom = "sessions-room", USUAL;
    /// New sessions were refused because the table is full.
    SessionsFull = "sessions-full", USUAL;
    /// New sessions were refused because the vnic, or its network, has its share of the table.
    SessionShare = "session-share", USUAL;
    /// Source addresses were not learnt because the network, the vnic or the table has as many as
    /// it may.
    LearnRefused = "learn-refused", USUAL;
    /// The table of other hosts is full: new ones are not learnt.
    PeersFull = "peers-full", USUAL;
    /// The table of other hosts has room again.
    PeersRoom = "peers-room", USUAL;
    /// The VM sent frames with another source MAC address than its own; they were dropped.
    SpoofedMac = "spoofed-mac", USUAL;
    /// The VM sent ARP for an address that is not its own; it was dropped.
    SpoofedArp = "spoofed-arp", USUAL;
    /// The VM sent IP packets with a source address that is not its own; they were dropped.
    SpoofedIp = "spoofed-ip", USUAL;
    /// The VM sent neighbour or listener discovery that is invalid or speaks for others; it was
    /// dropped.
    BadDiscovery = "bad-discovery", USUAL;
    /// The vnic, or another host if no vnic is named, sent frames with the MAC address of a
    /// filtered vnic of this host; they were dropped.
    MacClaimed = "mac-claimed", USUAL;
    /// The vnic, or another host if no vnic is named, sent packets from the address of a filtered
    /// vnic of this host, or said that it has that address; they were dropped.
    IpClaimed = "ip-claimed", USUAL;
    /// The guest made descriptor chains available to send that break the rules; their frames were
    /// dropped.
    BadChain = "bad-chain", USUAL;
    /// The guest made buffers available to receive that break the rules; frames for them were
    /// dropped.
    RxBadChain = "rx-bad-chain", USUAL;
    /// Another host was named by an operator.
    PeerNamed = "peer-named", CHANGE;
    /// Another host is not named any more.
    PeerUnnamed = "peer-unnamed", CHANGE;
    /// A network was declared, or has other subnets or another MTU: all of them.
    NetworkDeclared = "network-declared", CHANGE;
    /// A network is not declared any more.
    NetworkRemoved = "network-removed", CHANGE;
    /// A router was declared, attached or detached, or its routes changed: the networks that it
    /// joins, and its first 16 routes.
    RouterDeclared = "router-declared", CHANGE;
    /// A router was deleted.
    RouterRemoved = "router-removed", CHANGE;
    /// A neighbour was declared, or has another MAC address or host: both of them.
    NeighbourDeclared = "neighbour-declared", CHANGE;
    /// A neighbour was deleted.
    NeighbourRemoved = "neighbour-removed", CHANGE;
    /// An external was declared, or has another wire or other addresses: all of them.
    ExternalDeclared = "external-declared", CHANGE;
    /// An external was deleted.
    ExternalRemoved = "external-removed", CHANGE;
    /// An external that was not in effect is: nothing is missing any more.
    ExternalUp = "external-up", USUAL;
    /// An external that is declared is not in effect, and why: nothing goes by it.
    ExternalDown = "external-down", USUAL;
    /// Translations of a router came at an external, maybe in place of others: these, and those
    /// that went.
    NatDeclared = "nat-declared", CHANGE;
    /// Translations of a router at an external were deleted.
    NatRemoved = "nat-removed", CHANGE;
    /// Another host that no option names was heard for the first time.
    PeerLearnt = "peer-learnt", USUAL;
    /// Another host that no option names was silent for too long.
    PeerForgotten = "peer-forgotten", USUAL;
    /// The link address of the next hop to another host was found.
    NextHopFound = "next-hop-found", USUAL;
    /// Frames to another host go to another link address than before.
    NextHopMoved = "next-hop-moved", USUAL;
    /// The next hop to another host does not answer any more: frames for it are dropped.
    NextHopLost = "next-hop-lost", USUAL;
    /// The uplink carries frames.
    UplinkUp = "uplink-up", USUAL;
    /// The uplink does not carry frames, and why.
    UplinkDown = "uplink-down", USUAL;
    /// The largest packet on the uplink is another one: VMs need another host_mtu=, interfaces in
    /// network namespaces another mtu.
    UplinkMtu = "uplink-mtu", USUAL;
}

impl Kind {
    /// The kind that tells of drops for this reason: it has its name.
    pub fn of_drops(reason: &str) -> Option<Kind> {
        Kind::ALL.iter().copied().find(|kind| kind.name() == reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_kind_has_a_name_of_its_own_and_a_meaning() {
        let names: BTreeSet<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), Kind::ALL.len());
        for kind in Kind::ALL {
            assert!(kind.meaning().ends_with('.'), "{kind:?}: {}", kind.meaning());
        }
    }

    #[test]
    fn every_watched_reason_has_its_kind() {
        for info in butterfly_datapath::watched_drops() {
            assert!(Kind::of_drops(info.name).is_some(), "{}", info.name);
        }
    }

    /// The page for operators lists the kinds that there are, in this order, with these words.
    #[test]
    fn the_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/events.md");
        let page = std::fs::read_to_string(path).expect(path);
        let (_, kinds) = page.split_once("\n## Kinds\n").expect("the section of the kinds");
        let rows: Vec<String> =
            kinds.lines().filter(|line| line.starts_with("| `")).map(str::to_owned).collect();
        let expected: Vec<String> = Kind::ALL
            .iter()
            .map(|kind| format!("| `{}` | {} |", kind.name(), kind.meaning()))
            .collect();
        assert_eq!(
            rows,
            expected,
            "the table in docs/events.md should be:\n{}",
            expected.join("\n")
        );
    }
}
