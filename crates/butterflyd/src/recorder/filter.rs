//! Filters in the syntax of libpcap, compiled by libpcap.

use butterfly_api::Failure;
use pcap::{BpfProgram, Capture, Linktype};
use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

/// Bytes of a filter's text at most.
const LONGEST: usize = 1024;
/// Time limit of compiling. It takes microseconds, unless a name has to be resolved.
const PATIENCE: Duration = Duration::from_millis(300);
/// Room for the largest frame.
const ROOM: usize = 1 << 17;

/// A client's filter.
pub struct Filter {
    program: BpfProgram,
    /// A frame as the filter sees it: the bytes that are known, zeros up to its length. Else
    /// `greater` would ask for what was copied.
    frame: Vec<u8>,
}

/// True during a compilation: there is one at a time, and one that asks the network for a name may
/// take long.
static COMPILING: AtomicBool = AtomicBool::new(false);

impl Filter {
    /// Compiles `text`; nothing is no filter.
    pub fn compile(text: &str) -> Result<Option<Filter>, Failure> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        let refused = |why: &str| {
            let what = format!("filter {text:?} is refused: {why}");
            Err(Failure::new(what)
                .with_help("the syntax is that of tcpdump, see pcap-filter(7), as in \"tcp port 443 and host 10.0.0.1\""))
        };
        if text.len() > LONGEST {
            return refused(&format!("it has more than {LONGEST} bytes"));
        }
        if COMPILING.swap(true, Ordering::AcqRel) {
            return refused("another one is being compiled: try again");
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        let own = text.to_owned();
        // libpcap asks the resolver for names, and the API must not wait.
        let thread = std::thread::Builder::new().name("filter".into()).spawn(move || {
            let compiled = compile(&own);
            COMPILING.store(false, Ordering::Release);
            let _ = sender.send(compiled);
        });
        if let Err(error) = thread {
            COMPILING.store(false, Ordering::Release);
            return refused(&error.to_string());
        }
        match receiver.recv_timeout(PATIENCE) {
            Ok(Ok(program)) => Ok(Some(Filter { program, frame: vec![0; ROOM] })),
            Ok(Err(why)) => refused(&why),
            Err(_) => {
                refused("it takes too long to compile: use addresses and numbers instead of names")
            }
        }
    }

    /// True if a frame of `len` bytes that begins with `data` passes.
    pub fn passes(&mut self, data: &[u8], len: u32) -> bool {
        let len = (len as usize).clamp(data.len(), ROOM);
        let known = data.len().min(ROOM);
        self.frame[..known].copy_from_slice(&data[..known]);
        let passes = self.program.filter(&self.frame[..len]);
        self.frame[..known].fill(0);
        passes
    }
}

fn compile(text: &str) -> Result<BpfProgram, String> {
    let dead = Capture::dead(Linktype::ETHERNET).map_err(|error| error.to_string())?;
    dead.compile(text, true).map_err(|error| match error {
        pcap::Error::PcapError(text) => text,
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(text: &str) -> Filter {
        // Tests run at once, filters are compiled one by one.
        loop {
            match Filter::compile(text) {
                Ok(filter) => return filter.unwrap(),
                Err(failure) if format!("{failure:?}").contains("another one") => {
                    std::thread::yield_now()
                }
                Err(failure) => panic!("{failure:?}"),
            }
        }
    }

    #[test]
    fn frames_are_told_apart() {
        let mut udp = vec![
            2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 60, 0, 0, 0, 0, 64, 17, 0, 0,
        ];
        udp.extend([10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0x34, 0, 53, 0, 40, 0, 0]);
        for (text, passes) in [
            ("udp", true),
            ("udp port 53 and host 10.0.0.2", true),
            ("tcp or arp", false),
            ("ether src 02:00:00:00:00:01", true),
            ("greater 1000", true),
            ("less 999", false),
        ] {
            assert_eq!(compiled(text).passes(&udp, 1000), passes, "{text}");
        }
        let mut filter = compiled("udp[8] = 0 and greater 60");
        assert!(filter.passes(&udp, 74), "what was not copied is zeros");
        assert!(!filter.passes(&udp, 42), "nothing of the frame before is left");
        assert!(Filter::compile("  ").unwrap().is_none());
    }

    #[test]
    fn what_is_none_is_refused_with_the_words_of_libpcap() {
        for (text, why) in
            [("prot tcp", "syntax error"), ("port 70000", "illegal port"), ("tcp\0", "")]
        {
            let failure = loop {
                let failure = Filter::compile(text).map(|_| ()).unwrap_err();
                if !format!("{failure:?}").contains("another one") {
                    break failure;
                }
                std::thread::yield_now();
            };
            assert!(format!("{failure:?}").contains(why), "{failure:?}");
        }
        assert!(Filter::compile(&"tcp or ".repeat(200)).is_err());
    }
}
