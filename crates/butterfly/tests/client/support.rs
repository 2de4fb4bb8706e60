//! Runs the client and plays the daemon.

use butterfly_api::proto::{Message, MessageV0, Messages, Request, Response};
use butterfly_api::{decode, text};
use protobuf::{Message as _, MessageField};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;

/// Time limit that only a hanging program exceeds.
const PATIENCE: Duration = Duration::from_secs(20);

/// One command line and everything it must do.
#[derive(Clone, Copy, Default)]
pub struct Row<'a> {
    /// The words after `butterfly`. `@` stands for `-e` and the endpoint of
    /// the scripted daemon, `''` for an empty word.
    pub line: &'a str,
    /// Requests of the client: one batch per exchange, a batch of `Request`s in text format.
    pub asks: &'a [&'a [&'a str]],
    /// Answers of the daemon to each batch, `Response`s in text format. If this is shorter than
    /// `asks`, the rest is plain success.
    pub answers: &'a [&'a [&'a str]],
    /// Standard output; `help: WORDS` stands for the help of those words. `short: WORDS` stands for
    /// nothing, and `err` in two lines for that command.
    pub out: &'a str,
    /// Standard error.
    pub err: &'a str,
    /// Exit code.
    pub code: i32,
}

impl Row<'_> {
    /// Runs the line and compares.
    #[track_caller]
    pub fn check(&self) {
        let daemon = Daemon::new();
        let mut client = daemon.start(self.line);
        for (place, asked) in self.asks.iter().enumerate() {
            let request = daemon.receive(self.line);
            let requests: Vec<String> = request.messages.iter().map(asked_for).collect();
            let expected: Vec<String> = asked.iter().map(|text| in_full(text)).collect();
            assert_eq!(requests, expected, "requests of `{}`", self.line);
            daemon.send(&match self.answers.get(place) {
                Some(responses) => answer(responses),
                None => answer(&vec![""; asked.len()]),
            });
        }
        let ended = client.end();
        daemon.assert_silent(self.line);
        let (out, err) = match (self.out.strip_prefix("help: "), self.out.strip_prefix("short: ")) {
            (Some(words), _) => (help(words), self.err.to_owned()),
            (None, Some(words)) => (String::new(), in_short(words, self.err)),
            (None, None) => (self.out.to_owned(), self.err.to_owned()),
        };
        assert_eq!(ended.out, out, "standard output of `{}`", self.line);
        assert_eq!(ended.err, err, "standard error of `{}`", self.line);
        assert_eq!(ended.code, Some(self.code), "exit code of `{}`", self.line);
    }
}

/// Returns the output of a command that the original does not have for a mistake that would be
/// reported like this.
fn in_short(command: &str, told: &str) -> String {
    let lines = told.lines().filter(|line| !line.starts_with("error in command: "));
    let lines: Vec<&str> = lines.map(|line| line.strip_prefix("help: ").unwrap_or(line)).collect();
    let text = lines.join("; ");
    format!("butterfly {command}: {text}\n`butterfly {command} help` shows how it is used\n")
}

/// Checks every row.
#[track_caller]
pub fn check(rows: &[Row]) {
    for row in rows {
        row.check();
    }
}

/// The help page of `words`; that of no words is the general help.
pub fn help(words: &str) -> String {
    let line = match words {
        "" => "--help".to_owned(),
        words => format!("{words} help"),
    };
    let ended = run(&line);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "`{line}`");
    let usage = format!("usage: butterfly {words}");
    assert!(ended.out.starts_with(usage.trim_end()), "`{line}` prints {}", ended.out);
    ended.out
}

/// Runs a line that needs no daemon.
pub fn run(line: &str) -> Ended {
    Daemon::new().start(line).end()
}

/// End of a client.
pub struct Ended {
    pub out: String,
    pub err: String,
    pub code: Option<i32>,
}

/// A running client, killed when it is dropped before its end.
pub struct Client {
    child: Option<Child>,
    line: String,
}

impl Client {
    /// Waits for the next line on its standard error.
    pub fn complaint(&mut self) -> String {
        let child = self.child.as_mut().expect("it has not ended");
        let (line, stderr) = next_line(child.stderr.take().expect("a pipe"));
        child.stderr = Some(stderr);
        line
    }

    /// Waits for the next line on its standard output, and returns it without its end.
    pub fn line(&mut self) -> String {
        let child = self.child.as_mut().expect("it has not ended");
        let (line, stdout) = next_line(child.stdout.take().expect("a pipe"));
        child.stdout = Some(stdout);
        line.trim_end_matches('\n').to_owned()
    }

    /// Waits for the client's end.
    pub fn end(&mut self) -> Ended {
        let child = self.child.take().expect("a client ends once");
        let pid = child.id();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || sender.send(child.wait_with_output()));
        let Ok(output) = receiver.recv_timeout(PATIENCE) else {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
            panic!("`{}` does not end", self.line);
        };
        let output = output.unwrap();
        Ended {
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
            code: output.status.code(),
        }
    }
}

