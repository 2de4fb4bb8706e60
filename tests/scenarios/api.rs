//! Requests to the API of a whole daemon, while guests talk: changes in place, changes that
//! recreate a vnic, and refusals.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use butterfly_api::{
    REVISION,
    client::Client,
    proto::{self, Messages, NicUpdateReq, Request, error::Code},
};
use butterfly_guest_driver::Vm;
use butterfly_tests::{
    Daemon, Host, Nic, PATIENCE, Station, eventually,
    frames::{Choices, mac, numbered},
    station::usual,
    traffic::{exchange, streams},
};
use protobuf::MessageField;

fn declare(nic: &Nic, change: impl FnOnce(&mut proto::Nic)) -> Request {
    let mut request = Daemon::nic_add(nic);
    change(request.nic_add.as_mut().unwrap());
    request
}

fn details(daemon: &Daemon, id: &str) -> Vec<proto::Nic> {
    daemon
        .ask(Request { nic_details: Some(id.to_owned()), ..Request::default() })
        .unwrap()
        .nic_details
}

fn attach(host: &Host, nic: &Nic) -> Station {
    let path = host.dir().join(format!("qemu-vhost-{}", nic.id));
    let vm = Vm::connect(&path, &usual(), PATIENCE).unwrap();
    Station { nic: nic.clone(), path, listener: None, vm, config: usual() }
}

/// A repeated declaration changes nothing; addresses, groups and flags change in place. The guest
/// stays and loses no frame.
#[test]
fn changes_in_place() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let nic = Nic::bypass("a", mac(1), 1).ips(&["10.0.0.1", "fd00::1"]);
    let mut a = host.station(&nic, &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    let mut both = streams(&a, &b);
    let lens = [60, 1514, 9000, 64];
    let path = a.path.to_str().unwrap().to_owned();
    let same = |request: Request| assert_eq!(daemon.ask(request).unwrap().nic_add.path(), path);
    for _ in 0..20 {
        same(Daemon::nic_add(&nic));
        exchange(&mut a, &mut b, &mut both, &lens);
    }
    // Explicit defaults, other spellings, duplicates, and a path, which this type ignores.
    same(declare(&nic, |nic| nic.set_type(proto::nic::Type::VHOST_USER_SERVER)));
    same(declare(&nic, |nic| nic.packet_trace = Some(false)));
    same(declare(&nic, |nic| nic.ip_anti_spoof = Some(false)));
    same(declare(&nic, |nic| nic.path = Some("/somewhere/else".into())));
    same(declare(&nic, |nic| {
        nic.ip = vec!["10.0.0.1".into(), "FD00:0::1".into(), "10.0.0.1".into()]
    }));
    assert_eq!(details(daemon, "a")[0].ip, ["10.0.0.1", "fd00::1"]);
    exchange(&mut a, &mut b, &mut both, &lens);
    // Changes in place.
    same(declare(&nic, |nic| nic.ip = vec!["10.0.0.9".into()]));
    same(declare(&nic, |nic| nic.security_group = vec!["web".into(), "db".into()]));
    same(declare(&nic, |nic| nic.ip_anti_spoof = Some(true)));
    exchange(&mut a, &mut b, &mut both, &lens);
    let update = |change: fn(&mut NicUpdateReq)| {
        let mut update = NicUpdateReq { id: Some("a".into()), ..NicUpdateReq::default() };
        change(&mut update);
        daemon.ask(Request { nic_update: MessageField::some(update), ..Request::default() })
    };
    update(|_| {}).unwrap();
    update(|update| update.ip = vec!["10.1.0.1".into(), "10.1.0.2".into()]).unwrap();
    update(|update| update.security_group = vec!["x".into()]).unwrap();
    update(|update| update.ip_anti_spoof = Some(false)).unwrap();
    let shown = details(daemon, "a").remove(0);
    assert_eq!(
        (shown.ip.len(), shown.security_group.as_slice(), shown.ip_anti_spoof()),
        (2, &["x".to_owned()][..], false)
    );
    update(|update| update.ip = vec![String::new()]).unwrap();
    update(|update| update.security_group = vec![String::new()]).unwrap();
    assert_eq!(
        (details(daemon, "a")[0].ip.len(), details(daemon, "a")[0].security_group.len()),
        (0, 0)
    );
    exchange(&mut a, &mut b, &mut both, &lens);
    // The filter closes and opens under the guest.
    same(declare(&nic, |nic| nic.bypass_filtering = None));
    let ping = butterfly_packet::build::ethernet(mac(2), mac(1))
        .ipv4([10, 0, 0, 2], [10, 0, 0, 1])
        .ping(1, 1, b"x");
    b.send(&ping);
    host.settle(&mut [&mut b]);
    assert_eq!((a.pending().len(), host.show("a").drops("ingress-denied")), (0, 1));
    same(Daemon::nic_add(&nic));
    b.send(&ping);
    a.expect(&ping);
    exchange(&mut a, &mut b, &mut both, &lens);
    assert_eq!((host.show("a").attach_count, host.show("b").attach_count), (1, 1));
    assert_eq!(host.show("a").last_detach, None);
}

