//! The connection to the daemon, and the words for its failures.

use crate::daemon::diagnosis::{absence, diagnose};
use crate::daemon::encryption;
use crate::daemon::settings::Settings;
use crate::failure::Failure;
use butterfly_api::client::{Client, ClientError};
use butterfly_api::proto::Messages;
use butterfly_api::{MAX_FRAME, crypt};
use protobuf::Message;
use std::io::Write;
use std::time::Duration;

/// Time after which an operator who waits for ever learns why.
const PATIENCE: Duration = Duration::from_secs(2);

/// A daemon that is there has answered most requests by then. Else it is looked whether there is
/// one.
const PROMPT: Duration = Duration::from_millis(100);

/// The longest request, with room for what encryption adds.
const LONGEST: usize = MAX_FRAME - crypt::OVERHEAD;

/// Limit of the wait for a reply.
#[derive(Clone, Copy)]
enum Waiting {
    /// For ever, with a word about it.
    ForEver,
    /// Until the time-out.
    ToTheEnd,
    /// Until the time-out, or until it is clear that no daemon listens.
    WhileListened,
}

/// A connection to the daemon that the settings name.
pub struct Connection {
    client: Client,
    endpoint: String,
    waiting: Waiting,
}

impl Connection {
    /// Connects, in the background: a daemon that is not there shows as a reply that does not come
    /// in time, if the settings say a time-out. Where they say none, it is `patience`, and a daemon
    /// that is not there shows at once; without `patience`, as waiting for ever.
    pub fn open(settings: &Settings, patience: Option<Duration>) -> Result<Self, Failure> {
        let endpoint = settings.endpoint.clone();
        let given = settings.timeout.is_some();
        let timeout = if given { settings.limit() } else { patience };
        let waiting = match timeout {
            None => Waiting::ForEver,
            Some(_) if given => Waiting::ToTheEnd,
            Some(_) => Waiting::WhileListened,
        };
        Ok(Self { client: client(settings, timeout)?, endpoint, waiting })
    }

    /// Opens as [`Self::open`] does, for questions that are worth an answer within `patience` or
    /// none.
    pub fn open_within(settings: &Settings, patience: Duration) -> Result<Self, Failure> {
        let client = client(settings, Some(patience))?;
        Ok(Self { client, endpoint: settings.endpoint.clone(), waiting: Waiting::ToTheEnd })
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
        if size > LONGEST as u64 {
            return Err(Failure::said(format!(
                "the request has {size} bytes, a daemon takes {LONGEST}; send it in several parts"
            )));
        }
        let mut absent = None;
        let reply = match self.waiting {
            Waiting::ToTheEnd => self.client.call(request),
            Waiting::ForEver => self.client.call_patiently(request, PATIENCE, || {
                // With standard error closed there is no place left for a message.
                let _ = writeln!(
                    std::io::stderr(),
                    "no reply yet: {}\nstill waiting; Ctrl-C ends that, and -t MS limits it",
                    diagnose(&self.endpoint)
                );
                true
            }),
            Waiting::WhileListened => self.client.call_patiently(request, PROMPT, || {
                absent = absence(&self.endpoint);
                absent.is_none()
            }),
        };
        if let Some(why) = absent {
            return Err(Failure::said(format!("no daemon: {why}")));
        }
        reply.map_err(|error| self.failure(error))
    }

    fn failure(&self, error: ClientError) -> Failure {
        Failure::said(match error {
            ClientError::SendTimeout => "Error, send timeout".to_owned(),
            ClientError::ReceiveTimeout => {
                format!("Error, receive timeout\n{}", diagnose(&self.endpoint))
            }
            ClientError::Encode(error) => {
                format!("Error while encoding input to protobuf\n{error}")
            }
            ClientError::Decode(_) => "Error while decoding response".to_owned(),
            ClientError::Encryption(error) => encryption::told(&error),
            other => format!("Error, {other}"),
        })
    }
}

/// Makes a client. Without a readable key it connects nowhere: a request that was to be encrypted
/// is not sent in clear text.
fn client(settings: &Settings, timeout: Option<Duration>) -> Result<Client, Failure> {
    let cipher = encryption::cipher(settings)?;
    let client = Client::connect(&settings.endpoint, timeout)
        .map_err(|error| Failure::said(error.to_string()))?;
    Ok(match cipher {
        Some(cipher) => client.encrypted(cipher),
        None => client,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfly_api::proto::Message as Envelope;

    /// Prints failures that no daemon and no command can cause, in the words that they would have.
    #[test]
    fn failures_that_hardly_come_have_their_words() {
        let settings = Settings { endpoint: "ipc:///does/not/exist".into(), ..Settings::default() };
        let connection = Connection::open(&settings, None).unwrap();
        let told = |error| match connection.failure(error) {
            Failure::Said(text) => text,
            other => panic!("{other:?}"),
        };
        assert_eq!(told(ClientError::SendTimeout), "Error, send timeout");
        let lacking = Envelope::default().write_to_bytes().unwrap_err();
        let text = told(ClientError::Encode(lacking));
        assert!(text.starts_with("Error while encoding input to protobuf\n"), "{text}");
    }
}
