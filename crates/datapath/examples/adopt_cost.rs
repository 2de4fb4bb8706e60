//! Time that a start takes to adopt the table of a process that died: `adopt_cost [SESSIONS]`.

use std::time::Instant;

use butterfly_datapath::{Mac, SessionConfig, VnicPolicy, harness::Host};
use butterfly_packet::build;
use butterfly_vhost::net::NetHeader;

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let sessions = std::env::args().nth(1).map_or(Ok(100_000), |text| text.parse::<u32>())?;
    let name = |of: &str| format!("butterfly-adopt-cost-{of}-{}", std::process::id());
    let settings = |of: &str| SessionConfig {
        file: Some(name(of)),
        adopt: true,
        share: 100,
        rate: u32::MAX,
        ..SessionConfig::default()
    };
    let mut host = Host::with_sessions(settings("first"))?;
    let macs = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
    for (id, mac, bypass) in [("a", macs[0], true), ("b", macs[1], false)] {
        let last = mac.0[5];
        let ips = vec![[10, 0, 0, last].into()];
        host.vnic(id, mac, 1, &VnicPolicy { bypass, ips, ..VnicPolicy::default() })?;
    }
    for n in 0..sessions {
        let ip = build::ethernet(macs[1], macs[0]).ipv4([10, 0, 0, 2], [10, 0, 0, 1]);
        host.send("b", &ip.udp(n as u16, (n >> 16) as u16 + 1000, b""), NetHeader::default())?;
        host.received()?;
    }
    let left = std::path::Path::new("/dev/shm").join(name("second"));
    std::fs::copy(host.session_file().ok_or("no file")?, left)?;
    let begun = Instant::now();
    let second = Host::with_sessions(settings("second"))?;
    println!("started in {} us", begun.elapsed().as_micros());
    second.former_tables().iter().for_each(|former| println!("{former}"));
    Ok(())
}
