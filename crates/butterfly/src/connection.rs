//! The connection to the daemon, and the words for its failures.

use crate::failure::Failure;
use crate::settings::Settings;
use butterfly_api::MAX_FRAME;
use butterfly_api::client::{Client, ClientError};
use butterfly_api::proto::Messages;
use protobuf::Message;
use std::time::Duration;

/// A connection to the daemon that the settings name.
pub struct Connection {
    client: Client,
    endpoint: String,
}

impl Connection {
    /// Connects, in the background: a daemon that is not there shows as a reply that does not come in time, if a time-out is set,
    /// and else as waiting for ever.
    pub fn open(settings: &Settings) -> Result<Self, Failure> {
        let endpoint = settings.endpoint.clone();
        let timeout = (settings.timeout != 0).then(|| Duration::from_millis(settings.timeout.into()));
        match Client::connect(&endpoint, timeout) {
            Ok(client) => Ok(Self { client, endpoint }),
            Err(error) => Err(Failure::said(error.to_string())),
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
        self.client.call(request).map_err(|error| self.failure(error))
    }

    fn failure(&self, error: ClientError) -> Failure {
        Failure::said(match error {
            ClientError::SendTimeout => "Error, send timeout".to_owned(),
            ClientError::ReceiveTimeout => {
                format!("Error, receive timeout\nis butterflyd running, with the endpoint {}?", self.endpoint)
            }
            ClientError::Encode(error) => format!("Error while encoding input to protobuf\n{error}"),
            ClientError::Decode(_) => "Error while decoding response".to_owned(),
            other => format!("Error, {other}"),
        })
    }
}
