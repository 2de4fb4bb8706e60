//! Sockets to which clients and scrapers come. The holder has them, too, so that nobody else gets
//! their places while no daemon runs.

use super::tell::open_endpoint;
use crate::{
    config::{Config, encryption::Encryption},
    events::{Events, Kind, Note},
    holding::Holding,
    host::{
        answers,
        listen::{self, NotListening},
    },
    metrics,
};
use butterfly_api::server::Server;
use std::{net::SocketAddr, path::Path, time::Duration};
use tracing::{error, info, warn};

/// Attempts to listen for scrapers, and the pause between two.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(2);

/// Sockets that are listened on.
pub(super) struct Listening {
    pub(super) server: Server,
    pub(super) metrics: Option<metrics::Bound>,
    /// An endpoint of the API where other hosts may command the switch without a key.
    pub(super) open_endpoint: Option<String>,
    /// Places of those that were asked for where it does not listen.
    pub(super) missing: NotListening,
    encryption: Option<Encryption>,
}

impl Listening {
    /// Listens, with the sockets of a process before where they are what is wanted. All that is
    /// wanted, or none; but machines that wait for this process to go on wait for no endpoint: one
    /// that is refused is told, and tried again.
    pub(super) fn begin(
        config: &Config,
        holding: Option<&mut Holding>,
        events: &Events,
    ) -> Result<Listening, Box<dyn std::error::Error>> {
        let has_key = config.encryption.is_some();
        let (missing, encryption) = (NotListening::default(), config.encryption.clone());
        let Some(holding) = holding else {
            let server = Server::bind(&listen::resolved(&config.endpoints)?)?;
            let open_endpoint = open_endpoint(&server, has_key);
            let metrics = config.metrics.map(metrics::Server::bind).transpose()?;
            return Ok(Listening { server, metrics, open_endpoint, missing, encryption });
        };
        let goes_on = holding.term > 1;
        let mut endpoints = Vec::new();
        let mut has_all = true;
        for endpoint in &config.endpoints {
            match listen::resolved(std::slice::from_ref(endpoint)) {
                Ok(resolved) => endpoints.extend(resolved),
                Err(why) if goes_on => {
                    tell(events, &format!("{why}; it is tried again at the next start"));
                    missing.endpoint(endpoint);
                    has_all = false;
                }
                Err(why) => return Err(why.into()),
            }
        }
        let mut listeners = holding.take_listeners();
        let mut server = Server::take_over(&endpoints, &mut listeners.api)?;
        let metrics = config.metrics.zip(listeners.metrics.as_ref());
        let metrics = metrics.and_then(|(at, former)| metrics::Server::take_over(at, former));
        if metrics.is_some() {
            listeners.metrics = None;
        }
        if !has_all {
            // One of these is the endpoint's whose interface has no address now: it stays in the
            // holder, and nobody else gets it.
            listeners.api.clear();
        }
        // What is not wanted any more may be in the way.
        listeners.let_go(holding);
        for why in server.bind_others() {
            match goes_on {
                true => tell(events, &format!("{why}; it is tried again each second")),
                false => return Err(why.into()),
            }
        }
        server.not_listening().for_each(|asked| missing.endpoint(asked));
        let open_endpoint = open_endpoint(&server, has_key);
        let metrics = match (metrics, config.metrics) {
            (None, Some(at)) => match bind_metrics(at) {
                Err(why) if goes_on => {
                    tell(events, &format!("{why}; after that, SIGHUP has it tried again"));
                    missing.metrics(at);
                    None
                }
                bound => Some(bound?),
            },
            (metrics, _) => metrics,
        };
        let (keeper, told) = (holding.listeners(), events.clone());
        let still_missing = missing.clone();
        server.on_listening(move |it| {
            let text = format!("the API is on {} after all", it.bound);
            info!("{text}");
            still_missing.endpoint_is_there(it.asked);
            told.note(Note::new(Kind::NotListening, text));
            keeper.keep_api(it);
        });
        Ok(Listening { server, metrics, open_endpoint, missing, encryption })
    }

    /// Has the sockets kept for a successor.
    pub(super) fn keep(&self, holding: &Holding) {
        let keeper = holding.listeners();
        self.server.listening().for_each(|it| keeper.keep_api(it));
        // The holder removes them from now on.
        self.server.leave_files();
        if let Some(metrics) = &self.metrics {
            keeper.keep_metrics(metrics.address(), metrics.socket());
        }
        let directory = holding.lease().path().parent().unwrap_or(Path::new("."));
        let listening = self.server.endpoints();
        let endpoints = listening.iter().map(String::as_str).chain(self.server.wanted());
        let key = self.encryption.as_ref().map(Encryption::text);
        if let Err(why) =
            answers::have_written(directory, endpoints, key.as_ref().map(|it| it.as_str()))
        {
            let directory = directory.display();
            warn!(
                "no file in {directory} tells where this daemon answers: {why}; a reload finds it by the configuration file"
            );
        }
    }
}

/// Tells of what cannot be listened on.
fn tell(events: &Events, text: &str) {
    error!(EVENT = Kind::NotListening.name(), "{text}");
    events.note(Note::new(Kind::NotListening, text.to_owned()));
}

/// Listens for scrapers. A socket that the holder lets go may take a moment.
fn bind_metrics(at: SocketAddr) -> Result<metrics::Bound, metrics::MetricsError> {
    for _ in 0..TRIES {
        if let Ok(bound) = metrics::Server::bind(at) {
            return Ok(bound);
        }
        std::thread::sleep(PAUSE);
    }
    metrics::Server::bind(at)
}
