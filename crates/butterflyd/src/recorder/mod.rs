//! Traces and captures: the consumers of packets, and their packets.
//!
//! Requests are short: they tell the workers what to copy and a thread of its own ([`thread`]) what
//! to do with it.

mod describe;
mod encode;
mod file;
mod filter;
mod live;
mod thread;

pub use live::Told;

use butterfly_api::{Failure, proto::PacketTrace};
use butterfly_datapath::{TapSink, TapWhat, Taps};
use butterfly_model::{Nic, TraceOptions};
use describe::HEADERS;
use encode::Encoder;
use file::{FileStats, SNAP, TraceFile};
use filter::Filter;
use live::Live;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::Ordering::Relaxed,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::JoinHandle,
    time::Duration,
};
use thread::{Chosen, Consumer, Order};

/// Traces and captures of clients at once.
const LIVE: usize = 8;
/// Packets of a trace per second, unless the client wants others; and at most.
pub const RATE: u32 = 1000;
const MAX_RATE: u32 = 100_000;
/// Time that a request waits for packets under way to be written.
const PATIENCE: Duration = Duration::from_millis(100);

/// Packets of a vnic, or of the uplink, that are written into a file.
struct Tape {
    path: PathBuf,
    options: TraceOptions,
    /// None if it could not be opened.
    file: Option<Arc<Mutex<TraceFile>>>,
    stats: Arc<FileStats>,
    on: Option<Arc<TapSink>>,
    /// Packets lost before it was switched off.
    lost: u64,
}

impl Tape {
    fn lost(&self) -> u64 {
        self.lost + self.on.as_ref().map_or(0, |sink| sink.lost()) + self.stats.lost.load(Relaxed)
    }
}

/// A change of a vnic's tape that was prepared: the tape to use from now on, with its filter.
pub enum Prepared {
    /// No change.
    Nothing,
    Off,
    New(Box<NewTape>, Option<Filter>),
    /// The same file goes on.
    Same(TraceOptions, Option<Filter>),
    /// No file, and the reason.
    Without(PathBuf, TraceOptions, String),
}

pub struct NewTape {
    path: PathBuf,
    options: TraceOptions,
    file: TraceFile,
    stats: Arc<FileStats>,
}

/// A trace or capture of a client.
struct Watched {
    live: Arc<Live>,
    /// Signal that all is through, once it was stopped.
    through: Option<Receiver<()>>,
}

/// The recorder of a host.
pub struct Recorder {
    /// The taps; none in tests of requests.
    taps: Option<Taps>,
    chosen: Arc<Chosen>,
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
    next: u32,
    tapes: BTreeMap<String, Tape>,
    live: BTreeMap<u32, Watched>,
    /// Vnics are recorded unless they say otherwise.
    by_default: bool,
}

/// Stands for the uplink among the tapes: no vnic has an empty id.
const UPLINK: &str = "";

impl Recorder {
    /// Starts the thread.
    pub fn start(taps: Taps) -> std::io::Result<Recorder> {
        let (sender, receiver) = mpsc::channel();
        let chosen = Arc::new(Chosen::default());
        let mut recorder = Recorder::idle();
        let (own, list) = (taps.clone(), chosen.clone());
        let body = move || thread::run(&own, &receiver, &list);
        recorder.thread = Some(std::thread::Builder::new().name("recorder".into()).spawn(body)?);
        recorder.orders = Some(sender);
        recorder.chosen = chosen;
        recorder.taps = Some(taps);
        Ok(recorder)
    }

    /// Returns a recorder that gets no packets.
    pub fn idle() -> Recorder {
        Recorder {
            taps: None,
            chosen: Arc::default(),
            orders: None,
            thread: None,
            next: 1,
            tapes: BTreeMap::new(),
            live: BTreeMap::new(),
            by_default: false,
        }
    }

    /// Records the uplink, and vnics unless they say otherwise: the server's `-t`. Fails if the
    /// uplink's packets have no file; vnics are recorded all the same.
    pub fn record_all(&mut self) -> Result<(), Failure> {
        self.by_default = true;
        let path = PathBuf::from(format!("/tmp/butterfly-{}-main.pcap", std::process::id()));
        let new = self.open(UPLINK, "uplink", path, TraceOptions::default())?;
        self.commit(UPLINK, Prepared::New(Box::new(new), None));
        Ok(())
    }