/// Another type, MAC, network or path makes another vnic: the daemon cuts off the guest, and the
/// counters start anew.
#[test]
fn changes_that_recreate() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let elsewhere = tempfile::tempdir().unwrap();
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    let nic = Nic::bypass("a", mac(1), 1);
    host.add(&nic).unwrap();
    let client = nic.clone().client();
    let changes = [
        Nic { mac: mac(3), ..nic.clone() },
        Nic { vni: 2, ..nic.clone() },
        nic.clone(),
        client.clone(),
        Nic { path: Some(elsewhere.path().join("socket")), ..client.clone() },
        client,
        nic.clone(),
    ];
    for change in changes {
        let before =
            daemon.ask(Request { nic_show: Some("a".into()), ..Request::default() }).unwrap();
        let before = before.nic_show;
        let guest = (before.role() == "server").then(|| {
            let mut old = Nic { vni: before.vni(), ..nic.clone() };
            old.mac = before.mac().parse().unwrap();
            let mut guest = attach(&host, &old);
            guest.send(&numbered(old.mac, mac(2), 1, 1, 60));
            host.settle(&mut [&mut guest]);
            guest
        });
        println!("{change:?}");
        host.add(&change).unwrap();
        if let Some(guest) = guest {
            assert!(guest.vm.connection.wait_closed(PATIENCE), "the guest is cut");
            assert_eq!(guest.path.exists(), !change.client, "the socket is ours no more");
        }
        let show = host.show("a");
        assert_eq!((show.received.0, show.attach_count, show.attached), (0, 0, false));
        assert_eq!(show.role, if change.client { "client" } else { "server" });
        let shown = details(daemon, "a").remove(0);
        assert_eq!((shown.mac(), shown.vni()), (change.mac.to_string().as_str(), change.vni));
        if let Some(path) = &change.path {
            assert_eq!(shown.path(), path.to_str().unwrap());
        }
    }
    let mut a = attach(&host, &nic);
    b.pending();
    let mut both = streams(&a, &b);
    exchange(&mut a, &mut b, &mut both, &[60, 1514]);
}

