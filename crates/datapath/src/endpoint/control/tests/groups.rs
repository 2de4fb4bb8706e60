//! Membership: reports, queries, and messages that are not believed.

use butterfly_packet::{igmp, ipv6, mld, protocol};

use super::*;

/// An IGMP query as its sender would build it.
pub(super) fn query4(to: [u8; 4], code: u8, group: [u8; 4], more: &[u8]) -> Vec<u8> {
    query4_by(to, code, group, more, 1)
}

fn query4_by(to: [u8; 4], code: u8, group: [u8; 4], more: &[u8], ttl: u8) -> Vec<u8> {
    let mut message = [&igmp::message(igmp::QUERY, code, group.into())[..], more].concat();
    message[2..4].fill(0);
    let sum = butterfly_packet::checksum::Sum::of(&message).checksum();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let link = build::ethernet(B, Mac::of_group_v4(to.into()));
    link.ipv4([10, 1, 0, 250], to)
        .ttl(ttl)
        .options(&igmp::ROUTER_ALERT)
        .payload(protocol::IGMP, &message)
}

/// An MLD query as its sender would build it.
pub(super) fn query6(to: &str, code: u16, group: &str, more: &[u8]) -> Vec<u8> {
    query6_by(
        to,
        code,
        group,
        more,
        |ip| ip.extension(protocol::HOP_BY_HOP, &mld::ROUTER_ALERT),
        "fe80::b",
    )
}

fn query6_by(
    to: &str,
    code: u16,
    group: &str,
    more: &[u8],
    with: impl Fn(build::Ip) -> build::Ip,
    source: &str,
) -> Vec<u8> {
    let to: Ipv6Addr = to.parse().unwrap();
    let body = [&group.parse::<Ipv6Addr>().unwrap().octets()[..], more].concat();
    let ip = build::ethernet(B, Mac::of_group_v6(to))
        .ipv6(source.parse::<Ipv6Addr>().unwrap(), to)
        .ttl(1);
    with(ip).icmp(130, 0, u32::from(code) << 16, &body)
}

/// Queries, and the milliseconds that each leaves.
type Queries = Vec<(Vec<u8>, u64)>;

/// A host of either family that joined the group of VNI 42 long ago, its report, and queries of all
/// kinds.
fn members() -> [(Host, Vec<u8>, Queries); 2] {
    let (all, group) = ([224, 0, 0, 1], [230, 0, 0, 42]);
    let v3 = [2, 125, 0, 0];
    let queries4 = vec![
        (query4(all, 0, [0; 4], &[]), 10_000),
        (query4(all, 100, [0; 4], &[]), 10_000),
        (query4(all, 1, [0; 4], &[]), 1000),
        (query4(all, 0, [0; 4], &v3), 1000),
        (query4(all, 30, [0; 4], &v3), 3000),
        (query4(group, 10, group, &[]), 1000),
        (query4(group, 0, group, &v3), 0),
    ];
    let queries6 = vec![
        (query6("ff02::1", 10_000, "::", &[]), 10_000),
        (query6("ff02::1", 0, "::", &[]), 1000),
        (query6("ff02::1", 3000, "::", &v3), 3000),
        (query6("ff05::2a", 1000, "ff05::2a", &[]), 1000),
        (query6("ff05::2a", 0, "ff05::2a", &v3), 0),
    ];
    let report4 = igmp::report(A, [10, 1, 0, 1].into(), group.into());
    let report6 = mld::report(A, "ff05::2a".parse().unwrap());
    [(false, report4, queries4), (true, report6, queries6)].map(|(v6, report, queries)| {
        let mut host = Host::new(v6, false);
        host.call(|control, now, out| control.join(42, now, out));
        host.pass(30_000);
        (host, report, queries)
    })
}

#[test]
fn a_join_is_reported_three_times_in_ten_seconds_and_every_minute() {
    for v6 in [false, true] {
        let mut host = Host::new(v6, false);
        let out = host.call(|control, now, out| assert!(control.join(42, now, out)));
        let report = &out.frames[0];
        assert_eq!(
            report[..6],
            if v6 { [0x33, 0x33, 0, 0, 0, 42] } else { [1, 0, 0x5e, 0, 0, 42] }
        );
        assert!(host.call(|control, now, out| control.join(42, now, out)).frames.is_empty());
        let said = host.pass(300_000);
        assert!(said.iter().all(|(_, out)| out.frames.as_slice() == std::slice::from_ref(report)));
        let times: Vec<u64> = said.iter().map(|(at, _)| *at).collect();
        assert!(times[0] >= 1000 && times[1] <= 10_000, "{times:?}");
        assert!(
            times[1..].windows(2).all(|pair| (55_000..=60_000).contains(&(pair[1] - pair[0]))),
            "{times:?}"
        );
        assert_eq!(times.len(), 2 + 5);
    }
}