    /// True if vnics are recorded unless they say otherwise.
    pub fn by_default(&self) -> bool {
        self.by_default
    }

    /// Returns the default path of a vnic's packets.
    fn default_path(id: &str) -> PathBuf {
        PathBuf::from(format!("/tmp/butterfly-{}-{id}.pcap", std::process::id()))
    }

    /// Opens what a vnic's declaration needs, or goes without: no VM is cut off because a file
    /// cannot be written. Refuses only a filter that cannot be meant. Nothing is recorded yet.
    pub fn prepare_or_go_without(&self, nic: &Nic) -> Result<Prepared, Failure> {
        Ok(self.attempt(nic)?.unwrap_or_else(|failure| {
            let why = failure.description.unwrap_or_default();
            Prepared::Without(Self::path(nic), nic.trace_options.clone(), why)
        }))
    }

    fn path(nic: &Nic) -> PathBuf {
        nic.packet_trace_path
            .as_ref()
            .map_or_else(|| Self::default_path(nic.id.as_str()), PathBuf::from)
    }

    /// Checks whether a vnic's declaration can be meant; whether its file can be opened is not
    /// tried.
    pub fn check(&self, nic: &Nic) -> Result<(), Failure> {
        match nic.packet_trace {
            true => Filter::compile(&nic.trace_options.filter).map(drop),
            false => Ok(()),
        }
    }

    /// Opens what a vnic's declaration needs. Nothing is recorded yet; on an error nothing has
    /// changed.
    pub fn prepare(&self, nic: &Nic) -> Result<Prepared, Failure> {
        self.attempt(nic)?
    }

    /// Fails if what is declared cannot be meant; there is a failure within if only the file cannot
    /// be opened.
    fn attempt(&self, nic: &Nic) -> Result<Result<Prepared, Failure>, Failure> {
        let id = nic.id.as_str();
        if !nic.packet_trace {
            return Ok(Ok(Prepared::Off));
        }
        let path = Self::path(nic);
        let options = nic.trace_options.clone();
        let old = self.tapes.get(id).filter(|tape| tape.path == path && tape.file.is_some());
        if old.is_some_and(|tape| tape.on.is_some() && tape.options == options) {
            return Ok(Ok(Prepared::Nothing));
        }
        let filter = Filter::compile(&options.filter)?;
        Ok(match old {
            // Only the filter may change in the middle of a file.
            Some(tape)
                if TraceOptions { filter: options.filter.clone(), ..tape.options.clone() }
                    == options =>
            {
                Ok(Prepared::Same(options, filter))
            }
            _ => self.open(id, id, path, options).map(|new| Prepared::New(Box::new(new), filter)),
        })
    }

    fn open(
        &self,
        id: &str,
        interface: &str,
        path: PathBuf,
        options: TraceOptions,
    ) -> Result<NewTape, Failure> {
        let other = self
            .tapes
            .iter()
            .find(|(of, tape)| *of != id && tape.path == path && tape.on.is_some());
        if let Some((other, _)) = other {
            let whose =
                if other == UPLINK { "the uplink".to_owned() } else { format!("nic {other}") };
            let text = format!(
                "packet trace path {} is refused: packets of {whose} are written there",
                path.display()
            );
            return Err(Failure::new(text).with_help("name another path"));
        }
        let stats = Arc::new(FileStats::default());
        let file = TraceFile::create(Path::new(&path), interface, &options, stats.clone())
            .map_err(|why| {
                Failure::new(why).with_help(
                    "the path has to lead to a new file, or to one of the daemon's own, \
                     in a directory that exists",
                )
            })?;
        Ok(NewTape { path, options, file, stats })
    }

