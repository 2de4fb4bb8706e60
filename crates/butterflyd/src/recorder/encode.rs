//! Encodes packets: classic pcap, or pcapng with a comment on each.

use super::describe::comment;
use butterfly_datapath::{TapPacket, TapRole};
use pcap_file::{
    DataLink, Endianness, PcapError, TsResolution,
    pcap::{PcapHeader, PcapPacket, PcapWriter},
    pcapng::{
        PcapNgWriter,
        blocks::{
            enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption},
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
            section_header::{SectionHeaderBlock, SectionHeaderOption},
        },
    },
};
use std::{
    borrow::Cow,
    io::{self, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Directions as the virtual machine sees them.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Encoded bytes that are to be taken: the writers of the library keep what they write to.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Buffer {
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

enum Writer {
    Pcap(PcapWriter<Buffer>),
    PcapNg(Box<PcapNgWriter<Buffer>>),
}

/// Packets as bytes of a file.
pub struct Encoder {
    writer: Writer,
    buffer: Buffer,
    snap: u32,
}

impl Encoder {
    /// Classic pcap, with packets cut at `snap` bytes.
    pub fn pcap(snap: u32) -> Result<Encoder, PcapError> {
        let buffer = Buffer::default();
        let header = PcapHeader {
            snaplen: snap,
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::MicroSecond,
            endianness: Endianness::native(),
            ..PcapHeader::default()
        };
        let writer = PcapWriter::with_header(buffer.clone(), header)?;
        Ok(Encoder { writer: Writer::Pcap(writer), buffer, snap })
    }

    /// pcapng, with packets of an interface of that name cut at `snap` bytes.
    pub fn pcapng(snap: u32, interface: &str) -> Result<Encoder, PcapError> {
        let buffer = Buffer::default();
        let application = SectionHeaderOption::UserApplication(Cow::Borrowed("butterflyd"));
        let section = SectionHeaderBlock {
            endianness: Endianness::native(),
            options: vec![application],
            ..Default::default()
        };
        let mut writer = PcapNgWriter::with_section_header(buffer.clone(), section)?;
        writer.write_pcapng_block(InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: snap,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Owned(interface.to_owned())),
                // Nanoseconds.
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        })?;
        Ok(Encoder { writer: Writer::PcapNg(Box::new(writer)), buffer, snap })
    }

    /// Adds a packet.
    pub fn add(&mut self, packet: &TapPacket<'_>, role: TapRole) -> Result<(), PcapError> {
        let data = packet.data.get(..self.snap as usize).unwrap_or(packet.data);
        let timestamp = since_epoch(packet.time);
        match &mut self.writer {
            Writer::Pcap(writer) => {
                writer.write_packet(&PcapPacket {
                    timestamp,
                    orig_len: packet.len,
                    data: Cow::Borrowed(data),
                })?;
            }
            Writer::PcapNg(writer) => {
                let mut options = vec![EnhancedPacketOption::Comment(Cow::Owned(comment(packet)))];
                match role {
                    TapRole::Sent => options.push(EnhancedPacketOption::Flags(OUTBOUND)),
                    TapRole::Received => options.push(EnhancedPacketOption::Flags(INBOUND)),
                    TapRole::Neither => {}
                }
                writer.write_pcapng_block(EnhancedPacketBlock {
                    interface_id: 0,
                    timestamp,
                    original_len: packet.len,
                    data: Cow::Borrowed(data),
                    options,
                })?;
            }
        }
        Ok(())
    }

    /// Bytes that were not taken yet.
    pub fn pending(&self) -> usize {
        self.buffer.lock().len()
    }

    /// Takes the bytes that were encoded since the last time.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut *self.buffer.lock())
    }
}

/// A time in files and messages.
pub fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}
