//! One command's conversation with the daemon.

use crate::daemon::connection::Connection;
use crate::daemon::reply;
use crate::daemon::settings::Settings;
use crate::failure::Failure;
use crate::line::reader::Arguments;
use crate::text::output::Output;
use crate::text::table::safe;
use butterfly_api::proto::{Message, MessageV0, Messages, Request, Response};
use butterfly_api::{REVISION, text};
use protobuf::MessageField;
use serde_json::Value;
use std::fmt::Display;
use std::time::Duration;

const RULER: &str = "#########################";

/// Means of a command: the daemon and the output.
pub struct Session<'a> {
    settings: &'a Settings,
    output: &'a mut Output,
    connection: Option<Connection>,
    /// The one that does not wait.
    hasty: Option<Connection>,
    verbose_aside: bool,
    /// Limit of the wait for a reply, without an option for it; none means for ever.
    patience: Option<Duration>,
    /// A change that succeeded was probably not meant.
    doubtful: bool,
}

impl<'a> Session<'a> {
    /// A session that connects when the first request is made. It waits for each reply as long as
    /// the settings say, else for `patience`.
    pub fn new(settings: &'a Settings, output: &'a mut Output, patience: Option<Duration>) -> Self {
        Self {
            settings,
            output,
            connection: None,
            hasty: None,
            verbose_aside: false,
            patience,
            doubtful: false,
        }
    }

    /// Sets the limit of the wait for a reply, without an option for it.
    pub fn wait_for(&mut self, patience: Duration) {
        self.patience = Some(patience);
    }

    /// Prints `text` as it is.
    pub fn print(&mut self, text: impl Display) -> Result<(), Failure> {
        Ok(self.output.print(text)?)
    }

    /// Prints `line` and a newline.
    pub fn line(&mut self, line: impl Display) -> Result<(), Failure> {
        Ok(self.output.line(line)?)
    }

    /// True if a person sees the output as it is printed.
    pub fn is_terminal(&self) -> bool {
        self.output.is_terminal()
    }

    /// Prints an object for programs.
    pub fn json(&mut self, object: &Value) -> Result<(), Failure> {
        self.line(format_args!("{object:#}"))
    }

    /// True if the output is to be for programs.
    pub fn wants_json(&mut self, arguments: &Arguments) -> bool {
        let json = arguments.has("json");
        if json {
            self.output_is_for_programs();
        }
        json
    }