/// A refusal has a reason and changes nothing, not even for the guest.
#[test]
fn what_is_refused_changes_nothing() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let nic = Nic::bypass("a", mac(1), 1).ips(&["10.0.0.1"]);
    let mut a = host.station(&nic, &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    host.add(&Nic::filtered("filtered", mac(9), 1)).unwrap();
    host.add(&Nic::filtered("far", mac(1), 7)).unwrap();
    let mut both = streams(&a, &b);
    exchange(&mut a, &mut b, &mut both, &[60, 1514, 9000]);
    let everything = details(daemon, "");
    let mut refuse = |request: Request, words: &[&str]| {
        let why = daemon.ask(request.clone()).expect_err(&format!("{request:?}"));
        for word in words {
            assert!(why.contains(word), "{why:?} does not say {word:?}");
        }
        assert_eq!(details(daemon, ""), everything, "after: {why}");
        exchange(&mut a, &mut b, &mut both, &[60, 9000]);
    };
    let other = |change: fn(&mut proto::Nic)| declare(&nic, change);
    refuse(other(|nic| nic.vni = Some(1 << 24)), &["Bad NIC format", "16777215"]);
    refuse(other(|nic| nic.mac = Some("02:b0:00:00:00:0g".into())), &["Bad NIC format"]);
    refuse(other(|nic| nic.ip = vec!["10.0.0.256".into()]), &["Bad NIC format", "10.0.0.256"]);
    refuse(other(|nic| nic.set_type(proto::nic::Type::BENCH)), &["Internal error", "btype"]);
    let long = format!("/tmp/{}", "x".repeat(103));
    let to_path = |path: &str| {
        let path = path.to_owned();
        declare(&nic, move |nic| {
            nic.set_type(proto::nic::Type::VHOST_USER_CLIENT);
            nic.path = Some(path);
        })
    };
    refuse(to_path(&long), &["107"]);
    refuse(to_path("/tmp/with\0nul"), &["Bad NIC format"]);
    refuse(to_path(&format!("{}/qemu-vhost-b", host.dir().display())), &["\"b\""]);
    for id in ["", "with/slash", "../a", "with\0nul", &"x".repeat(300)] {
        refuse(
            declare(&nic, |nic| {
                (nic.id, nic.mac) = (Some(id.into()), Some("02:00:00:00:00:77".into()))
            }),
            &["Bad NIC format"],
        );
    }
    let update = |id: &str, change: fn(&mut NicUpdateReq)| {
        let mut update = NicUpdateReq { id: Some(id.into()), ..NicUpdateReq::default() };
        change(&mut update);
        Request { nic_update: MessageField::some(update), ..Request::default() }
    };
    refuse(update("nobody", |_| {}), &["NIC does not exist with id nobody"]);
    refuse(
        update("a", |update| update.ip = vec!["10.0.0.1".into(), String::new()]),
        &["Bad Nic update format"],
    );
    refuse(update("a", |update| update.ip = vec!["10.0.0.0/8".into()]), &["Bad Nic update format"]);
    exchange(&mut a, &mut b, &mut both, &[60, 9000]);
    assert_eq!((host.show("a").attach_count, host.show("b").attach_count), (1, 1));
    for (request, words) in [
        (
            Request { nic_details: Some("nobody".into()), ..Request::default() },
            "NIC: nobody not found",
        ),
        (
            Request { nic_stats: Some("nobody".into()), ..Request::default() },
            "NIC does not exist with id nobody",
        ),
        (Request { nic_show: Some("nobody".into()), ..Request::default() }, "nobody"),
        (
            Request {
                sg_add: MessageField::some(proto::Sg {
                    id: Some("g".into()),
                    member: vec!["10.0.0.1".into(), "10.0.0.0/8".into()],
                    ..proto::Sg::default()
                }),
                ..Request::default()
            },
            "Bad Security Group format",
        ),
    ] {
        let why = daemon.ask(request).unwrap_err();
        assert!(why.contains(words), "{why}");
    }
    for request in [
        Request { nic_del: Some("nobody".into()), ..Request::default() },
        Request { sg_list: Some(true), ..Request::default() },
        Request { sg_details: Some(String::new()), ..Request::default() },
    ] {
        let response = daemon.ask(request).unwrap();
        assert!(response.sg_list.is_empty() && response.sg_details.is_empty());
    }
}

/// An id may be as long as the path of its socket allows.
#[test]
fn ids_become_file_names() {
    let Some(host) = Host::process() else { return };
    let prefix = format!("{}/qemu-vhost-", host.dir().display()).len();
    let longest = "i".repeat(107 - prefix);
    for (n, id) in
        ["plain", "with space", "ünïcode", "-dash", "a.b", &longest].into_iter().enumerate()
    {
        let nic = Nic::bypass(id, mac(n as u32 + 1), 1);
        let path = host.add(&nic).unwrap();
        assert_eq!(path.to_str().unwrap(), format!("{}/qemu-vhost-{id}", host.dir().display()));
        drop(attach(&host, &nic));
    }
    let why = host.add(&Nic::bypass(&"i".repeat(108 - prefix), mac(99), 1)).unwrap_err();
    assert!(why.contains("107") || why.contains("108"), "{why}");
}

/// If the socket's path is taken, the change is refused and the old vnic stays.
#[test]
fn a_path_that_cannot_be_had() {
    let Some(host) = Host::process() else { return };
    let nic = Nic::bypass("a", mac(1), 1);
    std::fs::create_dir(host.dir().join("qemu-vhost-a")).unwrap();
    let why = host.add(&nic).unwrap_err();
    assert!(why.contains("qemu-vhost-a"), "{why}");
    assert_eq!(host.ids(), [] as [&str; 0]);
    std::fs::remove_dir(host.dir().join("qemu-vhost-a")).unwrap();
    // A stale socket without a listener is replaced.
    drop(std::os::unix::net::UnixListener::bind(host.dir().join("qemu-vhost-a")).unwrap());
    let mut a = host.station(&nic, &usual());
    // Now a client, then a server again, where another process listens by then.
    let client = nic.clone().client();
    host.add(&client).unwrap();
    let _squatter =
        std::os::unix::net::UnixListener::bind(host.dir().join("qemu-vhost-a")).unwrap();
    let why = host.add(&nic).unwrap_err();
    assert!(why.contains("listens"), "{why}");
    assert_eq!(host.show("a").role, "client", "it is what it was");
    assert_eq!(a.pending().len(), 0);
}

