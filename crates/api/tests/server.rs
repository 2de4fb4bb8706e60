//! The server on real ZeroMQ sockets, with clients that behave and clients that do not.

use butterfly_api::{
    Action, Answer, Context, Envelope, Failure, Handler, MAX_FRAME,
    client::{Client, ClientError},
    proto::{Messages, Response},
    server::{Server, ServerError},
    text,
};
use protobuf::Message;
use std::{
    io::Write,
    net::TcpStream,
    os::{fd::AsFd, unix::net::UnixStream},
    thread::JoinHandle,
    time::{Duration, Instant},
};
use zmq::{Socket, SocketType};

/// Time limit that only a broken program exceeds.
const PATIENCE: Duration = Duration::from_secs(20);

/// Echoes vnic ids; done once told to quit.
#[derive(Default)]
struct Echo {
    quit: bool,
}

impl Handler for Echo {
    fn handle(&mut self, action: Action<'_>, context: &Context) -> Answer {
        match action {
            Action::NicStats(_) => {
                let caller = context.caller.map(|caller| caller.to_string());
                Ok(Response { nic_list: caller.into_iter().collect(), ..Default::default() })
            }
            Action::NicDetails(id) => {
                Ok(Response { nic_list: vec![id.to_owned()], ..Default::default() })
            }
            Action::AppQuit => {
                self.quit = true;
                Ok(Response::new())
            }
            _ => Err(Failure::new("no")),
        }
    }
}

/// A server in a thread, on an ipc path of its own or on the given endpoint.
struct Running {
    endpoint: String,
    stop: UnixStream,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
    _directory: tempfile::TempDir,
}

impl Running {
    fn on_ipc() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let endpoint = format!("ipc://{}", directory.path().join("api").display());
        Self::start(directory, &endpoint)
    }

    fn on_tcp() -> Self {
        Self::start(tempfile::tempdir().unwrap(), "tcp://127.0.0.1:*")
    }

    fn start(directory: tempfile::TempDir, endpoint: &str) -> Self {
        let mut server = Server::bind(&[endpoint]).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let endpoint = server.endpoints()[0].clone();
        let thread = std::thread::spawn(move || {
            let mut envelope = Envelope::new(Echo::default());
            server.serve(&mut envelope, stopped.as_fd(), |echo| echo.quit)
        });
        Self { endpoint, stop, thread: Some(thread), _directory: directory }
    }

    fn client(&self) -> Client {
        Client::connect(&self.endpoint, Some(PATIENCE)).unwrap()
    }

    /// A socket with its own ideas about the protocol.
    fn socket(&self, kind: SocketType) -> Socket {
        let socket = zmq::Context::new().socket(kind).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_rcvtimeo(PATIENCE.as_millis() as i32).unwrap();
        socket.set_sndtimeo(PATIENCE.as_millis() as i32).unwrap();
        socket.connect(&self.endpoint).unwrap();
        socket
    }

    fn finish(&mut self) -> Result<(), ServerError> {
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.stop.write_all(b"x");
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            if !std::thread::panicking() {
                result.unwrap().unwrap();
            }
        }
    }
}

fn ask(id: &str) -> Messages {
    text::parse(&format!(
        "messages {{ revision: 6 message_0 {{ request {{ nic_details: \"{id}\" }} }} }}"
    ))
    .unwrap()
}

fn check(client: &Client, id: &str) {
    let reply = client.call(&ask(id)).unwrap();
    assert_eq!(reply.messages[0].message_0.response.nic_list, [id]);
}

#[test]
fn requests_are_answered_within_milliseconds() {
    for server in [Running::on_ipc(), Running::on_tcp()] {
        let client = server.client();
        check(&client, "warm up");
        let mut times: Vec<_> = (0..101)
            .map(|_| {
                let start = Instant::now();
                check(&client, "x");
                start.elapsed()
            })
            .collect();
        times.sort();
        assert!(times[50] < Duration::from_millis(5), "median {:?}", times[50]);
    }
}

/// Counts its calls, and answers requests with their number.
#[derive(Default)]
struct Called(u32);

impl Handler for Called {
    fn handle(&mut self, _: Action<'_>, _: &Context) -> Answer {
        Ok(Response { nic_list: vec![self.0.to_string()], ..Response::new() })
    }

    fn called(&mut self) {
        self.0 += 1;
    }
}

