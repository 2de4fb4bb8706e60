//! The MTU of the uplink, as `--nic-mtu` wants it.

use crate::config::tunnel::{MAX_MTU, NicMtu};
use butterfly_datapath::{TunnelSpec, UplinkSpec};
use butterfly_uplink::{kernel::Kernel, xdp};
use tracing::{info, warn};

/// Puts what is wanted into `spec`; an interface that has less is raised first. One that cannot be
/// is only complained about.
pub fn prepare(spec: &mut TunnelSpec, wanted: NicMtu) {
    spec.mtu = match (&spec.uplink, wanted) {
        (UplinkSpec::Xdp { interface, .. }, wanted) => {
            raise(interface, wanted);
            match wanted {
                NicMtu::Bytes(bytes) => Some(bytes),
                NicMtu::Max => None,
            }
        }
        (_, NicMtu::Bytes(bytes)) => Some(bytes),
        (_, NicMtu::Max) => Some(MAX_MTU),
    };
}

/// Least MTU that IPv6 needs of every link (RFC 8200, 5).
const LEAST: u32 = 1280;

/// Returns the trouble with an uplink that leaves VMs `inner` bytes of its `mtu`, if any.
pub fn too_small(mtu: u32, inner: u32) -> Option<String> {
    let missing = LEAST.checked_sub(inner).filter(|missing| *missing > 0)?;
    Some(format!(
        "the uplink's MTU of {mtu} leaves {inner} bytes to virtual machines, and IPv6 needs {LEAST}: raise it to {} (-m), or do without \
         IPv6 between virtual machines of different hosts",
        mtu + missing
    ))
}

fn raise(name: &str, wanted: NicMtu) {
    // The code that opens the uplink reports what is wrong with the interface.
    let Ok(mut kernel) = Kernel::open() else { return };
    let Ok(interface) = kernel.interface(name) else { return };
    let most = match wanted {
        NicMtu::Bytes(bytes) if bytes > xdp::MAX_MTU => {
            warn!("nic-mtu {bytes} is more than AF_XDP takes: {} it is for {name}", xdp::MAX_MTU);
            xdp::MAX_MTU
        }
        NicMtu::Bytes(bytes) => bytes,
        NicMtu::Max => xdp::MAX_MTU,
    };
    if interface.mtu >= most {
        return;
    }
    let mut refusal = None;
    let has = {
        let mut takes =
            |mtu| kernel.set_mtu(&interface, mtu).map_err(|error| refusal = Some(error)).is_ok();
        match wanted {
            NicMtu::Bytes(_) if takes(most) => most,
            NicMtu::Bytes(_) => interface.mtu,
            NicMtu::Max => largest(interface.mtu, most, takes),
        }
    };
    match refusal {
        Some(error) if has == interface.mtu => warn!("the MTU of {name} stays {has}: {error}"),
        _ => info!("the MTU of {name} was {}, and is {has} now", interface.mtu),
    }
}

/// The largest MTU up to `most` that is taken, or what it `has` if none is. The last that was taken
/// is the largest.
fn largest(has: u32, most: u32, mut takes: impl FnMut(u32) -> bool) -> u32 {
    if takes(most) {
        return most;
    }
    let (mut good, mut bad) = (has, most);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        if takes(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_that_is_taken_is_found_and_stays() {
        for limit in [1500, 1501, 2000, 3497, 3821, 3822, 9000] {
            let mut set = 1500;
            let mut tries = 0;
            let found = largest(1500, 3822, |mtu| {
                assert!(mtu > set, "it never goes back");
                tries += 1;
                if mtu <= limit {
                    set = mtu;
                }
                mtu <= limit
            });
            assert_eq!((found, set), (limit.min(3822), limit.min(3822)));
            assert!(tries <= 13, "{tries} tries");
        }
    }

    #[test]
    fn an_uplink_too_small_for_ipv6_inside_is_complained_about() {
        assert_eq!((too_small(1330, 1280), too_small(9000, 8950)), (None, None));
        for (mtu, inner, enough) in [(1329, 1279, 1330), (1280, 1230, 1330), (1280, 1210, 1350)] {
            let text = too_small(mtu, inner).unwrap();
            assert!(
                text.contains(&format!("MTU of {mtu} leaves {inner}"))
                    && text.contains(&format!("to {enough} ")),
                "{text}"
            );
        }
    }

    #[test]
    fn ports_of_our_own_get_what_is_asked_for() {
        let spec = |uplink| TunnelSpec {
            endpoint: "10.0.0.1".parse().unwrap(),
            prefix: None,
            uplink,
            peers: Vec::new(),
            gateways: Vec::new(),
            group6: "ff00::".parse().unwrap(),
            udp6_checksum: false,
            strict_peers: false,
            vlan: 0,
            mtu: None,
        };
        let port =
            || UplinkSpec::VhostUser { path: "/up".into(), role: butterfly_datapath::Role::Server };
        for uplink in [UplinkSpec::Tap { name: None }, port()] {
            let mut spec = spec(uplink);
            prepare(&mut spec, NicMtu::Bytes(9000));
            assert_eq!(spec.mtu, Some(9000));
            prepare(&mut spec, NicMtu::Max);
            assert_eq!(spec.mtu, Some(MAX_MTU));
        }
        // The interface is not there: the code that opens it says so.
        let mut spec = spec(UplinkSpec::Xdp { interface: "no such one".into(), queues: None });
        prepare(&mut spec, NicMtu::Bytes(9000));
        assert_eq!(spec.mtu, Some(9000));
        prepare(&mut spec, NicMtu::Max);
        assert_eq!(spec.mtu, None);
    }
}
