//! A network interface in place of a switch's socket: a packet socket takes from the VM's rings
//! what it sends, and gives them what arrives for its address.

use std::sync::{Arc, atomic::Ordering};

use anyhow::{Context, ensure};
use butterfly_guest_driver::{
    FastGuest, Memory, Nic, RX, TX,
    ring::{Ring, USED_NO_NOTIFY},
};
use butterfly_packet::{Mac, ethernet};
use butterfly_uplink::{kernel::Kernel, packet::PacketSocket};
use butterfly_vhost::net::NetHeader;

/// Frames taken from the socket at a look.
const BURST: usize = 64;

/// The device's side of a VM's rings, whose chains have one descriptor.
#[derive(Debug)]
pub struct Interface {
    socket: PacketSocket,
    memory: Arc<Memory>,
    mac: Mac,
    tx: Ring,
    rx: Ring,
    /// Entries of both rings that are used.
    tx_used: u16,
    rx_used: u16,
    /// A header and a frame.
    buffer: Vec<u8>,
}

impl Interface {
    /// Opens the interface of that name for frames of up to `largest` bytes, sent and received by
    /// `nic` with the address `mac`.
    pub fn open(
        name: &str,
        nic: &FastGuest,
        mac: Mac,
        largest: usize,
    ) -> anyhow::Result<Interface> {
        let found = Kernel::open()?.interface(name)?;
        ensure!(found.up, "the interface \"{name}\" is down: ip link set dev {name} up");
        let room = found.mtu as usize + ethernet::HEADER_LEN;
        ensure!(
            largest <= room,
            "frames of {largest} bytes do not fit the interface \"{name}\": its MTU is {}",
            found.mtu
        );
        let socket =
            PacketSocket::of_all(found.index).with_context(|| format!("interface \"{name}\""))?;
        let [tx, rx] = [TX, RX].map(|queue| nic.link(queue).ring.split().clone());
        // Nobody has to be told of frames and buffers.
        for ring in [&tx, &rx] {
            ring.used_flags().store(USED_NO_NOTIFY, Ordering::Relaxed);
        }
        Ok(Interface {
            socket,
            memory: Arc::clone(nic.memory()),
            mac,
            tx,
            rx,
            tx_used: 0,
            rx_used: 0,
            // A byte more than the longest frame, so that one that grew is seen to be longer.
            buffer: vec![0; NetHeader::LEN + largest + 1],
        })
    }

    /// Sends what the VM made available, as far as the interface takes it.
    pub fn send(&mut self) -> anyhow::Result<()> {
        let end = self.tx.avail_idx().load(Ordering::Acquire);
        let begin = self.tx_used;
        while self.tx_used != end {
            let head = self.tx.avail_entry(self.tx_used).load(Ordering::Relaxed);
            let desc = self.tx.desc(head);
            let bytes = self.buffer.get_mut(..desc.len as usize).context("a frame too long")?;
            self.memory.read(desc.addr, bytes)?;
            let frame = bytes.get(NetHeader::LEN..).context("a frame without a header")?;
            if !self.socket.offer(frame)? {
                break;
            }
            self.tx.set_used_entry(self.tx_used, head.into(), 0, Ordering::Relaxed);
            self.tx_used = self.tx_used.wrapping_add(1);
        }
        if self.tx_used != begin {
            self.tx.used_idx().store(self.tx_used, Ordering::Release);
        }
        Ok(())
    }

    /// Gives the VM what arrived for it. Frames for other addresses are none of ours: an interface
    /// may have more users.
    pub fn receive(&mut self) -> anyhow::Result<()> {
        let end = self.rx.avail_idx().load(Ordering::Acquire);
        let begin = self.rx_used;
        for _ in 0..BURST {
            if self.rx_used == end {
                break;
            }
            let (header, frame) = self.buffer.split_at_mut(NetHeader::LEN);
            let Some(len) = self.socket.receive(frame)? else { break };
            if frame.get(..6) != Some(&self.mac.0) {
                continue;
            }
            header
                .copy_from_slice(&NetHeader { num_buffers: 1, ..NetHeader::default() }.to_bytes());
            let head = self.rx.avail_entry(self.rx_used).load(Ordering::Relaxed);
            let len = NetHeader::LEN + len;
            let bytes = self.buffer.get(..len).context("a frame too long")?;
            self.memory.write(self.rx.desc(head).addr, bytes)?;
            self.rx.set_used_entry(self.rx_used, head.into(), len as u32, Ordering::Relaxed);
            self.rx_used = self.rx_used.wrapping_add(1);
        }
        if self.rx_used != begin {
            self.rx.used_idx().store(self.rx_used, Ordering::Release);
        }
        Ok(())
    }

    /// Returns how many frames arrived, for whichever address, that this host had no room for,
    /// since the last call.
    pub fn missed(&self) -> anyhow::Result<u64> {
        Ok(self.socket.missed()?.into())
    }
}
