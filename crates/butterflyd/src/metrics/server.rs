//! The HTTP end: one thread, few connections, no patience.
//!
//! A client that reaches the port may be hostile. A connection is good for one request and for a
//! few seconds. When there are too many, the oldest goes, so that holding many open keeps no client
//! out.

use super::{Cache, Source};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{ALLOW, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt::socket_acceptconn;
use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::AbortHandle,
};
use tracing::{error, warn};

/// Connections at a time.
const MOST_CONNECTIONS: usize = 32;
/// Time that a request has to arrive.
const REQUEST_WITHIN: Duration = Duration::from_secs(2);
/// Longest life of a connection.
const DONE_WITHIN: Duration = Duration::from_secs(10);
/// Largest request line with headers: the least that the library takes.
const MOST_REQUEST: usize = 8192;
/// The pause after the system refused us a connection.
const BREATH: Duration = Duration::from_millis(100);

const INDEX: &str = "<!doctype html>\n<html lang=\"en\"><head><title>butterflyd</title></head>\n\
    <body><h1>butterflyd</h1><p><a href=\"/metrics\">Metrics</a> for Prometheus.</p></body></html>\n";

/// Metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The address cannot be listened on.
    #[error("cannot serve metrics on {address}: {reason}; {advice}")]
    Bind {
        /// The address as it was given.
        address: SocketAddr,
        /// Error of the system.
        reason: io::Error,
        /// Advice for the operator.
        advice: &'static str,
    },
    /// The thread cannot be started.
    #[error("cannot serve metrics: {0}; look at the limits of processes, memory and open files")]
    Thread(io::Error),
}

/// An address that is listened on, and not served yet.
pub struct Bound {
    listener: std::net::TcpListener,
    address: SocketAddr,
}

/// The thread that serves. Dropped, it stops.
pub struct Server {
    address: SocketAddr,
    socket: OwnedFd,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Returns the address on which it serves.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns its socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Listens on `address`.
    pub fn bind(address: SocketAddr) -> Result<Bound, MetricsError> {
        let refused = |reason: io::Error| MetricsError::Bind {
            address,
            advice: advice(reason.kind()),
            reason,
        };
        let listener = std::net::TcpListener::bind(address).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        Ok(Bound { listener, address })
    }

    /// Goes on with the socket of a process before, if it is one that listens on `address`.
    pub fn take_over(address: SocketAddr, kept: &OwnedFd) -> Option<Bound> {
        if !socket_acceptconn(kept).unwrap_or(false) {
            return None;
        }
        let listener = std::net::TcpListener::from(kept.try_clone().ok()?);
        let bound = listener.local_addr().ok()?;
        let is_wanted = bound.ip() == address.ip() && [0, bound.port()].contains(&address.port());
        let is_ready = is_wanted && listener.set_nonblocking(true).is_ok();
        is_ready.then_some(Bound { listener, address: bound })
    }
}

impl Bound {
    /// Returns the address on which it listens, with the port that the system chose if that was 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Serves what `source` has, from a thread of its own.
    pub fn start(self, source: Source) -> Result<Server, MetricsError> {
        self.serve(move || source.page())
    }

    fn serve<E: std::fmt::Display + 'static>(
        self,
        make: impl Fn() -> Result<String, E> + Send + Sync + 'static,
    ) -> Result<Server, MetricsError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(MetricsError::Thread)?;
        let address = self.address;
        let socket = OwnedFd::from(self.listener.try_clone().map_err(MetricsError::Thread)?);
        let listener = {
            let _entered = runtime.enter();
            TcpListener::from_std(self.listener).map_err(MetricsError::Thread)?
        };
        let (stop, stopped) = oneshot::channel();
        let body = move || {
            runtime.block_on(async {
                let accepting = tokio::spawn(accept(
                    listener,
                    Arc::new(Metrics { make, cache: Cache::default() }),
                ));
                let _ = stopped.await;
                accepting.abort();
            });
        };
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(body)
            .map_err(MetricsError::Thread)?;
        Ok(Server { address, socket, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn advice(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::AddrInUse => {
            "another process listens there, perhaps another butterflyd: stop it or choose another port"
        }
        io::ErrorKind::AddrNotAvailable => "no interface of this host has that address",
        io::ErrorKind::PermissionDenied => {
            "this user may not listen there: choose a port from 1024 on"
        }
        _ => "choose another address",
    }
}

/// State of the server.
struct Metrics<F> {
    make: F,
    cache: Cache,
}

async fn accept<E, F>(listener: TcpListener, metrics: Arc<Metrics<F>>)
where
    E: std::fmt::Display + 'static,
    F: Fn() -> Result<String, E> + Send + Sync + 'static,
{
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    let mut failing = false;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(why) => {
                // Descriptors are used up, most likely, and waiting costs nothing.
                if !std::mem::replace(&mut failing, true) {
                    warn!("cannot accept a scraper of metrics: {why}");
                }
                tokio::time::sleep(BREATH).await;
                continue;
            }
        };
        failing = false;
        open.retain(|connection| !connection.is_finished());
        if open.len() >= MOST_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        open.push_back(tokio::spawn(connection(stream, metrics.clone())).abort_handle());
    }
}

async fn connection<E, F>(stream: TcpStream, metrics: Arc<Metrics<F>>)
where
    E: std::fmt::Display + 'static,
    F: Fn() -> Result<String, E> + Send + Sync + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let response = metrics.answer(request.method(), request.uri().path());
        async move { Ok::<_, Infallible>(response) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_WITHIN)
        .max_buf_size(MOST_REQUEST)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // What a peer does wrong is its own business, and was answered if that was possible.
    let _ = tokio::time::timeout(DONE_WITHIN, serving).await;
}

impl<E: std::fmt::Display, F: Fn() -> Result<String, E>> Metrics<F> {
    fn answer(&self, method: &Method, path: &str) -> Response<String> {
        if !matches!(path, "/" | "/metrics") {
            return response(
                StatusCode::NOT_FOUND,
                "text/plain",
                "there is nothing here but /metrics\n",
            );
        }
        if !matches!(*method, Method::GET | Method::HEAD) {
            let mut refused = response(
                StatusCode::METHOD_NOT_ALLOWED,
                "text/plain",
                "metrics are only read: GET or HEAD\n",
            );
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        if path == "/" {
            return response(StatusCode::OK, "text/html; charset=utf-8", INDEX);
        }
        match self.cache.page(&self.make) {
            Ok(page) => response(StatusCode::OK, prometheus::TEXT_FORMAT, page),
            Err(why) => {
                error!(
                    "metrics cannot be written down because of a defect in this program, please report it: {why}"
                );
                response(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "text/plain",
                    "a defect: the log says which\n",
                )
            }
        }
    }
}

fn response(status: StatusCode, kind: &'static str, body: impl Into<String>) -> Response<String> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests;
