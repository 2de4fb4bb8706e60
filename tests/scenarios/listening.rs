//! Places to which clients and scrapers come: nobody else gets them while no daemon runs.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixListener,
    path::Path,
    time::{Duration, Instant},
};

use crate::lasting::{Place, is_attached, pair};
use butterfly_api::proto::Request;
use butterfly_tests::{
    Daemon, Host, PATIENCE, eventually,
    traffic::{exchange, streams},
};

/// A port that is free now.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A place whose daemon also listens on TCP, and its address there.
fn on_tcp(place: &mut Place) -> SocketAddr {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let ipc = format!("ipc://{}/api", place.0.path().display());
    place.1 = ["-e", &ipc, "-e", &format!("tcp://{address}"), "--metrics", "127.0.0.1:0"]
        .map(str::to_owned)
        .to_vec();
    address
}

fn die(host: &mut Host) {
    host.daemon().kill();
    host.daemon_mut().wait_for_end();
}

/// Asks a daemon that may still be coming.
fn asks(endpoint: String) -> std::thread::JoinHandle<bool> {
    std::thread::spawn(move || {
        let request = Request { nic_list: Some(true), ..Request::default() };
        Daemon::try_ask(&endpoint, PATIENCE, request).is_ok_and(|answer| answer.is_ok())
    })
}

/// Scrapes metrics, which may take until a daemon is there.
fn scrapes(address: SocketAddr) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    })
}

fn is_taken(address: SocketAddr, api: &Path) -> bool {
    let unix = std::os::unix::net::UnixStream::connect(api).is_ok();
    unix && TcpListener::bind(address).is_err()
}

/// After a death and in an upgrade. Who asks meanwhile waits, and gets an answer.
#[test]
fn nobody_takes_the_place_of_the_api() {
    let Some(mut place) = Place::new() else { return };
    let address = on_tcp(&mut place);
    let api = place.0.path().join("api");
    let mut host = place.start();
    let metrics = host.daemon().metrics();
    for _ in 0..2 {
        die(&mut host);
        assert!(is_taken(address, &api));
        assert!(TcpListener::bind(metrics).is_err());
        let clients = [asks(format!("tcp://{address}")), asks(format!("ipc://{}", api.display()))];
        let scraper = scrapes(metrics);
        std::thread::sleep(Duration::from_millis(100));
        host = place.start();
        assert!(clients.map(|client| client.join().unwrap()).iter().all(|answered| *answered));
        assert!(scraper.join().unwrap().contains("butterfly_"));
        assert_eq!(host.daemon().metrics(), metrics, "a port of the system's choice stays");
    }
    // Who binds without pause finds no gap in an upgrade.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let greedy = scope.spawn(|| {
            let mut tries = 0u64;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                assert!(TcpListener::bind(address).is_err() && TcpListener::bind(metrics).is_err());
                assert!(UnixListener::bind(&api).is_err());
                tries += 1;
            }
            tries
        });
        for _ in 0..3 {
            let told = host.daemon().client_ok(&["upgrade"]);
            assert!(told.contains("goes on"), "{told}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(greedy.join().unwrap() > 100);
    });
    assert!(scrapes(metrics).join().unwrap().contains("butterfly_"));
    // Another address of the same port: the socket before is not in the way.
    die(&mut host);
    let wider = SocketAddr::from(([0, 0, 0, 0], metrics.port()));
    place.1[5] = wider.to_string();
    host = place.start();
    assert!(scrapes(metrics).join().unwrap().contains("butterfly_"));
    let events = host.daemon().client_ok(&["events"]);
    assert!(!events.contains("not-listening"), "{events}");
    // After an orderly end all is free at once.
    host.daemon_mut().quit();
    assert!(!api.exists());
    drop(TcpListener::bind(address).unwrap());
    drop(TcpListener::bind(metrics).unwrap());
}

/// An endpoint that somebody has stops no traffic. It is listened on as soon as that is possible.
#[test]
fn an_endpoint_that_is_taken_stops_no_traffic() {
    let Some(mut place) = Place::new() else { return };
    on_tcp(&mut place);
    let mut host = place.start();
    let [mut a, mut b] = pair(&mut host);
    let mut both = streams(&a, &b);
    exchange(&mut a, &mut b, &mut both, &[60]);
    let scraped_before = host.daemon().metrics();
    die(&mut host);
    // The next one is to listen elsewhere, where somebody is.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let scraped = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let former = place.1[3].clone();
    place.1[3] = format!("tcp://{address}");
    place.1[5] = scraped.local_addr().unwrap().to_string();
    host = place.start();
    exchange(&mut a, &mut b, &mut both, &[60, 1514]);
    assert!(is_attached(&a) && is_attached(&b));
    let events = host.daemon().client_ok(&["events"]);
    let refused = format!("cannot listen on tcp://{address}: Address already in use");
    assert!(events.contains(&refused) && events.contains("tried again each second"), "{events}");
    assert!(events.contains("cannot serve metrics on"), "{events}");
    // The place before is nobody's any more.
    let former: SocketAddr = former.strip_prefix("tcp://").unwrap().parse().unwrap();
    eventually("the endpoint before is let go", || TcpListener::bind(former).is_ok());
    drop(TcpListener::bind(scraped_before).unwrap());
    drop((taken, scraped));
    assert!(asks_soon(address), "{}", host.daemon().log());
    let events = host.daemon().client_ok(&["events"]);
    assert!(events.contains(&format!("the API is on tcp://{address} after all")), "{events}");
    host.daemon().signal("HUP");
    eventually("metrics are served", || host.daemon().log().contains("metrics on http://"));
    // Both outlast the next death.
    die(&mut host);
    assert!(TcpListener::bind(address).is_err());
    host = place.start();
    assert!(asks_soon(address));
    host.daemon_mut().quit();
}

fn asks_soon(address: SocketAddr) -> bool {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if TcpStream::connect(address).is_ok() && asks(format!("tcp://{address}")).join().unwrap() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}

/// A first daemon that cannot begin leaves nothing behind.
#[test]
fn a_first_daemon_that_cannot_listen_leaves_no_holder() {
    let Some(mut place) = Place::new() else { return };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", taken.local_addr().unwrap());
    place.1 = ["-e", &endpoint].map(str::to_owned).to_vec();
    let mut daemon = Daemon::launch(place.0.path(), &[], &place.options());
    let status = daemon.wait_for_end();
    assert_eq!(status.code(), Some(1), "{}", daemon.log());
    assert!(daemon.log().contains("Address already in use"), "{}", daemon.log());
    assert_eq!(place.holder(), None);
    drop(taken);
    let mut host = place.start();
    host.daemon_mut().quit();
    assert_eq!(place.holder(), None);
}