#[test]
fn leaving_says_so_and_ends_it() {
    for v6 in [false, true] {
        let mut host = Host::new(v6, false);
        host.call(|control, now, out| control.join(1337, now, out));
        let out = host.call(|control, _, out| control.leave(1337, out));
        let expected = if v6 {
            mld::done(A, "ff05::539".parse().unwrap())
        } else {
            igmp::leave(A, [10, 1, 0, 1].into(), [230, 0, 5, 57].into())
        };
        assert_eq!(out.frames, [expected]);
        assert!(host.pass(200_000).is_empty() && host.control.groups(host.now).is_empty());
        assert!(host.call(|control, _, out| control.leave(1337, out)).frames.is_empty());
    }
}

#[test]
fn a_link_that_returned_hears_of_groups_at_once_and_again() {
    for (mut host, report, _) in members() {
        // Far from a repetition of its own.
        while host.pass(1000).is_empty() {}
        host.call(|control, now, _| control.returned(now));
        let said = host.pass(12_000);
        assert!(said.iter().all(|(_, out)| out.frames == [report.clone()]), "{said:?}");
        let times: Vec<u64> = said.iter().map(|(at, _)| *at).collect();
        let [first, second, third] = times[..] else { panic!("{times:?}") };
        assert!(
            first <= 500
                && (1000..=5000).contains(&(second - first))
                && (1000..=5000).contains(&(third - second)),
            "{times:?}"
        );
        // However often it comes and goes.
        let said = (0..100).map(|_| {
            host.call(|control, now, _| control.returned(now));
            host.pass(10).len()
        });
        assert!(said.sum::<usize>() <= 3);
    }
}

#[test]
fn queries_are_answered_in_time_and_once() {
    for (mut host, report, queries) in members() {
        for (query, max) in &queries {
            let mut times = Vec::new();
            for _ in 0..40 {
                // Far from a repetition of its own, that cannot be told from an answer.
                while host.pass(1000).is_empty() {}
                host.pass(5000);
                assert!(host.hears(query).frames.is_empty());
                let said = host.pass(15_000);
                assert_eq!(said.len(), 1);
                assert_eq!(said[0].1.frames, std::slice::from_ref(&report));
                times.push(said[0].0);
            }
            assert!(times.iter().all(|time| time <= max), "{times:?} beyond {max}");
            times.sort_unstable();
            times.dedup();
            assert!(*max == 0 || times.len() > 20, "not random: {times:?}");
        }
        assert_eq!(host.count(Count::Query), 40 * queries.len() as u64);
    }
}

#[test]
fn a_shorter_query_is_not_made_to_wait_for_a_longer_one() {
    for (mut host, _, queries) in members() {
        let (long, short) = (&queries[0].0, &queries[queries.len() - 2].0);
        for _ in 0..40 {
            while host.pass(1000).is_empty() {}
            host.pass(5000);
            host.hears(long);
            host.hears(short);
            let said = host.pass(15_000);
            assert!(said.len() == 1 && said[0].0 <= 1000, "{said:?}");
        }
    }
}

#[test]
fn another_member_spares_an_answer_but_no_repetition() {
    for (mut host, report, queries) in members() {
        let other = match host.control.link.endpoint {
            IpAddr::V4(_) => igmp::report(B, [10, 1, 0, 2].into(), [230, 0, 0, 42].into()),
            IpAddr::V6(_) => mld::report(B, "ff05::2a".parse().unwrap()),
        };
        while host.pass(1000).is_empty() {}
        host.hears(&queries[0].0);
        host.refuses(&other, Count::Suppressed, "spares an answer");
        host.refuses(&other, Count::Ignored, "nothing to spare");
        assert!(host.pass(50_000).is_empty());
        let said = host.pass(10_000);
        assert!(said.len() == 1 && said[0].1.frames == [report]);
    }
}