/// Waits for a line, and takes no byte more.
fn next_line<R: Read + Send + 'static>(mut from: R) -> (String, R) {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while line.last() != Some(&b'\n') && from.read(&mut byte).is_ok_and(|count| count == 1) {
            line.extend(byte);
        }
        sender.send((line, from))
    });
    let (line, from) = receiver.recv_timeout(PATIENCE).expect("a line");
    (String::from_utf8(line).unwrap(), from)
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A REP socket in a directory of its own.
pub struct Daemon {
    context: zmq::Context,
    socket: zmq::Socket,
    pub directory: TempDir,
}

impl Daemon {
    pub fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let context = zmq::Context::new();
        let socket = context.socket(zmq::REP).unwrap();
        socket.set_rcvtimeo(PATIENCE.as_millis() as i32).unwrap();
        socket.set_linger(0).unwrap();
        let daemon = Self { context, socket, directory };
        daemon.socket.bind(&daemon.endpoint()).unwrap();
        daemon
    }

    pub fn endpoint(&self) -> String {
        format!("ipc://{}", self.path("api"))
    }

    /// Tells each connection that a client makes from now on.
    pub fn connections(&self) -> zmq::Socket {
        self.socket.monitor("inproc://connections", zmq::SocketEvent::ACCEPTED as i32).unwrap();
        let events = self.context.socket(zmq::PAIR).unwrap();
        events.set_rcvtimeo(PATIENCE.as_millis() as i32).unwrap();
        events.connect("inproc://connections").unwrap();
        events
    }

    /// The path of `name` in the daemon's directory.
    pub fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    /// Starts the client with the words of `line`, as in [`Row::line`].
    pub fn start(&self, line: &str) -> Client {
        self.start_with(line, &[])
    }

    /// The same, which reads `stdin`.
    pub fn start_on(&self, line: &str, stdin: Stdio) -> Client {
        let child = self.command(line).stdin(stdin).spawn().unwrap();
        Client { child: Some(child), line: line.to_owned() }
    }

    /// The same, with these variables in its environment.
    pub fn start_with(&self, line: &str, environment: &[(&str, &str)]) -> Client {
        let child = self.command(line).envs(environment.iter().copied()).spawn().unwrap();
        Client { child: Some(child), line: line.to_owned() }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_butterfly"));
        for word in line.split_whitespace() {
            match word {
                "@" => command.args(["-e", &self.endpoint()]),
                "''" => command.arg(""),
                word => command.arg(word),
            };
        }
        command.current_dir(self.directory.path());
        // Settings of this host and this user do not reach tests.
        command
            .env("BUTTERFLY_CONFIG", "/dev/null")
            .env_remove("BUTTERFLY_ENDPOINT")
            .env_remove("BUTTERFLY_STRICT")
            .env_remove("BUTTERFLY_KEY");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn receive(&self, line: &str) -> Messages {
        match self.socket.recv_bytes(0) {
            Ok(bytes) => decode(&bytes).unwrap(),
            Err(error) => panic!("`{line}` asks nothing: {error}"),
        }
    }

    pub fn send(&self, reply: &Messages) {
        self.send_bytes(&reply.write_to_bytes().unwrap());
    }

    pub fn send_bytes(&self, reply: &[u8]) {
        self.socket.send(reply, 0).unwrap();
    }

    /// After the client's end: it must not have asked anything else.
    pub fn assert_silent(&self, line: &str) {
        if let Ok(bytes) = self.socket.recv_bytes(zmq::DONTWAIT) {
            panic!("`{line}` also asks {:?}", decode::<Messages>(&bytes));
        }
    }
}

/// A batch of responses in text format; success where no status is given.
pub fn answer(responses: &[&str]) -> Messages {
    let messages = responses.iter().map(|text| {
        let text = match text.starts_with("status") {
            true => (*text).to_owned(),
            false => format!("status {{ status: true }} {text}"),
        };
        Message {
            revision: Some(6),
            message_0: MessageField::some(MessageV0 {
                response: MessageField::some(text::parse::<Response>(&text).unwrap()),
                ..MessageV0::default()
            }),
            ..Message::default()
        }
    });
    Messages { messages: messages.collect(), ..Messages::default() }
}

/// A refusal with this description.
#[macro_export]
macro_rules! refused {
    ($description:literal) => {
        concat!("status { status: false error { description: \"", $description, "\" } }")
    };
}

/// The request in `message`, in text format.
pub fn asked_for(message: &Message) -> String {
    assert_eq!(message.revision, Some(6));
    let payload = message.message_0.as_ref().expect("a payload");
    let request: &Request = payload.request.as_ref().expect("a request");
    text::print(request)
}

/// `request`, a `Request` in text format, as [`asked_for`] prints it.
pub fn in_full(request: &str) -> String {
    text::print(&text::parse::<Request>(request).unwrap())
}