    /// Carries out what was prepared for a vnic that is there.
    pub fn commit(&mut self, id: &str, prepared: Prepared) {
        match prepared {
            Prepared::Nothing => self.refresh(),
            Prepared::Off => {
                self.switch_off(id);
                self.refresh();
            }
            Prepared::New(new, filter) => {
                self.switch_off(id);
                let NewTape { path, options, mut file, stats } = *new;
                file.begin();
                let tape = Tape {
                    path,
                    options,
                    file: Some(Arc::new(Mutex::new(file))),
                    stats,
                    on: None,
                    lost: 0,
                };
                self.tapes.insert(id.to_owned(), tape);
                self.switch_on(id, filter);
            }
            Prepared::Without(path, options, why) => {
                self.switch_off(id);
                let stats = Arc::new(FileStats::without(why));
                self.tapes.insert(
                    id.to_owned(),
                    Tape { path, options, file: None, stats, on: None, lost: 0 },
                );
                self.refresh();
            }
            Prepared::Same(options, filter) => {
                self.switch_off(id);
                if let Some(tape) = self.tapes.get_mut(id) {
                    tape.options = options;
                }
                self.switch_on(id, filter);
            }
        }
    }

    fn switch_on(&mut self, id: &str, filter: Option<Filter>) {
        let what = if id == UPLINK { TapWhat::Uplink } else { TapWhat::Nic(id.to_owned()) };
        let number = self.number();
        let Some(tape) = self.tapes.get_mut(id) else { return };
        let Some(file) = tape.file.clone() else { return };
        let sink = Arc::new(TapSink::new(number, what, 1, file::snap(&tape.options).max(HEADERS)));
        tape.on = Some(sink.clone());
        let consumer = Consumer::File(file);
        self.begin(sink, consumer, filter);
    }

    /// Ends a recording. Earlier packets are in the file when this returns, if its disk is not
    /// slow.
    fn switch_off(&mut self, id: &str) {
        let Some(sink) = self.tapes.get_mut(id).and_then(|tape| tape.on.take()) else { return };
        let _ = self.end(&sink).recv_timeout(PATIENCE);
        if let Some(tape) = self.tapes.get_mut(id) {
            tape.lost += sink.lost();
        }
    }

    /// Ends the recording of a vnic that was deleted.
    pub fn forget(&mut self, id: &str) {
        self.switch_off(id);
        self.tapes.remove(id);
        self.refresh();
    }

    /// Returns why a vnic that is to be recorded has no file.
    pub fn without(&self, id: &str) -> Option<String> {
        self.tapes.get(id).filter(|tape| tape.file.is_none()).and_then(|tape| tape.stats.trouble())
    }

    /// A vnic's file, if there ever was one.
    pub fn status(&self, id: &str) -> Option<PacketTrace> {
        let tape = self.tapes.get(id)?;
        Some(PacketTrace {
            on: Some(tape.on.is_some()),
            path: Some(tape.path.display().to_string()),
            packets: Some(tape.stats.packets.load(Relaxed)),
            bytes: Some(tape.stats.bytes.load(Relaxed)),
            lost: Some(tape.lost()),
            trouble: tape.stats.trouble(),
            ..PacketTrace::default()
        })
    }

    /// Begins a trace. Returns its number.
    pub fn trace(
        &mut self,
        what: TapWhat,
        filter: &str,
        sample: u32,
        rate: u32,
    ) -> Result<u32, Failure> {
        if sample == 0 || rate == 0 || rate > MAX_RATE {
            return Err(Failure::new(format!(
                "a trace looks at one packet in 1 or more, and tells 1 to {MAX_RATE} per second"
            )));
        }
        self.watch(what, filter, sample, HEADERS, |sink| Ok(Live::trace(sink, rate)))
    }

    /// Begins a capture. Returns its number.
    pub fn capture(&mut self, what: TapWhat, filter: &str, snap: u32) -> Result<u32, Failure> {
        if snap == 0 || snap > SNAP {
            return Err(Failure::new(format!("snap length {snap} is out of range: 1 to {SNAP}")));
        }
        let name = match &what {
            TapWhat::Nic(id) => id.clone(),
            TapWhat::Vni(vni) => format!("vni-{vni}"),
            TapWhat::All => "all".into(),
            TapWhat::Uplink => "uplink".into(),
        };
        self.watch(what, filter, 1, snap, |sink| {
            let encoder =
                Encoder::pcapng(snap, &name).map_err(|error| Failure::new(error.to_string()))?;
            Ok(Live::capture(sink, encoder))
        })
    }

