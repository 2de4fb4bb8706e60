//! The packet graph in the DOT language, as clients of the original know it.
//!
//! It shows the networks and their vnics, not how this switch is built: a brick per element of the
//! original's graph, west towards the wire, east towards the machines. Its root is the port that
//! leads out of the host; the VXLAN endpoint if there is none.

use butterfly_model::{Kind, Nic};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt::{self, Write},
    net::IpAddr,
};

/// Returns the graph of `nics` behind the VXLAN endpoint `ip` and the port `uplink`, if there is
/// one. The port comes with its kind and what it is on. `recorded` is the process that records the
/// traffic there, if any. Ends with a newline.
pub fn dot<'a>(
    ip: IpAddr,
    uplink: Option<(&str, &str)>,
    recorded: Option<u32>,
    nics: impl IntoIterator<Item = &'a Nic>,
) -> String {
    let mut graph = Graph::default();
    let endpoint = if ip.is_ipv4() { "vtep4" } else { "vtep6" };
    let port = uplink.map(|uplink| match uplink {
        ("tap", _) => graph.add("tap", "tap".into()),
        (_, interface) => graph.add("nic", format!("port-{interface}")),
    });
    let vtep = match port.map(|port| match recorded {
        Some(process) => graph.add_east_of(port, "print", format!("main-sniffer-{process}")),
        None => port,
    }) {
        Some(west) => graph.add_east_of(west, endpoint, "vxlan".into()),
        None => graph.add(endpoint, "vxlan".into()),
    };
    let mut networks: BTreeMap<u32, Vec<&Nic>> = BTreeMap::new();
    for nic in nics {
        networks.entry(nic.vni.number()).or_default().push(nic);
    }
    for (vni, nics) in networks {
        let mut west = vtep;
        if nics.len() > 1 {
            west = graph.add_east_of(vtep, "switch", format!("switch-{vni}"));
        }
        for nic in nics {
            graph.add_branch(west, nic);
        }
    }
    graph.print(port.unwrap_or(vtep))
}

struct Brick {
    kind: &'static str,
    name: String,
    west: Option<usize>,
    east: Vec<usize>,
}

#[derive(Default)]
struct Graph {
    bricks: Vec<Brick>,
}

impl Graph {
    fn add(&mut self, kind: &'static str, name: String) -> usize {
        self.bricks.push(Brick { kind, name, west: None, east: Vec::new() });
        self.bricks.len() - 1
    }

    fn add_east_of(&mut self, west: usize, kind: &'static str, name: String) -> usize {
        let brick = self.add(kind, name);
        self.bricks[brick].west = Some(west);
        self.bricks[west].east.push(brick);
        brick
    }

    fn add_branch(&mut self, mut west: usize, nic: &Nic) {
        let id = &nic.id;
        if !nic.bypass_filtering {
            west = self.add_east_of(west, "firewall", format!("firewall-{id}"));
            west = self.add_east_of(west, "antispoof", format!("antispoof-{id}"));
        }
        if nic.packet_trace {
            west = self.add_east_of(west, "print", format!("sniffer-{id}"));
        }
        match &nic.kind {
            Kind::VhostUser { .. } => self.add_east_of(west, "vhost", format!("vhost-{id}")),
            Kind::Tap { .. } => self.add_east_of(west, "tap", id.to_string()),
            Kind::Bench(butterfly_model::Bench::IcmpSender { .. }) => {
                self.add_east_of(west, "rxtx", format!("bench-snd-{id}"))
            }
            Kind::Bench(butterfly_model::Bench::IcmpReceiver) => {
                self.add_east_of(west, "rxtx", format!("bench-rcv-{id}"))
            }
        };
    }

    /// Breadth first from `root`, each brick followed by its edges, west before east.
    fn print(&self, root: usize) -> String {
        let mut out =
            String::from("strict graph G {\n  rankdir=LR\n  nodesep=1\n  node [shape=record];\n");
        let mut queue = VecDeque::from([root]);
        while let Some(brick) = queue.pop_front().map(|index| &self.bricks[index]) {
            // Writing to a string does not fail. The entity is a backslash: the label has two
            // lines.
            let _ = writeln!(
                out,
                "  {brick} [ label=\"{{ <west> | {}&#92;n{} |<east> }}\"];",
                brick.kind,
                label(&brick.name)
            );
            if let Some(west) = brick.west {
                let _ = writeln!(out, "  {brick}:west -- {}:east", self.bricks[west]);
            }
            // The original's ports have one side, which it calls west.
            let (side, other) = if matches!(brick.kind, "nic" | "tap") {
                ("west", "east")
            } else {
                ("east", "west")
            };
            for &east in &brick.east {
                let _ = writeln!(out, "  {brick}:{side} -- {}:{other}", self.bricks[east]);
            }
            queue.extend(&brick.east);
        }
        out.push_str("}\n");
        out
    }
}

