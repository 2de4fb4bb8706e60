//! Adding or removing a member of a group of 100,000, which 1,000 vnics use, takes little time.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use butterfly_api::proto::{Request, Rule, Sg};
use butterfly_tests::{
    Daemon, Nic,
    frames::mac,
    groups::{member_add, member_del, rule, rule_add, rule_del},
    net::{Net, VNI, filtered, ip4, open, v4},
};
use protobuf::MessageField;

const MEMBERS: u32 = 100_000;
const VNICS: u32 = 1000;

/// Returns the `n`th member, of either family. No vnic has these addresses.
fn member(n: u32) -> String {
    if n.is_multiple_of(2) {
        format!("172.{}.{}.{}", 16 + (n >> 16), n >> 8 & 255, n & 255)
    } else {
        format!("fd01::{:x}:{:x}", n >> 16, n & 0xffff)
    }
}

/// Returns the median time of 20 requests with their answers.
fn median(net: &Net, mut request: impl FnMut(u32) -> Request) -> Duration {
    let mut times: Vec<Duration> = (0..20)
        .map(|n| {
            let request = request(n);
            let begin = Instant::now();
            net.ask(request);
            begin.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn one_member_among_many() {
    let Some(mut net) = Net::new(&[open("a", 1), filtered("b", 2, "g")]) else { return };
    let crowd = Sg {
        id: Some("crowd".to_owned()),
        member: (0..MEMBERS).map(member).collect(),
        rule: Vec::<Rule>::new(),
        ..Sg::default()
    };
    net.ask(Request { sg_add: MessageField::some(crowd), ..Request::default() });
    net.group("g", &["in udp 53-53 @crowd", "in tcp 80-80 @crowd", "out any - 0.0.0.0/0"], &[]);
    for n in 0..VNICS {
        let ip = format!("10.1.{}.{}", n >> 8, n & 255);
        net.ask(Daemon::nic_add(
            &Nic::filtered(&format!("n{n}"), mac(1000 + n), VNI).ips(&[&ip]).groups(&["g"]),
        ));
    }
    let probe = v4(1, 2).udp(9, 53, b"?");
    let refused = |net: &mut Net| {
        net.station("a").send(&probe);
        assert!(net.received("a").is_empty(), "a is no member");
    };
    let passes = |net: &mut Net| {
        net.station("a").send(&probe);
        assert_eq!(net.received("a").into_keys().collect::<Vec<_>>(), ["b"], "a is a member");
    };
    refused(&mut net);
    let added = median(&net, |n| member_add("crowd", &format!("192.0.2.{n}")));
    net.ask(member_add("crowd", &ip4(1)));
    passes(&mut net);
    let removed = median(&net, |n| member_del("crowd", &format!("192.0.2.{n}")));
    passes(&mut net);
    net.ask(member_del("crowd", &ip4(1)));
    refused(&mut net);
    let ruled = median(&net, |n| rule_add("g", &format!("in tcp {n}-{n} @crowd")));
    let unruled = median(&net, |n| rule_del("g", &format!("in tcp {n}-{n} @crowd")));
    println!(
        "a member is added in {added:?}, removed in {removed:?}; a rule in {ruled:?} and {unruled:?}"
    );
    assert_eq!(net.host.daemon().rule_stats("g").len(), 3);
    assert!(
        net.host
            .daemon()
            .rule_stats("g")
            .iter()
            .any(|(listed, n)| *listed == rule("in udp 53-53 @crowd") && *n > 0)
    );
    assert!(
        added < Duration::from_millis(10) && removed < Duration::from_millis(10),
        "{added:?} and {removed:?}"
    );
}
