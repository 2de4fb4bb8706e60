//! Every kind of endpoint, one by one and several at once, with a client that asks there.

use butterfly_api::{
    Action, Answer, Context, Envelope, Failure, Handler,
    client::Client,
    proto::{Messages, Response},
    server::{Kept, Listening, Server, ServerError},
    text,
};
use std::{
    collections::BTreeMap,
    io::Write,
    net::{TcpListener, TcpStream},
    os::{
        fd::AsFd,
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener, UnixStream},
    },
    path::Path,
    time::Duration,
};

/// Time limit that only a broken program exceeds.
const PATIENCE: Duration = Duration::from_secs(20);

/// Names the caller of each request.
struct WhoAsks;

impl Handler for WhoAsks {
    fn handle(&mut self, action: Action<'_>, context: &Context) -> Answer {
        match action {
            Action::NicList => Ok(Response {
                nic_list: context.caller.map(|caller| caller.to_string()).into_iter().collect(),
                ..Default::default()
            }),
            _ => Err(Failure::new("no")),
        }
    }
}

/// Returns the caller that a client at `endpoint` is taken for.
fn asked(endpoint: &str) -> String {
    let request: Messages =
        text::parse("messages { revision: 6 message_0 { request { nic_list: true } } }").unwrap();
    let reply = Client::connect(endpoint, Some(PATIENCE))
        .unwrap()
        .call(&request)
        .unwrap_or_else(|error| panic!("{endpoint}: {error}"));
    reply.messages[0].message_0.response.nic_list.concat()
}

/// Serves until `ask` is done.
fn while_served(mut server: Server, ask: impl FnOnce()) {
    let (mut stop, stopped) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let served = scope
            .spawn(move || server.serve(&mut Envelope::new(WhoAsks), stopped.as_fd(), |_| false));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(ask));
        stop.write_all(b"x").unwrap();
        served.join().unwrap().unwrap();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn refused(endpoints: &[&str]) -> String {
    match Server::bind(endpoints) {
        Ok(_) => panic!("{endpoints:?} was taken"),
        Err(error) => error.to_string(),
    }
}

/// One row per kind: the bound endpoint, its resolved name (`PORT` is any), the endpoint of
/// clients, and their caller.
#[test]
fn every_kind_is_served() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a b").display().to_string();
    let name = format!("@butterfly-test-{}", std::process::id());
    let (ipc, hidden) = (format!("ipc://{path}"), format!("ipc://{name}"));
    for (bound, told, asks) in [
        ("tcp://127.0.0.1:*", "tcp://127.0.0.1:PORT", &[("tcp://127.0.0.1:PORT", "127.0.0.1")][..]),
        ("tcp://127.0.0.1:0", "tcp://127.0.0.1:PORT", &[("tcp://127.0.0.1:PORT", "127.0.0.1")]),
        ("tcp://0.0.0.0:*", "tcp://0.0.0.0:PORT", &[("tcp://127.0.0.2:PORT", "127.0.0.1")]),
        (
            "tcp://*:*",
            "tcp://0.0.0.0:PORT",
            &[("tcp://127.0.0.1:PORT", "127.0.0.1"), ("tcp://localhost:PORT", "127.0.0.1")],
        ),
        ("tcp://[::1]:*", "tcp://[::1]:PORT", &[("tcp://[::1]:PORT", "::1")]),
        (
            "tcp://[::]:*",
            "tcp://[::]:PORT",
            &[("tcp://[::1]:PORT", "::1"), ("tcp://127.0.0.1:PORT", "127.0.0.1")],
        ),
        (&ipc, &ipc, &[(&ipc, "a local process")]),
        (&hidden, &hidden, &[(&hidden, "a local process")]),
    ] {
        let server = Server::bind(&[bound]).unwrap_or_else(|error| panic!("{bound}: {error}"));
        let endpoints = server.endpoints();
        let [endpoint] = &*endpoints else { panic!("{bound}: {endpoints:?}") };
        let port = endpoint.rsplit(':').next().unwrap().to_owned();
        assert_eq!(*endpoint, told.replace("PORT", &port), "{bound}");
        assert!(
            !told.contains("PORT") || port.parse::<u16>().is_ok_and(|port| port != 0),
            "{bound}: {endpoint}"
        );
        while_served(server, || {
            for (at, caller) in asks {
                assert_eq!(
                    asked(&at.replace("PORT", &port)),
                    *caller,
                    "{at}, where {bound} is bound"
                );
            }
        });
    }
    assert!(!Path::new(&path).exists());
}

