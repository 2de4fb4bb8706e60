//! Arguments that the original passed on to DPDK, and their effect where there are no ports of
//! DPDK.

use crate::config::tunnel::interface;

/// Arguments of the original without `--dpdk-args`.
pub const DEFAULT_ARGS: &str = "-c1 -n1 --socket-mem 64 --no-shconf --huge-unlink";

/// Result of `--dpdk-args` and `--dpdk-port`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dpdk {
    /// The way to other hosts, if one is named.
    pub device: Option<Device>,
    /// Arguments that mean nothing here.
    pub without_effect: Vec<String>,
}

/// A device that the uplink stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name of the port in DPDK.
    pub name: String,
    /// The network interface behind it. Without one it leads nowhere: to itself, or to nothing.
    pub interface: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    Value,
    /// A value after an equals sign only.
    Perhaps,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Means {
    Device,
    Card,
    Help,
    Nothing,
}

/// Arguments known to DPDK 19.02 (the original's) and 22.11 (Debian's), without those for their own
/// tests.
#[rustfmt::skip]
const ARGUMENTS: &[(&[&str], Takes, Means)] = &[
    (&["--vdev"], Takes::Value, Means::Device),
    (&["-a", "--allow", "-w", "--pci-whitelist"], Takes::Value, Means::Card),
    (&["-h", "--help"], Takes::Nothing, Means::Help),
    (&["-c"], Takes::Value, Means::Nothing),
    (&["-l"], Takes::Value, Means::Nothing),
    (&["--lcores"], Takes::Value, Means::Nothing),
    (&["--main-lcore", "--master-lcore"], Takes::Value, Means::Nothing),
    (&["-s"], Takes::Value, Means::Nothing),
    (&["-S"], Takes::Value, Means::Nothing),
    (&["-n"], Takes::Value, Means::Nothing),
    (&["-r"], Takes::Value, Means::Nothing),
    (&["-m"], Takes::Value, Means::Nothing),
    (&["--socket-mem"], Takes::Value, Means::Nothing),
    (&["--socket-limit"], Takes::Value, Means::Nothing),
    (&["--huge-dir"], Takes::Value, Means::Nothing),
    (&["--huge-unlink"], Takes::Perhaps, Means::Nothing),
    (&["--huge-worker-stack"], Takes::Perhaps, Means::Nothing),
    (&["--no-huge"], Takes::Nothing, Means::Nothing),
    (&["--in-memory"], Takes::Nothing, Means::Nothing),
    (&["--legacy-mem"], Takes::Nothing, Means::Nothing),
    (&["--single-file-segments"], Takes::Nothing, Means::Nothing),
    (&["--match-allocations"], Takes::Nothing, Means::Nothing),
    (&["--mbuf-pool-ops-name"], Takes::Value, Means::Nothing),
    (&["--base-virtaddr"], Takes::Value, Means::Nothing),
    (&["--iova-mode"], Takes::Value, Means::Nothing),
    (&["--file-prefix"], Takes::Value, Means::Nothing),
    (&["--proc-type"], Takes::Value, Means::Nothing),
    (&["--no-shconf"], Takes::Nothing, Means::Nothing),
    (&["--no-hpet"], Takes::Nothing, Means::Nothing),
    (&["--vmware-tsc-map"], Takes::Nothing, Means::Nothing),
    (&["--force-max-simd-bitwidth"], Takes::Value, Means::Nothing),
    (&["-d"], Takes::Value, Means::Nothing),
    (&["-b", "--block", "--pci-blacklist"], Takes::Value, Means::Nothing),
    (&["--no-pci"], Takes::Nothing, Means::Nothing),
    (&["--create-uio-dev"], Takes::Nothing, Means::Nothing),
    (&["--vfio-intr"], Takes::Value, Means::Nothing),
    (&["--vfio-vf-token"], Takes::Value, Means::Nothing),
    (&["--log-level"], Takes::Value, Means::Nothing),
    (&["--syslog"], Takes::Value, Means::Nothing),
    (&["--telemetry"], Takes::Nothing, Means::Nothing),
    (&["--no-telemetry"], Takes::Nothing, Means::Nothing),
    (&["--trace"], Takes::Value, Means::Nothing),
    (&["--trace-dir"], Takes::Value, Means::Nothing),
    (&["--trace-bufsz"], Takes::Value, Means::Nothing),
    (&["--trace-mode"], Takes::Value, Means::Nothing),
    (&["-v"], Takes::Nothing, Means::Nothing),
];