    /// Prints bytes as they are, at once.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.output.bytes(bytes)?;
        self.flush()
    }

    /// Hands everything printed so far to the system, for commands that go on for long.
    pub fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.output.flush()?)
    }

    /// Says something beside the output.
    pub fn remark(&mut self, text: &str) {
        self.output.complain(text);
    }

    /// Says that something on the command line does nothing. With `--strict` it is a failure
    /// instead: nothing may have been sent yet.
    pub fn ignored(&mut self, what: &str) -> Result<(), Failure> {
        match self.settings.strict {
            true => Err(Failure::usage(format!(
                "{what}
nothing was sent"
            ))),
            false => {
                self.output.ignored(what);
                Ok(())
            }
        }
    }

    /// True if the results of a change are to be looked at: by a person, or with `--strict`.
    pub fn takes_notes(&self) -> bool {
        self.is_terminal() || self.settings.strict
    }

    /// Says something of a change that succeeded.
    pub fn note(&mut self, text: &str) {
        self.output.complain(&format!("note: {}", safe(text)));
    }

    /// Says why a change that succeeded was probably not meant.
    pub fn doubt(&mut self, text: &str) {
        self.doubtful = true;
        self.note(text);
    }

    /// True if there was such a change.
    pub fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// Standard output is for programs: `--verbose` goes to standard error.
    pub fn output_is_for_programs(&mut self) {
        self.verbose_aside = true;
    }

    /// Makes one request and returns its successful response.
    pub fn ask(&mut self, request: Request) -> Result<Response, Failure> {
        let mut responses = self.ask_all(vec![request])?;
        responses.pop().ok_or_else(|| Failure::said("error: no message in response"))
    }

    /// Makes one request of another daemon.
    pub fn ask_at(&mut self, endpoint: &str, request: Request) -> Result<Response, Failure> {
        let settings = Settings { endpoint: endpoint.to_owned(), ..self.settings.clone() };
        self.with(&settings).ask(request)
    }

    /// A conversation of its own, with other settings.
    pub fn with<'b>(&'b mut self, settings: &'b Settings) -> Session<'b> {
        Session {
            verbose_aside: self.verbose_aside,
            ..Session::new(settings, self.output, self.patience)
        }
    }

    /// Returns the settings of the global options.
    pub fn settings(&self) -> &'a Settings {
        self.settings
    }

    /// Makes one request, again and again maybe. Returns the successful response, or none if no
    /// reply came in time. The limit is that of `--timeout`, after which the command gives up, or
    /// `patience`.
    pub fn ask_in_time(
        &mut self,
        request: Request,
        patience: Duration,
    ) -> Result<Option<Response>, Failure> {
        let limit = self.settings.limit();
        let connection = match self.hasty.take() {
            Some(connection) => connection,
            None => Connection::open_within(self.settings, limit.unwrap_or(patience))?,
        };
        let batch = Messages { messages: vec![message(request, None)], ..Messages::default() };
        self.show_request(&batch)?;
        let Some(reply) = connection.exchange_in_time(&batch)? else {
            // The next one may be another daemon's.
            return if limit.is_some() {
                Err(Failure::said("Error, receive timeout"))
            } else {
                Ok(None)
            };
        };
        self.hasty = Some(connection);
        self.show_reply(&reply)?;
        Ok(reply::responses(reply::messages(reply)?)?.pop())
    }

    /// Tells the person at the keyboard something that is no output.
    pub fn complain(&mut self, text: &str) {
        self.output.complain(text);
    }

    /// Makes several requests in one batch. Returns as many responses, in the
    /// order of the requests, if all succeeded; else every refusal.
    pub fn ask_all(&mut self, requests: Vec<Request>) -> Result<Vec<Response>, Failure> {
        let messages = requests.into_iter().map(|request| message(request, None)).collect();
        self.exchange(messages)
    }

    /// Makes several requests in one batch. Returns as many answers, in the order of the requests;
    /// none for those that were refused.
    pub fn ask_each(&mut self, requests: Vec<Request>) -> Result<Vec<Option<Response>>, Failure> {
        let messages = requests.into_iter().map(|request| message(request, None)).collect();
        let replies = reply::messages(self.send(&Messages { messages, ..Messages::default() })?)?;
        Ok(replies.into_iter().map(|reply| reply::response(reply).ok()).collect())
    }

    /// Sends `messages` in one batch and returns a successful response for
    /// each; else every refusal.
    pub fn exchange(&mut self, messages: Vec<Message>) -> Result<Vec<Response>, Failure> {
        let expected = messages.len();
        let batch = Messages { messages, ..Messages::default() };
        let replies = reply::messages(self.send(&batch)?)?;
        let answered = replies.len();
        let responses = reply::responses(replies)?;
        if answered != expected {
            return Err(Failure::said(format!(
                "error: {expected} requests were sent, {answered} were answered"
            )));
        }
        Ok(responses)
    }

    /// Sends `request` and returns the reply as it came.
    pub fn send(&mut self, request: &Messages) -> Result<Messages, Failure> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(self.settings, self.patience)?,
        };
        self.show_request(request)?;
        self.output.flush()?;
        let reply = connection.exchange(request)?;
        self.connection = Some(connection);
        self.show_reply(&reply)?;
        Ok(reply)
    }

    fn show_request(&mut self, request: &Messages) -> Result<(), Failure> {
        self.show("# Message to be sent:", request)?;
        match self.settings.verbose && self.settings.key.is_some() {
            true => self.aside("Request is encrypted\n"),
            false => Ok(()),
        }
    }

    fn show_reply(&mut self, reply: &Messages) -> Result<(), Failure> {
        if self.settings.verbose {
            // With a key, nothing else is taken.
            self.aside(match self.settings.key.is_some() || reply.encrypted.is_some() {
                true => "Received encrypted response\n",
                false => "Received clear response\n",
            })?;
        }
        self.show("# Received message:", reply)
    }

    fn show(&mut self, heading: &str, messages: &Messages) -> Result<(), Failure> {
        if self.settings.verbose {
            let content = text::print(messages);
            self.aside(&format!("{RULER}\n{heading}\n{content}{RULER}\n"))?;
        }
        Ok(())
    }

    fn aside(&mut self, text: &str) -> Result<(), Failure> {
        if self.verbose_aside {
            self.output.complain(text.trim_end_matches('\n'));
            return Ok(());
        }
        self.print(text)
    }
}

/// Wraps `request` into a message of the current revision.
pub fn message(request: Request, id: Option<&str>) -> Message {
    Message {
        revision: Some(REVISION),
        message_0: MessageField::some(MessageV0 {
            request: MessageField::some(request),
            message_id: id.map(str::to_owned),
            ..MessageV0::default()
        }),
        ..Message::default()
    }
}