#[test]
fn a_port_of_our_choice_is_that_port() {
    // One that is free now; another program may take it before us.
    for _ in 0..5 {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let endpoint = format!("tcp://*:{port}");
        let Ok(server) = Server::bind(&[&endpoint]) else { continue };
        assert_eq!(server.endpoints(), [format!("tcp://0.0.0.0:{port}")]);
        return while_served(server, || {
            assert_eq!(asked(&format!("tcp://127.0.0.1:{port}")), "127.0.0.1")
        });
    }
    panic!("no port is free");
}

#[test]
fn several_are_served_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let ipc = format!("ipc://{}", directory.path().join("api").display());
    let hidden = format!("ipc://@butterfly-several-{}", std::process::id());
    let server =
        Server::bind(&["tcp://127.0.0.1:*", &ipc, "tcp://[::1]:*", &hidden, "tcp://127.0.0.1:0"])
            .unwrap();
    let endpoints = server.endpoints();
    assert_eq!(endpoints.len(), 5);
    while_served(server, || {
        // One after the other, and each while all others are connected.
        for _ in 0..3 {
            let told: Vec<_> = endpoints.iter().map(|endpoint| asked(endpoint)).collect();
            assert_eq!(
                told,
                ["127.0.0.1", "a local process", "::1", "a local process", "127.0.0.1"]
            );
        }
    });
    assert!(!directory.path().join("api").exists());
}

/// Sockets that a holder would have when the process ends.
fn kept_of(server: &Server) -> BTreeMap<String, Kept> {
    let keep = |it: Listening<'_>| {
        let socket = it.socket.try_clone_to_owned().unwrap();
        (it.asked.to_owned(), Kept { socket, file: it.file().unwrap() })
    };
    server.listening().map(keep).collect()
}

#[test]
fn a_process_goes_on_with_the_sockets_of_the_one_before() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("api");
    let ipc = format!("ipc://{}", path.display());
    let hidden = format!("ipc://@butterfly-kept-{}", std::process::id());
    let asked_for = ["tcp://127.0.0.1:*", &ipc, "ipc://*", &hidden];
    let server = Server::bind(&asked_for).unwrap();
    let endpoints = server.endpoints();
    let mut kept = kept_of(&server);
    server.leave_files();
    drop(server);
    // A client waits where no process listens now.
    std::thread::scope(|scope| {
        let early: Vec<_> = endpoints.iter().map(|at| scope.spawn(move || asked(at))).collect();
        std::thread::sleep(Duration::from_millis(50));
        // Nobody else gets the places meanwhile.
        for at in &endpoints {
            assert!(Server::bind(&[at]).is_err(), "{at}");
        }
        // One that fails to start takes no file along.
        drop(Server::take_over(&asked_for, &mut kept_again(&kept)).unwrap());
        assert!(path.exists());
        let mut server = Server::take_over(&asked_for, &mut kept).unwrap();
        assert_eq!(server.endpoints(), endpoints);
        assert!(server.bind_others().is_empty() && kept.is_empty());
        while_served(server, || {
            let told: Vec<_> = early.into_iter().map(|it| it.join().unwrap()).collect();
            let local = "a local process";
            assert_eq!(told, ["127.0.0.1", local, local, local]);
        });
    });
    // The holder has the files, and removes them at the end.
    assert!(path.exists());
    let free = Path::new(endpoints[2].strip_prefix("ipc://").unwrap());
    assert!(free.exists());
    std::fs::remove_dir_all(free.parent().unwrap()).unwrap();
}

fn kept_again(kept: &BTreeMap<String, Kept>) -> BTreeMap<String, Kept> {
    kept.iter().map(|(at, kept)| (at.clone(), kept.try_clone().unwrap())).collect()
}