/// Between two requests, once for what came in the meantime, and not after it was asked to stop.
#[test]
fn the_handler_is_called_when_a_file_is_readable() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint = format!("ipc://{}", directory.path().join("api").display());
    let mut server = Server::bind(&[&endpoint]).unwrap();
    let (mut call, called) = UnixStream::pair().unwrap();
    called.set_nonblocking(true).unwrap();
    server.on_call(called.into());
    let (mut stop, stopped) = UnixStream::pair().unwrap();
    let serving = std::thread::spawn(move || {
        let mut envelope = Envelope::new(Called::default());
        server.serve(&mut envelope, stopped.as_fd(), |_| false).unwrap();
        envelope.into_handler().0
    });
    let client = Client::connect(&endpoint, Some(PATIENCE)).unwrap();
    let calls = || -> u32 {
        let reply = client.call(&ask("x")).unwrap();
        reply.messages[0].message_0.response.nic_list[0].parse().unwrap()
    };
    assert_eq!(calls(), 0);
    for times in 1..=3 {
        call.write_all(b"xxxxxxxx").unwrap();
        let deadline = Instant::now() + PATIENCE;
        while calls() < times {
            assert!(Instant::now() < deadline, "it is not called");
        }
        assert_eq!(calls(), times, "eight bytes at once are one call");
    }
    stop.write_all(b"x").unwrap();
    while !serving.is_finished() {
        let _ = call.write_all(b"x");
    }
    assert!(serving.join().unwrap() >= 3);
}

#[test]
fn the_handler_hears_who_asks() {
    for (server, expected) in
        [(Running::on_ipc(), "a local process"), (Running::on_tcp(), "127.0.0.1")]
    {
        let request: Messages =
            text::parse("messages { revision: 6 message_0 { request { nic_stats: \"x\" } } }")
                .unwrap();
        let reply = server.client().call(&request).unwrap();
        assert_eq!(reply.messages[0].message_0.response.nic_list, [expected]);
    }
}

#[test]
fn many_clients_are_served_in_turn() {
    let server = Running::on_ipc();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let client = server.client();
            scope.spawn(move || {
                for round in 0..50 {
                    check(&client, &format!("{number}-{round}"));
                }
            });
        }
    });
}

#[test]
fn of_a_multipart_request_the_first_part_counts() {
    let server = Running::on_ipc();
    let socket = server.socket(SocketType::REQ);
    for parts in [1, 2, 3, 500] {
        let mut request = vec![ask("x").write_to_bytes().unwrap()];
        request.resize(parts, b"garbage".to_vec());
        socket.send_multipart(request, 0).unwrap();
        let reply = socket.recv_multipart(0).unwrap();
        assert_eq!(reply.len(), 1, "exactly one part comes back");
        let reply = Messages::parse_from_bytes(&reply[0]).unwrap();
        assert_eq!(reply.messages[0].message_0.response.nic_list, ["x"]);
    }
}

#[test]
fn an_empty_frame_is_a_request_too() {
    let server = Running::on_ipc();
    let reply = server.client().exchange(b"").unwrap();
    assert_eq!(
        text::print(&Messages::parse_from_bytes(&reply).unwrap()),
        "messages {\n  revision: 6\n  error {\n    code: REJECTED\n  }\n}\n"
    );
    assert_eq!(server.client().exchange(b"\xff").unwrap(), [8, 6, 0x12, 2, 8, 0]);
}

#[test]
fn peers_without_manners_harm_nobody() {
    let server = Running::on_ipc();
    let client = server.client();
    check(&client, "before");
    for round in 0..20 {
        // No delimiter; only a delimiter; a request and gone; two requests before the first reply.
        let dealer = server.socket(SocketType::DEALER);
        dealer.send("no delimiter", 0).unwrap();
        dealer.send_multipart(["no", "delimiter", "at all"], 0).unwrap();
        dealer.send("", 0).unwrap();
        let request = ask("x").write_to_bytes().unwrap();
        let gone = server.socket(SocketType::REQ);
        gone.send(&request, 0).unwrap();
        drop(gone);
        dealer.send_multipart([&b""[..], &request], 0).unwrap();
        dealer.send_multipart([&b""[..], &request], 0).unwrap();
        check(&client, &round.to_string());
        if round % 2 == 0 {
            // A lone delimiter is skipped, two requests have two replies.
            for _ in 0..2 {
                let reply = dealer.recv_multipart(0).unwrap();
                assert_eq!(reply.len(), 2);
                assert!(Messages::parse_from_bytes(&reply[1]).is_ok());
            }
        }
    }
}