/// The identifier of the node.
impl fmt::Display for Brick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}:{}\"", self.kind, self.name.replace('\\', "\\\\").replace('"', "\\\""))
    }
}

/// `name` inside the label of a record.
fn label(name: &str) -> String {
    let mut label = String::new();
    for character in name.chars() {
        match character {
            '&' => label.push_str("&amp;"),
            '"' | '\\' | '{' | '}' | '|' | '<' | '>' => label.extend(['\\', character]),
            other => label.push(other),
        }
    }
    label
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfly_model::{Bench, Mac, NicId, Role, SocketDir, Vni};

    fn nic(id: &str, vni: u32, bypass: bool) -> Nic {
        let id = NicId::new(id).unwrap();
        Nic {
            kind: Kind::vhost_user(Role::Server, &id, None, &SocketDir::new("/".into())).unwrap(),
            id,
            mac: Mac::parse("42:42:42:42:42:01").unwrap(),
            vni: Vni::new(vni).unwrap(),
            ips: Default::default(),
            security_groups: Default::default(),
            prefixes: Default::default(),
            ip_anti_spoof: false,
            bypass_filtering: bypass,
            forwards: false,
            shared_ip: false,
            limits: Default::default(),
            router: false,
            sniff_target: None,
            packet_trace: false,
            packet_trace_path: None,
            trace_options: Default::default(),
        }
    }

    const HEAD: &str = "strict graph G {\n  rankdir=LR\n  nodesep=1\n  node [shape=record];\n";

    #[test]
    fn without_vnics_there_is_the_endpoint() {
        for (ip, kind) in [("192.0.2.1", "vtep4"), ("2001:db8::1", "vtep6")] {
            let expected = format!(
                "{HEAD}  \"{kind}:vxlan\" [ label=\"{{ <west> | {kind}&#92;nvxlan |<east> }}\"];\n}}\n"
            );
            assert_eq!(dot(ip.parse().unwrap(), None, None, []), expected);
        }
    }

    #[test]
    fn the_uplink_is_the_root() {
        for (kind, interface, port) in [
            ("tap", "bfly0", "tap:tap"),
            ("af_xdp", "eth0", "nic:port-eth0"),
            ("vhost-user", "/up", "nic:port-/up"),
        ] {
            let graph = dot("192.0.2.1".parse().unwrap(), Some((kind, interface)), None, []);
            let node = port.replace(':', "&#92;n");
            let expected = format!(
                r#"{HEAD}  "{port}" [ label="{{ <west> | {node} |<east> }}"];
  "{port}":west -- "vtep4:vxlan":east
  "vtep4:vxlan" [ label="{{ <west> | vtep4&#92;nvxlan |<east> }}"];
  "vtep4:vxlan":west -- "{port}":east
}}
"#
            );
            assert_eq!(graph, expected, "{kind}");
        }
    }

    #[test]
    fn one_vnic_hangs_on_the_endpoint_and_two_on_a_switch() {
        let nics = [nic("one", 7, true), nic("a", 42, false), nic("b", 42, true)];
        let expected = format!(
            r#"{HEAD}  "vtep4:vxlan" [ label="{{ <west> | vtep4&#92;nvxlan |<east> }}"];
  "vtep4:vxlan":east -- "vhost:vhost-one":west
  "vtep4:vxlan":east -- "switch:switch-42":west
  "vhost:vhost-one" [ label="{{ <west> | vhost&#92;nvhost-one |<east> }}"];
  "vhost:vhost-one":west -- "vtep4:vxlan":east
  "switch:switch-42" [ label="{{ <west> | switch&#92;nswitch-42 |<east> }}"];
  "switch:switch-42":west -- "vtep4:vxlan":east
  "switch:switch-42":east -- "firewall:firewall-a":west
  "switch:switch-42":east -- "vhost:vhost-b":west
  "firewall:firewall-a" [ label="{{ <west> | firewall&#92;nfirewall-a |<east> }}"];
  "firewall:firewall-a":west -- "switch:switch-42":east
  "firewall:firewall-a":east -- "antispoof:antispoof-a":west
  "vhost:vhost-b" [ label="{{ <west> | vhost&#92;nvhost-b |<east> }}"];
  "vhost:vhost-b":west -- "switch:switch-42":east
  "antispoof:antispoof-a" [ label="{{ <west> | antispoof&#92;nantispoof-a |<east> }}"];
  "antispoof:antispoof-a":west -- "firewall:firewall-a":east
  "antispoof:antispoof-a":east -- "vhost:vhost-a":west
  "vhost:vhost-a" [ label="{{ <west> | vhost&#92;nvhost-a |<east> }}"];
  "vhost:vhost-a":west -- "antispoof:antispoof-a":east
}}
"#
        );
        assert_eq!(dot("192.0.2.1".parse().unwrap(), None, None, &nics), expected);
    }

    /// The guest behind a vnic is a brick of its own kind, filtered or not.
    #[test]
    fn guests_of_our_own_have_their_names() {
        let sender = Bench::IcmpSender {
            ip: "10.0.0.2".parse().unwrap(),
            mac: Mac::parse("42:42:42:42:42:02").unwrap(),
        };
        for (kind, brick) in [
            (Kind::Tap { netns: None }, "tap:n"),
            (Kind::Bench(sender), "rxtx:bench-snd-n"),
            (Kind::Bench(Bench::IcmpReceiver), "rxtx:bench-rcv-n"),
        ] {
            for (bypass, west) in [(true, "vtep4:vxlan"), (false, "antispoof:antispoof-n")] {
                let graph = dot(
                    "192.0.2.1".parse().unwrap(),
                    None,
                    None,
                    [&Nic { kind: kind.clone(), ..nic("n", 7, bypass) }],
                );
                for row in [
                    format!(
                        r#"  "{brick}" [ label="{{ <west> | {} |<east> }}"];"#,
                        brick.replace(':', "&#92;n")
                    ),
                    format!(r#"  "{west}":east -- "{brick}":west"#),
                    format!(r#"  "{brick}":west -- "{west}":east"#),
                ] {
                    assert_eq!(
                        graph.lines().filter(|found| **found == row).count(),
                        1,
                        "{row} in {graph}"
                    );
                }
            }
        }
    }

    /// A recorder stands between uplink and endpoint, and next to the machine.
    #[test]
    fn what_is_recorded_is_a_brick() {
        let nics = [
            Nic { packet_trace: true, ..nic("a", 42, false) },
            Nic { packet_trace: true, ..nic("b", 43, true) },
        ];
        let graph = dot("192.0.2.1".parse().unwrap(), Some(("af_xdp", "eth0")), Some(77), &nics);
        let rows: Vec<_> = graph.lines().map(str::trim).collect();
        for row in [
            r#""print:main-sniffer-77" [ label="{ <west> | print&#92;nmain-sniffer-77 |<east> }"];"#,
            r#""nic:port-eth0":west -- "print:main-sniffer-77":east"#,
            r#""print:main-sniffer-77":west -- "nic:port-eth0":east"#,
            r#""print:main-sniffer-77":east -- "vtep4:vxlan":west"#,
            r#""vtep4:vxlan":west -- "print:main-sniffer-77":east"#,
            r#""print:sniffer-a" [ label="{ <west> | print&#92;nsniffer-a |<east> }"];"#,
            r#""antispoof:antispoof-a":east -- "print:sniffer-a":west"#,
            r#""print:sniffer-a":west -- "antispoof:antispoof-a":east"#,
            r#""print:sniffer-a":east -- "vhost:vhost-a":west"#,
            r#""vhost:vhost-a":west -- "print:sniffer-a":east"#,
            r#""vtep4:vxlan":east -- "print:sniffer-b":west"#,
            r#""print:sniffer-b":east -- "vhost:vhost-b":west"#,
        ] {
            assert_eq!(rows.iter().filter(|found| **found == row).count(), 1, "{row} in {graph}");
        }
        // Without a port there is nothing to record.
        assert!(!dot("192.0.2.1".parse().unwrap(), None, Some(77), []).contains("sniffer"));
    }

    #[test]
    fn no_name_breaks_out_of_its_node() {
        let graph =
            dot("192.0.2.1".parse().unwrap(), None, None, &[nic(r#"a"];x\{|}<>&"#, 1, true)]);
        assert!(
            graph.contains(
                r#"  "vhost:vhost-a\"];x\\{|}<>&" [ label="{ <west> | vhost&#92;nvhost-a\"];x\\\{\|\}\<\>&amp; |<east> }"];"#
            ),
            "{graph}"
        );
    }
}
