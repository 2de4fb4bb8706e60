//! The connection to the daemon, and the words for its failures.

use crate::diagnosis::diagnose;
use crate::failure::Failure;
use crate::settings::Settings;
use butterfly_api::MAX_FRAME;
use butterfly_api::client::{Client, ClientError};
use butterfly_api::proto::Messages;
use protobuf::Message;
use std::io::Write;
use std::time::Duration;

/// Who waits for ever is told why after this time.
const PATIENCE: Duration = Duration::from_secs(2);

/// A connection to the daemon that the settings name.
pub struct Connection {
    client: Client,
    endpoint: String,
    waits_for_ever: bool,
}

impl Connection {
    /// Connects, in the background: a daemon that is not there shows as a reply that does not come in time, if a time-out is set,
    /// and else as waiting for ever.
    pub fn open(settings: &Settings) -> Result<Self, Failure> {
        let endpoint = settings.endpoint.clone();
        let timeout = (settings.timeout != 0).then(|| Duration::from_millis(settings.timeout.into()));
        match Client::connect(&endpoint, timeout) {
            Ok(client) => Ok(Self { client, endpoint, waits_for_ever: timeout.is_none() }),
            Err(error) => Err(Failure::said(error.to_string())),
        }
    }

    /// As [`Self::open`], for questions that are worth an answer within `patience` or none.
    pub fn open_within(settings: &Settings, patience: Duration) -> Result<Self, Failure> {
        let endpoint = settings.endpoint.clone();
        let client = Client::connect(&endpoint, Some(patience)).map_err(|error| Failure::said(error.to_string()))?;
        Ok(Self { client, endpoint, waits_for_ever: false })
    }

    /// Sends `request`; the reply, if one came in time.
    pub fn exchange_in_time(&self, request: &Messages) -> Result<Option<Messages>, Failure> {
        match self.client.call(request) {
            Ok(reply) => Ok(Some(reply)),
            Err(ClientError::SendTimeout | ClientError::ReceiveTimeout) => Ok(None),
            Err(error) => Err(self.failure(error)),
        }
    }

    /// Sends `request` and waits for the reply.
    pub fn exchange(&self, request: &Messages) -> Result<Messages, Failure> {
        let size = request.compute_size();
        // The daemon would hang up without a word.
        if size > MAX_FRAME as u64 {
            return Err(Failure::said(format!(
                "the request has {size} bytes, a daemon takes {MAX_FRAME}; send it in several parts"
            )));
        }
        let reply = match self.waits_for_ever {
            false => self.client.call(request),
            true => self.client.call_patiently(request, PATIENCE, || {
                // Nobody is left to tell when standard error is closed.
                let _ = writeln!(
                    std::io::stderr(),
                    "no reply yet: {}\nstill waiting; Ctrl-C ends that, and -t MS limits it",
                    diagnose(&self.endpoint)
                );
            }),
        };
        reply.map_err(|error| self.failure(error))
    }

    fn failure(&self, error: ClientError) -> Failure {
        Failure::said(match error {
            ClientError::SendTimeout => "Error, send timeout".to_owned(),
            ClientError::ReceiveTimeout => {
                format!("Error, receive timeout\n{}", diagnose(&self.endpoint))
            }
            ClientError::Encode(error) => format!("Error while encoding input to protobuf\n{error}"),
            ClientError::Decode(_) => "Error while decoding response".to_owned(),
            other => format!("Error, {other}"),
        })
    }
}