    fn watch(
        &mut self,
        what: TapWhat,
        filter: &str,
        every: u32,
        snap: u32,
        make: impl FnOnce(Arc<TapSink>) -> Result<Live, Failure>,
    ) -> Result<u32, Failure> {
        self.live.retain(|_, watched| !watched.live.is_abandoned());
        if self.live.len() >= LIVE {
            return Err(Failure::new(format!("{LIVE} traces and captures are under way already"))
                .with_help(
                    "end one, or wait: one that nobody reads ends by itself after 10 seconds",
                ));
        }
        let filter = Filter::compile(filter)?;
        let number = self.number();
        // A filter sees as much as it needs, however little is kept.
        let sink = Arc::new(TapSink::new(number, what, every, snap.max(HEADERS)));
        let live = Arc::new(make(sink.clone())?);
        self.live.insert(number, Watched { live: live.clone(), through: None });
        self.begin(sink, Consumer::Live(live), filter);
        Ok(number)
    }

    /// Returns the packets that a trace, or a capture, has seen since the last time. If it is to
    /// `end`, and there is nothing more, it is forgotten.
    pub fn read(&mut self, number: u64, is_trace: bool, end: bool) -> Result<Told, Failure> {
        let meant =
            |watched: &Watched| watched.live.is_trace() == is_trace && !watched.live.is_abandoned();
        let known =
            u32::try_from(number).ok().filter(|number| self.live.get(number).is_some_and(meant));
        let known = known.and_then(|number| Some((number, self.live.remove(&number)?)));
        let Some((number, mut watched)) = known else {
            let what = if is_trace { "trace" } else { "capture" };
            return Err(Failure::new(format!("there is no {what} {number}"))
                .with_help("it was ended, or nobody read it for 10 seconds: begin another one"));
        };
        if end && watched.through.is_none() {
            watched.through = Some(self.end(&watched.live.sink));
        }
        let under_way = watched.through.as_ref().is_some_and(is_under_way);
        let told = watched.live.tell();
        let told = Told { more: end && (under_way || told.more), ..told };
        if !end || told.more {
            self.live.insert(number, watched);
        }
        Ok(told)
    }

    /// Returns whether the thread gets on: it has written what came until now, in that time.
    pub fn gets_on(&mut self, within: Duration) -> bool {
        let (done, through) = mpsc::sync_channel(1);
        // The end of a sink that there is not.
        let asked = Order::End(self.number(), done);
        match &self.orders {
            Some(orders) => orders.send(asked).is_err() || through.recv_timeout(within).is_ok(),
            None => true,
        }
    }

    /// Looks for the watched vnics again, as vnics came or went.
    pub fn refresh(&self) {
        self.choose(|_| {});
    }

    fn number(&mut self) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        number
    }

    fn begin(&self, sink: Arc<TapSink>, consumer: Consumer, filter: Option<Filter>) {
        if let Some(orders) = &self.orders {
            // The thread hears of it before the workers do: every packet has a consumer.
            let _ = orders.send(Order::Begin(sink.number, consumer, filter));
        }
        self.choose(|chosen| chosen.push(sink));
    }

    /// Makes the workers stop copying for a sink. The receiver gets a message when the packets
    /// under way are through.
    fn end(&self, sink: &Arc<TapSink>) -> Receiver<()> {
        self.choose(|chosen| chosen.retain(|other| other.number != sink.number));
        let (done, through) = mpsc::sync_channel(1);
        if let Some(orders) = &self.orders {
            let _ = orders.send(Order::End(sink.number, done));
        }
        through
    }

    /// Changes what the workers copy, if they copy anything or are to.
    fn choose(&self, change: impl FnOnce(&mut Vec<Arc<TapSink>>)) {
        let mut chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = chosen.is_empty();
        change(&mut chosen);
        if let Some(taps) = &self.taps
            && !(before && chosen.is_empty())
        {
            taps.select(&chosen);
        }
    }
}

/// True if something is not through yet, after a moment.
fn is_under_way(through: &Receiver<()>) -> bool {
    // After its one message the sender is gone, so the result is an error of another kind.
    through.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout)
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.choose(Vec::clear);
        // Without a sender of orders the thread ends, when it has taken what is left.
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
