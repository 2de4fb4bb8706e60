//! An uplink that outlasts the process: its parts, which another process keeps meanwhile, and how a
//! successor goes on with them.
//!
//! The successor puts its own program in the place of the one that is attached, at once and for
//! good: so neither the program nor its map has to be kept or believed, and no frame goes to the
//! host's stack meanwhile.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use super::{
    Mode, Xdp, XdpConfig, bpf,
    bpf::{Hook, Link},
    bpf_failed, chunk, program,
    queue::{self, Queue, QueueConfig},
    queues,
    record::Record,
};
use crate::{
    Error,
    kernel::{Interface, Kernel},
};

/// Beginning of the names of all parts.
pub const PARTS: &str = "xdp:";
const LINK: &str = "xdp:link";

fn socket_name(queue: u32) -> String {
    format!("{PARTS}socket:{queue}")
}

fn memory_name(queue: u32) -> String {
    format!("{PARTS}memory:{queue}")
}

/// Parts of an uplink that a former process left, by their names.
pub type Parts = BTreeMap<String, OwnedFd>;

/// Account of an uplink that was taken over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Adopted {
    /// Frames that it had taken from the interface and not given back: those are lost.
    pub held: u32,
}

/// Ends an uplink that a former process left: it lets go of the interface.
pub fn end(parts: Parts) {
    if let Some(link) = parts.get(LINK) {
        bpf::detach(link.as_fd());
    }
}

/// The end of an uplink that outlasts its process.
#[derive(Debug)]
pub struct Ending(OwnedFd);

impl Ending {
    /// Has it let go of the interface, whatever other process keeps parts of it.
    pub fn end(&self) {
        bpf::detach(self.0.as_fd());
    }
}

impl Xdp {
    /// Has the program stay attached when this is dropped, for a successor that gets all
    /// [parts](Self::parts), or until the end.
    pub fn outlast(&mut self) -> Result<Ending, Error> {
        let failed = |error| Error::failed("cannot note what a successor has to know", error);
        for queue in &self.inward.queues {
            let record = Record {
                queue: queue.number(),
                queues: self.info.queues,
                interface: self.info.index,
                chunk: self.chunk,
                cookie: queue.cookie().map_err(failed)?,
                hook: self.hook,
                zero_copy: self.zero_copy,
                note: self.info.note.clone(),
            };
            record.write(queue.memory()).map_err(failed)?;
        }
        let ending = self.link.descriptor().try_clone_to_owned().map_err(failed)?;
        self.link.outlast();
        Ok(Ending(ending))
    }

    /// Returns whether the kernel lets a successor go on with it.
    pub fn can_be_adopted(&self) -> bool {
        self.inward.queues.iter().all(Queue::can_be_adopted)
    }

    /// The parts that a successor needs, by name. The last one makes them whole.
    pub fn parts(&self) -> Vec<(String, BorrowedFd<'_>)> {
        let of = |queue: &'_ Queue| [memory_name(queue.number()), socket_name(queue.number())];
        let mut parts = Vec::new();
        for queue in &self.inward.queues {
            let [memory, socket] = of(queue);
            parts.push((memory, queue.memory()));
            parts.push((socket, queue.socket()));
        }
        parts.push((LINK.to_owned(), self.link.descriptor()));
        parts
    }

    /// Goes on with the uplink of a former process, if `parts` are one on the interface of that
    /// name and of the same kind. They need not be what they seem. Frames that came meanwhile are
    /// there to be received. On an error the former uplink is ended, and another one can be opened.
    pub fn adopt(name: &str, config: &XdpConfig, parts: Parts) -> Result<(Xdp, Adopted), Error> {
        let ending = parts.get(LINK).and_then(|link| link.try_clone().ok());
        Self::adopt_parts(name, config, parts).inspect_err(|_| {
            ending.iter().for_each(|link| bpf::detach(link.as_fd()));
        })
    }

    fn adopt_parts(
        name: &str,
        config: &XdpConfig,
        mut parts: Parts,
    ) -> Result<(Xdp, Adopted), Error> {
        let missing = || Error::refused("not all of it was kept");
        let interface = Kernel::open()?.interface(name)?;
        let count = queues(&interface, config.queues)?;
        let link = Link::adopt(parts.remove(LINK).ok_or_else(missing)?);
        let attached = link.interface().map_err(|error| Error::failed("its BPF link", error))?;
        if attached != interface.index {
            return Err(Error::refused(format!(
                "its program is attached to interface {attached}, not to {}",
                interface.index
            )));
        }
        let mut open = Vec::new();
        let mut first = None;
        let (mut held, mut probes) = (0, Vec::new());
        for number in 0..count {
            let memory = parts.remove(&memory_name(number)).ok_or_else(missing)?;
            let socket = parts.remove(&socket_name(number)).ok_or_else(missing)?;
            let read = Record::read(memory.as_fd())
                .map_err(|error| Error::failed("its memory", error))?
                .ok_or_else(|| Error::refused("its record is not one"))?;
            let wanted = Wanted { interface: &interface, config, number, count };
            let record = wanted.checked(read, first.as_ref())?;
            let queue_config = QueueConfig {
                name,
                interface: interface.index,
                queue: number,
                chunk: record.chunk,
                sends: queue::sends(memory.as_fd(), record.chunk)
                    .map_err(|error| Error::failed("its memory", error))?,
                zero_copy: record.zero_copy,
            };
            let (queue, way, lost, probe) = Queue::adopt(&queue_config, socket, memory)?;
            probes.push(probe);
            let cookie = queue.cookie().map_err(|error| Error::failed("its socket", error))?;
            if cookie != record.cookie {
                return Err(Error::refused("its memory is another socket's"));
            }
            held += lost;
            first.get_or_insert(record);
            open.push((queue, way));
        }
        if !parts.is_empty() {
            return Err(Error::refused("it served more queues"));
        }
        let Record { hook, note, .. } = first.ok_or_else(missing)?;
        let map =
            bpf::socket_map(count).map_err(|error| bpf_failed("make a map of sockets", error))?;
        let xdp = Xdp::of(interface, config, (link, hook, note), open, map.as_fd())?;
        let program = program(config, map.as_fd())?;
        xdp.link
            .replace(program.as_fd())
            .map_err(|error| bpf_failed("put the XDP program in place of the former one", error))?;
        // The kernel waits for all processors before it lets go of such a socket.
        let _ = std::thread::Builder::new().spawn(move || drop(probes));
        Ok((xdp, Adopted { held }))
    }
}

/// The queue that is to be adopted.
struct Wanted<'a> {
    interface: &'a Interface,
    config: &'a XdpConfig,
    number: u32,
    count: u32,
}

impl Wanted<'_> {
    /// Checks the record of a former process.
    fn checked(&self, record: Record, first: Option<&Record>) -> Result<Record, Error> {
        let tried = record.hook == Hook::Native && self.config.mode == Mode::Best;
        let alike = first.is_none_or(|first| first.hook == record.hook);
        let refused = if record.interface != self.interface.index || record.queue != self.number {
            "its memory is another queue's"
        } else if record.queues != self.count {
            "it served another number of queues"
        } else if record.chunk != chunk(self.interface)? {
            "the interface's MTU needs other chunks now"
        } else if record.zero_copy != tried || !alike {
            "it was opened in another mode"
        } else if record.hook == Hook::Native && self.config.mode == Mode::Generic {
            "another mode is wanted now"
        } else {
            return Ok(record);
        };
        Err(Error::refused(refused))
    }
}