#[test]
fn what_is_not_zeromq_harms_nobody() {
    let server = Running::on_tcp();
    let client = server.client();
    let address = server.endpoint.strip_prefix("tcp://").unwrap();
    let mut open = Vec::new();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], &[0; 64], b""] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(garbage).unwrap();
        open.push(stream);
        check(&client, "x");
    }
}

#[test]
fn a_frame_over_the_limit_costs_its_sender_the_connection() {
    let server = Running::on_ipc();
    let client = server.client();
    check(&client, "before");
    let huge = server.socket(SocketType::REQ);
    huge.monitor("inproc://events", zmq::SocketEvent::DISCONNECTED as i32).unwrap();
    huge.send(vec![0; MAX_FRAME + 1], 0).unwrap();
    check(&client, "after");
    huge.set_rcvtimeo(500).unwrap();
    assert_eq!(huge.recv_bytes(0), Err(zmq::Error::EAGAIN), "it gets no answer");
}

#[test]
fn a_stop_is_prompt_and_frees_the_endpoint() {
    let mut server = Running::on_ipc();
    check(&server.client(), "x");
    let start = Instant::now();
    server.stop.write_all(b"x").unwrap();
    server.finish().unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    let path = server.endpoint.strip_prefix("ipc://").unwrap();
    assert!(!std::path::Path::new(path).exists(), "{path} is left behind");
}

#[test]
fn who_asks_it_to_quit_gets_the_reply() {
    let mut server = Running::on_ipc();
    let quit =
        text::parse("messages { revision: 6 message_0 { request { app_quit: true } } }").unwrap();
    let reply = server.client().call(&quit).unwrap();
    assert!(reply.messages[0].message_0.response.status.status());
    server.finish().unwrap();
}

#[test]
fn a_busy_endpoint_is_refused_with_advice() {
    let server = Running::on_tcp();
    let Err(error) = Server::bind(&[&server.endpoint]) else { panic!("bound twice") };
    let expected =
        format!("cannot listen on {}: Address already in use; another process", server.endpoint);
    assert!(error.to_string().starts_with(&expected), "{error}");
    let server = Running::on_ipc();
    let Err(error) = Server::bind(&[&server.endpoint]) else { panic!("bound twice") };
    assert!(error.to_string().contains("Address already in use"), "{error}");
    check(&server.client(), "still served");
    for endpoint in ["", "nonsense", "tcp://nowhere", "ipc:///does/not/exist/api"] {
        assert!(Server::bind(&[endpoint]).is_err(), "{endpoint:?}");
    }
}

#[test]
fn a_stale_socket_is_replaced_and_a_file_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("api");
    let endpoint = format!("ipc://{}", path.display());
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "the listener died, its socket stays");
    drop(Server::bind(&[&endpoint]).unwrap());
    assert!(!path.exists());

    std::fs::write(&path, "precious").unwrap();
    let Err(error) = Server::bind(&[&endpoint]) else { panic!("the file is gone") };
    assert!(error.to_string().contains("that path is no socket"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_client_alone_times_out_and_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let endpoint = format!("ipc://{}", directory.path().join("api").display());
    let client = Client::connect(&endpoint, Some(Duration::from_millis(50))).unwrap();
    assert!(matches!(client.call(&ask("x")), Err(ClientError::ReceiveTimeout)));

    // Its request would still be delivered.
    drop(client);
    // A server that listens and does not answer.
    let silent = zmq::Context::new().socket(SocketType::REP).unwrap();
    silent.bind(&endpoint).unwrap();
    let client = Client::connect(&endpoint, Some(Duration::from_millis(500))).unwrap();
    assert!(matches!(client.call(&ask("x")), Err(ClientError::ReceiveTimeout)));
    silent.recv_bytes(0).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            silent.send("", 0).unwrap();
            silent.recv_bytes(0).unwrap();
            silent.send(b"\x0a\x02\x08\x07".as_slice(), 0).unwrap();
        });
        let reply = client.call(&ask("y")).unwrap();
        assert_eq!(reply.messages[0].revision(), 7, "the late reply is not taken for this one");
    });
}