/// Somebody who listens and accepts nobody keeps nobody waiting for an answer.
#[test]
fn a_full_queue_is_an_endpoint_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("api");
    let listener = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    for _ in 0..5 {
        let error = refused(&[&format!("ipc://{}", path.display())]);
        assert!(error.contains("Address already in use"), "{error}");
    }
    assert!(path.exists());
}

#[test]
fn an_endpoint_that_is_taken_stops_no_other_and_is_tried_again() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", taken.local_addr().unwrap());
    let mut kept = BTreeMap::new();
    let foreign = TcpListener::bind("127.0.0.1:0").unwrap();
    kept.insert(endpoint.clone(), Kept { socket: foreign.into(), file: None });
    let asked_for = [&*endpoint, "tcp://127.0.0.1:*"];
    let mut server = Server::take_over(&asked_for, &mut kept).unwrap();
    assert_eq!(kept.len(), 1, "it has another address");
    let refused = server.bind_others();
    let told: Vec<_> = refused.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("Address already in use"), "{told:?}");
    let other = server.endpoints();
    let (heard, hears) = std::sync::mpsc::channel();
    server.on_listening(move |it| heard.send(it.bound.to_owned()).unwrap());
    while_served(server, || {
        assert_eq!(asked(&other[0]), "127.0.0.1");
        assert!(hears.try_recv().is_err());
        drop(taken);
        assert_eq!(hears.recv_timeout(PATIENCE), Ok(endpoint.clone()));
        assert_eq!(asked(&endpoint), "127.0.0.1");
    });
}

#[test]
fn all_or_none() {
    let directory = tempfile::tempdir().unwrap();
    let free = directory.path().join("api");
    let ipc = format!("ipc://{}", free.display());
    let name = format!("butterfly-none-{}", std::process::id());
    let hidden = format!("ipc://@{name}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = format!("tcp://127.0.0.1:{}", taken.local_addr().unwrap().port());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let tcp = format!("tcp://127.0.0.1:{port}");
    let others = |last: &str| refused(&[&ipc, &hidden, &tcp, last]);

    assert!(
        others(&busy).starts_with(&format!(
            "cannot listen on {busy}: Address already in use; another process"
        ))
    );
    // Two of one kind: the second is refused like another program's.
    assert!(
        others(&ipc).starts_with(&format!(
            "cannot listen on {ipc}: Address already in use; another process"
        ))
    );
    assert!(
        others(&tcp).starts_with(&format!(
            "cannot listen on {tcp}: Address already in use; another process"
        ))
    );
    assert!(others(&hidden).starts_with(&format!(
        "cannot listen on {hidden}: Address already in use; another process"
    )));
    assert!(others(&format!("tcp://[::]:{port}")).contains("as [::] does for IPv4"));
    for (last, said) in [
        (
            "udp://127.0.0.1:9999",
            "endpoint \"udp://127.0.0.1:9999\" is refused: udp has no replies; the API listens on tcp and ipc",
        ),
        (
            "inproc://a",
            "endpoint \"inproc://a\" is refused: inproc reaches nobody outside the daemon; the API listens on tcp and ipc",
        ),
        (
            "tipc://{1,0,0}",
            "endpoint \"tipc://{1,0,0}\" is refused: tipc is not supported; the API listens on tcp and ipc",
        ),
        (
            "tcp://no-such-link:1",
            "cannot listen on tcp://no-such-link:1: No such device; no interface of this host has that address",
        ),
        ("tcp://192.0.2.250:1", "cannot listen on tcp://192.0.2.250:1: "),
        (
            "ipc:///does/not/exist/api",
            "cannot listen on ipc:///does/not/exist/api: No such file or directory; create the directory first",
        ),
    ] {
        let told = others(last);
        assert!(told.starts_with(said), "{told}");
    }

    // None of the others is left.
    assert!(!free.exists());
    assert!(UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).is_ok());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    assert!(matches!(Server::bind(&["nonsense"]), Err(ServerError::Endpoint(_))));
}