/// The daemon answers several clients at once within milliseconds, while guests talk and vnics are
/// added and removed.
#[test]
fn answers_come_at_once() {
    let Some(host) = Host::process() else { return };
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    let mut both = streams(&a, &b);
    let done = AtomicBool::new(false);
    let mut times = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3u32)
            .map(|n| {
                let (daemon, host) = (host.daemon(), &host);
                scope.spawn(move || {
                    let client = Client::connect(daemon.endpoint(), Some(PATIENCE)).unwrap();
                    let ask = |request: Request| {
                        let message = proto::MessageV0 {
                            request: MessageField::some(request),
                            ..Default::default()
                        };
                        let message = proto::Message {
                            revision: Some(REVISION),
                            message_0: MessageField::some(message),
                            ..Default::default()
                        };
                        let begin = Instant::now();
                        let reply = client
                            .call(&Messages { messages: vec![message], ..Default::default() })
                            .unwrap();
                        let took = begin.elapsed();
                        assert!(reply.messages[0].message_0.response.status.status(), "{reply}");
                        took
                    };
                    let mut times = Vec::new();
                    for round in 0..50 {
                        let nic =
                            Nic::bypass(&format!("c{n}-{round}"), mac(1000 + 100 * n + round), 5);
                        times.push(ask(Daemon::nic_add(&nic)));
                        times.push(ask(Request {
                            nic_show: Some("a".into()),
                            ..Request::default()
                        }));
                        times.push(ask(Request {
                            nic_details: Some(String::new()),
                            ..Request::default()
                        }));
                        times.push(ask(Request { nic_del: Some(nic.id), ..Request::default() }));
                    }
                    let _ = host;
                    times
                })
            })
            .collect();
        let talk = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                exchange(&mut a, &mut b, &mut both, &[1514; 500]);
            }
        });
        let times: Vec<Duration> =
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        talk.join().unwrap();
        times
    });
    times.sort();
    let median = times[times.len() / 2];
    assert!(median < Duration::from_millis(20), "median {median:?}, longest {:?}", times.last());
    assert_eq!(host.ids(), ["a", "b"]);
}

/// Thousands of messages in one envelope are answered in order; a failing one stops nothing.
#[test]
fn large_batches() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let requests: Vec<Request> = (0..2000u32)
        .map(|n| match n % 4 {
            0 => Daemon::nic_add(&Nic::bypass(&format!("n{}", n / 4), mac(n), n)),
            1 => Request { nic_details: Some(format!("n{}", n / 4)), ..Request::default() },
            2 => Request { nic_details: Some("nobody".into()), ..Request::default() },
            _ => Request { nic_del: Some(format!("n{}", n / 4)), ..Request::default() },
        })
        .collect();
    let answers = daemon.ask_all(requests);
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(answer.is_ok(), n % 4 != 2, "{n}: {answer:?}");
        if n % 4 == 1 {
            assert_eq!(answer.as_ref().unwrap().nic_details[0].id(), format!("n{}", n / 4));
        }
    }
    assert!(host.ids().is_empty());
}

/// The daemon answers bytes that are no request, and does nothing else.
#[test]
fn malformed_requests() {
    let Some(host) = Host::process() else { return };
    let mut a = host.station(&Nic::bypass("a", mac(1), 1), &usual());
    let mut b = host.station(&Nic::bypass("b", mac(2), 1), &usual());
    let mut both = streams(&a, &b);
    let client = Client::connect(host.daemon().endpoint(), Some(PATIENCE)).unwrap();
    let mut choices = Choices::new(1);
    let good = {
        let message = proto::MessageV0 {
            request: MessageField::some(Daemon::nic_add(&Nic::bypass("c", mac(3), 1))),
            ..Default::default()
        };
        let message = proto::Message {
            revision: Some(6),
            message_0: MessageField::some(message),
            ..Default::default()
        };
        use protobuf::Message as _;
        Messages { messages: vec![message], ..Default::default() }.write_to_bytes().unwrap()
    };
    let mut parse_errors = 0;
    for round in 0..2000 {
        let mut bytes = good.clone();
        match choices.below(3) {
            0 => bytes.truncate(choices.below(good.len())),
            1 => (0..choices.between(1, 8)).for_each(|_| {
                let at = choices.below(bytes.len());
                bytes[at] = choices.below(256) as u8;
            }),
            _ => bytes = (0..choices.below(200)).map(|_| choices.below(256) as u8).collect(),
        }
        let reply = client.exchange(&bytes).unwrap();
        parse_errors += u32::from(reply == [8, 6, 0x12, 2, 8, 0]);
        if round % 200 == 0 {
            exchange(&mut a, &mut b, &mut both, &[60, 9000]);
        }
    }
    assert!(parse_errors > 500, "{parse_errors}");
    let reply =
        butterfly_api::client::decode_reply(&client.exchange(b"\xff\xff").unwrap()).unwrap();
    assert_eq!(reply.messages[0].error.code(), Code::PARSE_ERROR);
    assert!(host.ids().iter().any(|id| id == "a"));
    exchange(&mut a, &mut b, &mut both, &[60, 9000]);
}