/// Returns the text of `--dpdk-help`.
pub fn help() -> String {
    let names: Vec<_> = ARGUMENTS
        .iter()
        .filter(|(.., means)| *means == Means::Nothing)
        .flat_map(|(names, ..)| names.iter().map(|name| format!("    {name}\n")))
        .collect();
    format!(
        "There are no ports of DPDK in butterflyd. Of --dpdk-args (dpdk-args in the configuration file) it understands:\n\n\
         Devices on a network interface X, which is served as --uplink X is:\n\
         \x20   --vdev=eth_pcap0,iface=X       or net_pcap0\n\
         \x20   --vdev=eth_af_packet0,iface=X  or net_af_packet0\n\
         Devices that lead to no other host, served as --uplink none is:\n\
         \x20   --vdev=eth_ring0, net_ring0, eth_null0, net_null0\n\
         Of several, --dpdk-port N is the one that is used, from 0 in the order of the arguments.\n\n\
         Accepted, without effect:\n{}\n\
         Refused:\n\
         \x20   -a, --allow, -w, --pci-whitelist: give the card to its kernel driver, and the name of its interface to --uplink\n\
         \x20   any other --vdev, and what DPDK does not know\n",
        names.concat()
    )
}

/// Reads both options; or everything that is wrong with them.
pub fn read(arguments: Option<&str>, port: Option<&str>) -> Result<Dpdk, Vec<String>> {
    let mut found = Found::default();
    let arguments = arguments.unwrap_or(DEFAULT_ARGS);
    match shlex::split(arguments) {
        Some(words) => found.arguments(words),
        None => found
            .refuse(arguments, "a quotation mark has no end, or a backslash has nothing behind it"),
    }
    let port = match port.unwrap_or("0").parse::<usize>() {
        Ok(port) => port,
        Err(_) => {
            found.problems.push(format!(
                "dpdk-port {:?} is refused: it is a number from 0",
                port.unwrap_or_default()
            ));
            0
        }
    };
    let Found { mut devices, mut without_effect, problems } = found;
    if !problems.is_empty() {
        return Err(problems);
    }
    // What everybody has is not worth a word.
    if arguments == DEFAULT_ARGS {
        without_effect.clear();
    }
    match devices.len() {
        // As the original, which then has no port, and makes a TAP device.
        0 if port == 0 => Ok(Dpdk { device: None, without_effect }),
        0 => Err(vec![format!(
            "dpdk-port {port} is refused: dpdk-args name no device; remove it, or name one as in --vdev=eth_pcap0,iface=eth0"
        )]),
        count if port >= count => {
            let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
            Err(vec![format!(
                "dpdk-port {port} is refused: dpdk-args name {count}, from 0: {}",
                names.join(", ")
            )])
        }
        _ => Ok(Dpdk { device: Some(devices.swap_remove(port)), without_effect }),
    }
}

/// Makes a device the uplink, unless that is another one.
pub fn serve(device: &Device, uplink: &mut Option<String>) -> Result<(), String> {
    let Device { name, interface } = device;
    let Some(interface) = interface else {
        return match uplink.as_deref() {
            None | Some("none") => {
                *uplink = Some("none".into());
                Ok(())
            }
            Some(given) => Err(format!(
                "uplink {given:?} is refused: dpdk-args name a device that leads to no other host ({name}), and there is one uplink: remove one of them"
            )),
        };
    };
    let meant = format!("if:{interface}");
    match uplink {
        None => {
            *uplink = Some(meant);
            Ok(())
        }
        // These two words are no interfaces.
        Some(given)
            if *given == meant
                || (given == interface && !matches!(given.as_str(), "tap" | "none")) =>
        {
            Ok(())
        }
        Some(given) => Err(format!(
            "uplink {given:?} is refused: dpdk-args name the interface {interface:?} ({name}), and there is one uplink: remove one of them"
        )),
    }
}

#[derive(Default)]
struct Found {
    devices: Vec<Device>,
    without_effect: Vec<String>,
    problems: Vec<String>,
}

