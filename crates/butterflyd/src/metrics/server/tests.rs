//! The port as strangers see it: plain sockets, byte by byte.

use super::*;
use std::{
    io::{Read, Write},
    net::TcpStream as Client,
    time::Instant,
};

/// Time limit that only a broken program exceeds.
const PATIENCE: Duration = Duration::from_secs(20);

fn serving(page: &str) -> (Server, SocketAddr) {
    let page = page.to_owned();
    let bound = Server::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = bound.address();
    (bound.serve(move || Ok::<_, Infallible>(page.clone())).unwrap(), address)
}

fn connect(address: SocketAddr) -> Client {
    let client = Client::connect(address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client
}

/// Everything that comes back, until the other side closes.
fn rest(mut client: Client) -> String {
    let mut text = Vec::new();
    // A reset ends it as well: we may have sent more than was read.
    let _ = client.read_to_end(&mut text);
    String::from_utf8(text).unwrap()
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut client = connect(address);
    client.write_all(request.as_bytes()).unwrap();
    rest(client)
}

/// Status, headers in lower case, body.
fn parts(answer: &str) -> (u16, String, &str) {
    let (head, body) =
        answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_lowercase(), body)
}

fn get(address: SocketAddr, what: &str) -> (u16, String, String) {
    let answer = ask(address, &format!("{what} HTTP/1.1\r\nHost: x\r\n\r\n"));
    let (status, head, body) = parts(&answer);
    (status, head, body.to_owned())
}

#[test]
fn metrics_are_read_and_nothing_else() {
    let (_server, address) = serving("a 1\n");
    let (status, head, body) = get(address, "GET /metrics");
    assert_eq!((status, &*body), (200, "a 1\n"));
    assert!(
        head.contains("content-type: text/plain; version=0.0.4\r\n")
            && head.contains("content-length: 4"),
        "{head}"
    );
    assert!(head.contains("connection: close"), "{head}");
    assert_eq!(get(address, "GET /metrics?a=b").2, "a 1\n");
    let (status, head, body) = get(address, "HEAD /metrics");
    assert_eq!((status, &*body), (200, ""));
    assert!(head.contains("content-length: 4"), "{head}");
    let (status, head, body) = get(address, "GET /");
    assert_eq!(status, 200);
    assert!(head.contains("text/html") && body.contains("href=\"/metrics\""), "{head}\n{body}");
    for (what, expected, words) in [
        ("GET /other", 404, "/metrics"),
        ("GET /metrics/", 404, "/metrics"),
        ("POST /metrics", 405, "GET or HEAD"),
        ("DELETE /", 405, "GET or HEAD"),
    ] {
        let (status, head, body) = get(address, what);
        assert_eq!(status, expected, "{what}");
        assert!(body.contains(words), "{what}: {body}");
        assert_eq!(head.contains("allow: get, head"), expected == 405, "{what}: {head}");
    }
    // One answer per connection; further requests on it are ignored.
    let twice = "GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2);
    assert_eq!(ask(address, &twice).matches("HTTP/1.1 200").count(), 1);
}

#[test]
fn what_is_no_request_is_answered_as_such() {
    let (_server, address) = serving("a 1\n");
    for request in [
        "\0\0\0\0",
        "GET\r\n\r\n",
        "GET /metrics HTTP/9.9\r\n\r\n",
        "\x16\x03\x01\x02\0\x01\0\r\n\r\n",
    ] {
        let answer = ask(address, request);
        assert!(answer.starts_with("HTTP/1.1 400"), "{request:?}: {answer:?}");
    }
    let long = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(100_000));
    let answer = ask(address, &long);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer:?}");
    assert_eq!(get(address, "GET /metrics").0, 200);
}

#[test]
fn who_says_nothing_is_not_waited_for() {
    let (_server, address) = serving("a 1\n");
    let begun = Instant::now();
    let (silent, mut slow) = (connect(address), connect(address));
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHost:").unwrap();
    for client in [silent, slow] {
        let answer = rest(client);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer:?}");
    }
    assert!(begun.elapsed() < DONE_WITHIN, "{:?}", begun.elapsed());
}

#[test]
fn holding_connections_open_keeps_nobody_out() {
    let (_server, address) = serving("a 1\n");
    let held: Vec<Client> = (0..10 * MOST_CONNECTIONS)
        .map(|_| {
            let mut client = connect(address);
            let _ = client.write_all(b"GET /metrics HTTP/1.1\r\n");
            client
        })
        .collect();
    let begun = Instant::now();
    assert_eq!(get(address, "GET /metrics").0, 200);
    assert!(begun.elapsed() < REQUEST_WITHIN, "it waited for somebody: {:?}", begun.elapsed());
    drop(held);
}

#[test]
fn who_does_not_read_holds_up_nobody_and_not_for_ever() {
    let page = "a 1\n".repeat(2_000_000);
    let (server, address) = serving(&page);
    let mut deaf: Vec<Client> = (0..MOST_CONNECTIONS / 2).map(|_| connect(address)).collect();
    for client in &mut deaf {
        client.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    }
    assert!(get(address, "GET /metrics").2 == page);
    let begun = Instant::now();
    drop(server);
    assert!(
        begun.elapsed() < REQUEST_WITHIN,
        "the end waits for those who do not read: {:?}",
        begun.elapsed()
    );
}

#[test]
fn a_port_that_is_taken_is_told() {
    let (_server, address) = serving("a 1\n");
    let error = Server::bind(address).err().unwrap().to_string();
    assert!(
        error.starts_with(&format!("cannot serve metrics on {address}: Address already in use")),
        "{error}"
    );
    assert!(error.ends_with("stop it or choose another port"), "{error}");
    let error = Server::bind("192.0.2.1:9998".parse().unwrap()).err().unwrap().to_string();
    assert!(error.ends_with("no interface of this host has that address"), "{error}");
}

#[test]
fn a_defect_is_named() {
    let bound = Server::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = bound.address();
    let _server = bound.serve(|| Err::<String, _>("no name")).unwrap();
    assert_eq!(get(address, "GET /metrics").0, 500);
    assert_eq!(get(address, "GET /").0, 200);
}