/// Compares random requests with a model of them: which vnics are declared, which guests are cut
/// off, and whose frames pass.
#[test]
fn requests_at_random() {
    let Some(host) = Host::process() else { return };
    let daemon = host.daemon();
    let mut choices = Choices::new(7);
    let mut model: BTreeMap<String, Nic> = BTreeMap::new();
    let mut guests: BTreeMap<String, Vm> = BTreeMap::new();
    let mut recreated = 0;
    for round in 0..600 {
        let id = format!("n{}", choices.below(6));
        match choices.below(10) {
            0 => {
                host.remove(&id);
                model.remove(&id);
                if let Some(guest) = guests.remove(&id) {
                    assert!(guest.connection.wait_closed(PATIENCE));
                }
            }
            1 | 2 => {
                if let Some(nic) = model.get(&id)
                    && !guests.contains_key(&id)
                {
                    guests.insert(id.clone(), attach(&host, nic).vm);
                }
            }
            3 => {
                let ips = choices.one(&[&["10.0.0.1"][..], &[], &["10.0.0.2", "fd00::2"]]);
                let anti_spoof = choices.below(2) == 0;
                let done = host.update(&id, ips, anti_spoof);
                assert_eq!(done.is_ok(), model.contains_key(&id), "{done:?}");
                if let Some(nic) = model.get_mut(&id) {
                    *nic = Nic { anti_spoof, ..nic.clone().ips(ips) };
                }
            }
            _ => {
                let old = model.get(&id).cloned();
                // Mostly a change of a declared vnic.
                let base = old
                    .clone()
                    .unwrap_or_else(|| Nic::bypass(&id, mac(choices.below(4) as u32), 1));
                let nic = match choices.below(6) {
                    0 => base,
                    1 => Nic { mac: mac(choices.below(4) as u32), ..base },
                    2 => Nic { vni: choices.one(&[1, 2]), ..base },
                    3 => Nic { bypass: !base.bypass, ..base },
                    4 => base.ips(&["10.0.0.3"]),
                    _ => Nic { anti_spoof: !base.anti_spoof, ..base },
                };
                // A vnic with another's address is accepted, too: it waits for it or shares it.
                let done = host.add(&nic);
                assert!(done.is_ok(), "round {round}: {done:?} for {nic:?} beside {model:?}");
                let again =
                    old.as_ref().is_some_and(|old| (old.mac, old.vni) != (nic.mac, nic.vni));
                if again && let Some(guest) = guests.remove(&id) {
                    assert!(guest.connection.wait_closed(PATIENCE), "round {round}");
                    recreated += 1;
                }
                model.insert(id, nic);
            }
        }
        let shown: Vec<_> = details(daemon, "")
            .into_iter()
            .map(|nic| {
                (
                    nic.id().to_owned(),
                    nic.mac().to_owned(),
                    nic.vni(),
                    nic.ip.clone(),
                    nic.bypass_filtering(),
                    nic.ip_anti_spoof(),
                )
            })
            .collect();
        let wanted: Vec<_> = model
            .values()
            .map(|nic| {
                (
                    nic.id.clone(),
                    nic.mac.to_string(),
                    nic.vni,
                    nic.ips.clone(),
                    nic.bypass,
                    nic.anti_spoof,
                )
            })
            .collect();
        assert_eq!(shown, wanted, "round {round}");
        let cut: Vec<_> = guests
            .iter()
            .filter(|(_, guest)| guest.connection.is_closed())
            .map(|(id, _)| id)
            .collect();
        assert!(cut.is_empty(), "round {round}: {cut:?} were cut for nothing");
        let own: Vec<_> = host
            .fdb(None)
            .into_iter()
            .filter(|entry| !entry.learnt)
            .map(|entry| (entry.id, entry.vni, entry.mac))
            .collect();
        let waiting = details(daemon, "").iter().filter(|nic| nic.waiting.is_some()).count();
        assert_eq!(own.len() + waiting, model.len(), "round {round}");
        for (id, vni, mac) in own {
            assert_eq!((vni, mac), (model[&id].vni, model[&id].mac.to_string()));
        }
    }
    assert!(recreated > 10, "{recreated}");
    for id in guests.keys() {
        eventually("guests are where they were", || host.show(id).attached);
    }
}