impl Found {
    fn refuse(&mut self, what: &str, why: &str) {
        self.problems.push(format!("dpdk-args: {what} is refused: {why}"));
    }

    /// Reads arguments as getopt_long does.
    fn arguments(&mut self, words: Vec<String>) {
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let (name, attached) = split(&word);
            let known = ARGUMENTS.iter().find(|(names, ..)| names.contains(&name));
            let Some((_, takes, means)) = known else {
                self.refuse(
                    &word,
                    "DPDK has no such argument; butterflyd --dpdk-help lists what is understood",
                );
                continue;
            };
            let value = match takes {
                Takes::Value => attached.map(str::to_owned).or_else(|| words.next()),
                Takes::Perhaps | Takes::Nothing => attached.map(str::to_owned),
            };
            match (takes, means, value) {
                (Takes::Value, _, None) => self.refuse(&word, "it needs a value"),
                (Takes::Nothing, _, Some(_)) => self.refuse(&word, "it takes no value"),
                (_, Means::Device, Some(value)) => match self.device(&value) {
                    Ok(device) => self.devices.push(device),
                    Err(why) => self.refuse(&format!("--vdev {value}"), &why),
                },
                (_, Means::Card, Some(value)) => self.refuse(
                    &format!("{name} {value}"),
                    "cards are not driven by DPDK here; give this one to its kernel driver, and the name of its interface to --uplink",
                ),
                (_, Means::Help, _) => self.refuse(&word, "write butterflyd --dpdk-help"),
                (_, _, Some(value)) => self.without_effect.push(format!("{name} {value}")),
                (_, _, None) => self.without_effect.push(word),
            }
        }
    }

    fn device(&mut self, text: &str) -> Result<Device, String> {
        let (name, rest) = text.split_once(',').unwrap_or((text, ""));
        // DPDK looks only how the name of a device begins.
        let driver =
            name.strip_prefix("net_").or_else(|| name.strip_prefix("eth_")).unwrap_or(name);
        let is = |prefix: &str| driver.starts_with(prefix);
        if is("ring") || is("null") {
            if !rest.is_empty() {
                self.without_effect.push(format!("{rest} of {name}"));
            }
            return Ok(Device { name: name.to_owned(), interface: None });
        }
        if !(is("pcap") || is("af_packet")) {
            return Err(match () {
                () if is("tap") => "it is no port here; a TAP device is --uplink tap:NAME",
                () if is("af_xdp") => "it is no port here; an interface by AF_XDP is --uplink NAME",
                () if is("vhost") => "it is no port here; a vhost-user port on a socket of ours is --uplink vhost-user:PATH",
                () if is("virtio_user") => "it is no port here; one on somebody else's socket is --uplink vhost-user-client:PATH",
                () => {
                    "there is no port for it here; use --uplink with an interface, tap:NAME or vhost-user:PATH, \
                     or a device eth_pcap or net_af_packet with iface=X"
                }
            }
            .into());
        }
        let mut served: Option<&str> = None;
        for part in rest.split(',').filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            match key {
                "iface" | "rx_iface" | "rx_iface_in" | "tx_iface" => match served.replace(value) {
                    Some(other) if other != value => {
                        return Err(format!(
                            "it names {other:?} and {value:?}: an uplink is one interface, and both ways"
                        ));
                    }
                    _ => {}
                },
                "rx_pcap" | "tx_pcap" | "infinite_rx" => {
                    return Err(format!("{key}: files of packets are no ports here"));
                }
                "phy_mac" | "qpairs" | "blocksz" | "framesz" | "framecnt" | "qdisc_bypass"
                | "fanout_mode" => {
                    self.without_effect.push(format!("{part} of {name}"));
                }
                _ => return Err(format!("{key:?} is no argument of such a device")),
            }
        }
        let served = served.ok_or("it names no interface: add iface=X")?;
        Ok(Device { name: name.to_owned(), interface: Some(interface(served)?) })
    }
}

/// The name of an argument, and what is written together with it.
fn split(word: &str) -> (&str, Option<&str>) {
    if word.starts_with("--") {
        return word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    }
    // A dash and a letter.
    match word.char_indices().nth(2) {
        Some((at, _)) if word.starts_with('-') => (&word[..at], Some(&word[at..])),
        _ => (word, None),
    }
}

#[cfg(test)]
mod tests;