#[test]
fn what_is_not_a_valid_query_is_not_answered() {
    let mut hosts = members();
    let (all, group) = ([224, 0, 0, 1], [230, 0, 0, 42]);
    let mut corrupt = query4(all, 100, [0; 4], &[]);
    *corrupt.last_mut().unwrap() ^= 1;
    let mut corrupt6 = query6("ff02::1", 100, "::", &[]);
    *corrupt6.last_mut().unwrap() ^= 1;
    let rsvp = |ip: build::Ip| ip.extension(protocol::HOP_BY_HOP, &[5, 2, 0, 1, 1, 0]);
    let routed = |ip: build::Ip| ip.ttl(2).extension(protocol::HOP_BY_HOP, &mld::ROUTER_ALERT);
    let right = |ip: build::Ip| ip.extension(protocol::HOP_BY_HOP, &mld::ROUTER_ALERT);
    for (v6, frame, count, what) in [
        (0, corrupt, Count::BadChecksum, "checksum"),
        (0, query4_by(all, 100, [0; 4], &[], 2), Count::NotLocal, "TTL"),
        (
            0,
            query4([224, 0, 0, 5], 100, [0; 4], &[]),
            Count::Misdirected,
            "a general query to others",
        ),
        (
            0,
            query4([224, 0, 0, 5], 100, group, &[]),
            Count::Misdirected,
            "a query for a group to others",
        ),
        (0, query4(all, 100, [0; 4], &[0; 2]), Count::Malformed, "a length that no version has"),
        (
            0,
            igmp::report(B, [10, 1, 0, 2].into(), group.into())[..40].to_vec(),
            Count::Malformed,
            "cut short",
        ),
        (0, igmp::leave(B, [10, 1, 0, 2].into(), group.into()), Count::Ignored, "a leave"),
        (1, corrupt6, Count::BadChecksum, "checksum"),
        (
            1,
            query6_by("ff02::1", 100, "::", &[], |ip| ip, "fe80::b"),
            Count::NotLocal,
            "no Router Alert",
        ),
        (
            1,
            query6_by("ff02::1", 100, "::", &[], rsvp, "fe80::b"),
            Count::NotLocal,
            "an alert for RSVP",
        ),
        (1, query6_by("ff02::1", 100, "::", &[], routed, "fe80::b"), Count::NotLocal, "hop limit"),
        (1, query6_by("ff02::1", 100, "::", &[], right, "fd00::b"), Count::NotLocal, "source"),
        (1, query6("ff02::2", 100, "::", &[]), Count::Misdirected, "a general query to others"),
        (
            1,
            query6("ff02::1", 100, "::", &[0; 2]),
            Count::Malformed,
            "a length that no version has",
        ),
        (1, mld::done(B, "ff05::2a".parse().unwrap()), Count::Ignored, "a done"),
    ] {
        let (host, ..) = &mut hosts[v6];
        while host.pass(1000).is_empty() {}
        host.refuses(&frame, count, what);
        assert!(host.pass(50_000).is_empty(), "{what}");
    }
    // A report of a group that the host is not in.
    let (host, ..) = &mut hosts[0];
    while host.pass(1000).is_empty() {}
    host.hears(&query4([230, 0, 0, 43], 10, [230, 0, 0, 43], &[]));
    assert!(host.pass(50_000).is_empty());
}

#[test]
fn a_flood_of_queries_is_answered_at_a_bounded_pace() {
    for (mut host, _, queries) in members() {
        for vni in 100..200 {
            host.call(|control, now, out| control.join(vni, now, out));
        }
        host.pass(20_000);
        let mut said = 0;
        for n in 0..1000 {
            host.hears(&queries[n % queries.len()].0);
            said += host.pass(10).iter().map(|(_, out)| out.frames.len()).sum::<usize>();
        }
        // 10 s, two a second, and the repetitions.
        assert!(said <= 101 * 22, "{said}");
        assert!(said >= 101 * 5, "{said}");
    }
}

#[test]
fn an_ipv6_endpoint_that_answers_is_in_its_own_group() {
    let host = Host::new(true, true);
    let groups = host.control.groups(host.now);
    assert_eq!(groups.len(), 1);
    assert_eq!(
        (groups[0].address, groups[0].vni),
        (ipv6::solicited_node("fd00::1".parse().unwrap()).into(), None)
    );
    assert!(
        Host::new(true, false).control.groups(0).is_empty()
            && Host::new(false, true).control.groups(0).is_empty()
    );
}

#[test]
fn one_group_too_many_is_refused_and_the_others_stay() {
    let mut host = Host::new(false, false);
    for vni in 0..crate::endpoint::control::groups::MAX_GROUPS as u32 {
        host.call(|control, now, out| assert!(control.join(vni, now, out)));
    }
    let out = host.call(|control, now, out| assert!(!control.join(1 << 20, now, out)));
    assert_eq!((out.frames.len(), host.count(Count::GroupsFull)), (0, 1));
    assert_eq!(host.control.groups(host.now).len(), crate::endpoint::control::groups::MAX_GROUPS);
    host.call(|control, _, out| control.leave(7, out));
    host.call(|control, now, out| assert!(control.join(1 << 20, now, out)));
    let row = host.control.groups(host.now).pop().unwrap();
    assert_eq!((row.address, row.vni, row.reported), (ip("230.16.0.0"), Some(1 << 20), 0));
}
