//! The thread that moves bytes: accepts, reads and writes, and cuts clients that take too much.
//!
//! It never waits for a request to be answered, so heartbeats and handshakes of all are answered
//! meanwhile.

use super::{
    CutClient,
    bind::Listener,
    bounds::{ACCEPTED, BODIES, EXHAUSTED, FOR_LONG, GRACE, LINGER, READ, SHORT_GRACE},
    exchange::{Exchange, Job, Reply, heard},
    fair::Fair,
    peer::{Cut, Origin, Peer, Transfer, Who},
    place::{Listening, Place},
};
use crate::{MAX_FRAME, zmtp::ALLOWANCE};
use rustix::{
    event::{
        Timespec,
        epoll::{self, EventData, EventFlags},
    },
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};
use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};
use tracing::warn;

/// Time between two looks for clients that are late.
const LOOK: Duration = Duration::from_millis(100);
/// Least poll token of a peer; all else has smaller ones.
const FIRST_PEER: u64 = 1 << 32;
/// Poll token of the exchange; listeners have smaller ones.
const EXCHANGE: u64 = FIRST_PEER - 1;
/// Time between two attempts to listen on an endpoint that was refused.
const AGAIN: Duration = Duration::from_secs(1);
/// Events that are taken in one turn.
const EVENTS: usize = 64;
/// Bytes that one connection is written in one turn.
const WRITTEN: usize = 1 << 20;

/// All connections.
pub(super) struct Mover<'a> {
    epoll: OwnedFd,
    places: &'a mut Vec<Place>,
    /// Time of the last attempt to listen where it was refused.
    tried: Instant,
    exchange: &'a Exchange,
    told: &'a (dyn Fn(&CutClient) + Send + Sync),
    /// Hears of an endpoint that is listened on after all.
    listening: &'a (dyn Fn(Listening<'_>) + Send + Sync),
    most: usize,
    peers: HashMap<u64, Peer>,
    next: u64,
    /// Clients that wait for room.
    room: Fair<Origin, u64>,
    /// True if a client waits for room that others take.
    starved: bool,
    /// Time until which no connection is accepted.
    paused: Option<Instant>,
    buffer: Vec<u8>,
}

impl<'a> Mover<'a> {
    pub(super) fn new(
        places: &'a mut Vec<Place>,
        exchange: &'a Exchange,
        most: usize,
        told: &'a (dyn Fn(&CutClient) + Send + Sync),
        listening: &'a (dyn Fn(Listening<'_>) + Send + Sync),
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, place) in places.iter().enumerate() {
            if let Some(listener) = &place.listener {
                watch(&epoll, number, listener)?;
            }
        }
        epoll::add(&epoll, exchange.to_send(), EventData::new_u64(EXCHANGE), EventFlags::IN)?;
        Ok(Self {
            epoll,
            places,
            tried: Instant::now(),
            exchange,
            told,
            listening,
            most,
            peers: HashMap::new(),
            next: FIRST_PEER,
            room: Fair::default(),
            starved: false,
            paused: None,
            buffer: vec![0; READ],
        })
    }

    /// Moves bytes until no more requests are answered, and replies have left.
    pub(super) fn run(&mut self) -> io::Result<()> {
        let mut looked = Instant::now();
        while !self.exchange.lock().is_finished() {
            self.turn(self.is_busy().then_some(LOOK))?;
            let now = Instant::now();
            if now.saturating_duration_since(looked) >= LOOK {
                looked = now;
                self.look(now);
            }
        }
        let end = Instant::now() + LINGER;
        self.deliver();
        while self.peers.values().any(|peer| peer.machine.unsent() > 0 && peer.machine.is_open())
            && Instant::now() < end
        {
            self.turn(Some(LOOK))?;
        }
        Ok(())
    }

    /// True if something has its time.
    fn is_busy(&self) -> bool {
        let has_its_time = |peer: &Peer| {
            !peer.machine.is_open() || peer.receiving.is_some() || peer.sending.is_some()
        };
        self.places.iter().any(|place| place.listener.is_none())
            || self.starved
            || self.paused.is_some()
            || self.peers.values().any(has_its_time)
    }

    fn turn(&mut self, wait: Option<Duration>) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS);
        let wait = wait.map(|wait| Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) });
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events {
            let (id, flags) = (event.data.u64(), event.flags);
            if id >= FIRST_PEER {
                self.moved(id, flags);
            } else if id == EXCHANGE {
                heard(self.exchange.to_send());
            } else {
                self.accept(id);
            }
        }
        self.deliver();
        self.give_room();
        if self.exchange.lock().take_starved() && !self.starved {
            self.starved = true;
            self.cut_slow(Instant::now());
        }
        Ok(())
    }

    /// Looks after everybody's time.
    fn look(&mut self, now: Instant) {
        if self.paused.is_some_and(|until| now >= until) {
            self.paused = None;
            self.listen(EventFlags::IN);
        }
        let late: Vec<_> =
            self.peers.iter().filter_map(|(id, peer)| Some((*id, peer.overdue(now)?))).collect();
        for (id, why) in late {
            self.cut(id, &why);
        }
        if self.starved {
            self.cut_slow(now);
        }
        if now.saturating_duration_since(self.tried) >= AGAIN {
            self.tried = now;
            self.listen_after_all();
        }
    }

    /// Tries again to listen where it was refused.
    fn listen_after_all(&mut self) {
        let refused = self.places.iter_mut().enumerate();
        for (number, place) in refused.filter(|(_, place)| place.listener.is_none()) {
            if place.bind().is_err() {
                continue;
            }
            let watched =
                place.listener.as_ref().map(|listener| watch(&self.epoll, number, listener));
            match watched {
                Some(Ok(())) => place.listening().into_iter().for_each(self.listening),
                _ => place.listener = None,
            }
        }
    }

    fn accept(&mut self, number: u64) {
        for _ in 0..ACCEPTED {
            let place = usize::try_from(number).ok().and_then(|number| self.places.get(number));
            let Some(listener) = place.and_then(|place| place.listener.as_ref()) else { return };
            match listener.accept() {
                Ok((socket, who)) => self.admit(socket, who),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    let number = error.raw_os_error().unwrap_or_default();
                    let exhausted = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
                    if exhausted.iter().any(|known| known.raw_os_error() == number) {
                        warn!("no client is accepted for {} ms: {error}", EXHAUSTED.as_millis());
                        self.paused = Some(Instant::now() + EXHAUSTED);
                        return self.listen(EventFlags::empty());
                    }
                    // Others are of a client that went.
                }
            }
        }
    }

    fn listen(&self, interest: EventFlags) {
        for (number, place) in self.places.iter().enumerate() {
            let Some(listener) = &place.listener else { continue };
            if let Err(error) =
                epoll::modify(&self.epoll, listener, EventData::new_u64(number as u64), interest)
            {
                warn!("the API's endpoints cannot be watched: {error}");
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd, who: Who) {
        if self.peers.len() >= self.most {
            self.make_place();
        }
        let id = self.next;
        self.next += 1;
        if epoll::add(&self.epoll, &socket, EventData::new_u64(id), EventFlags::empty()).is_ok() {
            self.peers.insert(id, Peer::new(socket, who, Instant::now()));
            self.write(id);
            self.advance(id);
        }
    }

    /// Cuts the least needed connection of the origin with most of them.
    fn make_place(&mut self) {
        let mut counts: HashMap<Origin, usize> = HashMap::new();
        self.peers.values().for_each(|peer| *counts.entry(peer.who.origin).or_default() += 1);
        let Some((origin, theirs)) = counts.into_iter().max_by_key(|(_, count)| *count) else {
            return;
        };
        let of_origin = self.peers.iter().filter(|(_, peer)| peer.who.origin == origin);
        if let Some((id, _)) = of_origin.min_by_key(|(_, peer)| peer.rank()) {
            self.cut(*id, &Cut::Crowded { connections: self.peers.len(), theirs });
        }
    }

    /// Something can be done with a connection.
    fn moved(&mut self, id: u64, flags: EventFlags) {
        let Some(peer) = self.peers.get(&id) else { return };
        if peer.interest.contains(EventFlags::IN)
            && flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR)
        {
            self.read(id);
        } else if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            self.gone(id);
        }
        if flags.contains(EventFlags::OUT) {
            self.write(id);
        }
        self.advance(id);
    }

    fn read(&mut self, id: u64) {
        let mut taken = 0;
        while taken < READ {
            let Some(peer) = self.peers.get_mut(&id) else { return };
            let Some(socket) = &peer.socket else { return };
            if !peer.kept.is_empty() || !peer.machine.is_ready() {
                return;
            }
            // More than this is only read of what has its room.
            let most = peer.machine.expects().clamp(ALLOWANCE, READ);
            let Some(buffer) = self.buffer.get_mut(..most) else { return };
            let length = match recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((length, _)) if length > 0 => length,
                Err(Errno::AGAIN | Errno::INTR) => return,
                _ => return self.gone(id),
            };
            taken += length;
            if let Some(receiving) = &mut peer.receiving {
                receiving.done += length;
            }
            peer.active = Instant::now();
            let received = buffer.get(..length).unwrap_or_default();
            match peer.machine.feed(received) {
                Ok(used) => peer.kept.extend_from_slice(received.get(used..).unwrap_or_default()),
                Err(refusal) => return self.cut(id, &refusal.into()),
            }
            self.advance(id);
            self.give_room();
        }
    }

    fn write(&mut self, id: u64) {
        let mut left = WRITTEN;
        let Some(peer) = self.peers.get_mut(&id) else { return };
        while let Some(socket) = &peer.socket {
            let output = peer.machine.output();
            if output.is_empty() || left == 0 {
                break;
            }
            let output = output.get(..left.min(output.len())).unwrap_or_default();
            match send(socket, output, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(length) => {
                    left -= length;
                    peer.machine.sent(length);
                    if let Some(sending) = &mut peer.sending {
                        sending.done += length;
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => return self.gone(id),
            }
        }
        if peer.machine.unsent() == 0 {
            peer.sending = None;
            let owed = std::mem::take(&mut peer.owed);
            self.paid(owed);
        }
    }

    /// Does all that can be done now with a connection.
    fn advance(&mut self, id: u64) {
        loop {
            let Some(peer) = self.peers.get_mut(&id) else { return };
            if !peer.kept.is_empty() && peer.machine.is_ready() {
                match peer.machine.feed(&peer.kept) {
                    Ok(used) => drop(peer.kept.drain(..used)),
                    Err(refusal) => return self.cut(id, &refusal.into()),
                }
                if peer.kept.is_empty() {
                    peer.kept = Vec::new();
                }
            }
            if peer.machine.wanted().is_some() && !peer.waits {
                peer.waits = true;
                self.room.push(peer.who.origin, id);
            }
            let next = if peer.asks || peer.machine.unsent() > 0 {
                None
            } else {
                peer.machine.take_request()
            };
            let Some(request) = next else { break };
            peer.asks = true;
            self.exchange.ask(Job {
                peer: id,
                origin: peer.who.origin,
                caller: peer.who.caller,
                route: request.route,
                body: request.body,
                room: request.room,
            });
        }
        self.settle(id);
    }

    /// Sees to what is looked for, and to the time of what has begun; removes what is over.
    fn settle(&mut self, id: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        match (peer.machine.is_amid_a_message(), peer.receiving) {
            (true, None) => peer.receiving = Some(Transfer::of(0, Instant::now())),
            (false, Some(_)) => peer.receiving = None,
            _ => {}
        }
        let interest = peer.wanted_interest();
        let Some(socket) = &peer.socket else {
            if !peer.asks && !peer.machine.has_request() {
                self.remove(id);
            }
            return;
        };
        if interest != peer.interest {
            peer.interest = interest;
            if epoll::modify(&self.epoll, socket, EventData::new_u64(id), interest).is_err() {
                self.remove(id);
            }
        }
    }

    /// The client went. What it asked for before is done all the same.
    fn gone(&mut self, id: u64) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.socket = None;
        peer.sending = None;
        let owed = std::mem::take(&mut peer.owed);
        let unsent = peer.machine.unsent();
        peer.machine.sent(unsent);
        self.paid(owed);
        self.advance(id);
    }

    fn deliver(&mut self) {
        let replies = self.exchange.lock().take_replies();
        for Reply { peer: id, route, body } in replies {
            let length = body.len();
            match self.peers.get_mut(&id) {
                Some(peer) => {
                    peer.asks = false;
                    peer.active = Instant::now();
                    if peer.socket.is_some() {
                        peer.machine.reply(&route, body);
                        peer.owed += length;
                        peer.sending = Some(Transfer::of(peer.machine.unsent(), peer.active));
                    } else {
                        self.paid(length);
                    }
                }
                None => self.paid(length),
            }
            self.write(id);
            self.advance(id);
        }
    }

    /// Gives room to waiting clients, one origin after the other.
    fn give_room(&mut self) {
        while let Some(id) = self.room.peek().copied() {
            let wanted = self.peers.get(&id).and_then(|peer| peer.machine.wanted());
            if let Some(length) = wanted {
                let mut shared = self.exchange.lock();
                let bodies = shared.bodies + length;
                if bodies > BODIES || bodies + shared.unread > FOR_LONG {
                    drop(shared);
                    if !std::mem::replace(&mut self.starved, true) {
                        self.cut_slow(Instant::now());
                    }
                    return;
                }
                shared.bodies = bodies;
            }
            self.room.pop();
            if let Some((length, peer)) = wanted.zip(self.peers.get_mut(&id)) {
                peer.waits = false;
                peer.machine.give_room();
                peer.receiving = Some(Transfer::of(length, Instant::now()));
                self.advance(id);
            }
        }
    }

    /// Replies of so many bytes were read, or no client waits for them any more.
    fn paid(&mut self, bytes: usize) {
        let mut shared = self.exchange.lock();
        shared.unread -= bytes.min(shared.unread);
        drop(shared);
        if bytes > 0 && std::mem::take(&mut self.starved) {
            self.exchange.wake_answering();
        }
    }

    /// Cuts slow clients that take room for which others wait.
    fn cut_slow(&mut self, now: Instant) {
        let mut held: HashMap<Origin, usize> = HashMap::new();
        self.peers
            .values()
            .for_each(|peer| *held.entry(peer.who.origin).or_default() += peer.holds());
        let slow = |(id, peer): (&u64, &Peer)| {
            let holds_much = held.get(&peer.who.origin).is_some_and(|held| *held > MAX_FRAME);
            let why = peer.slow(now, if holds_much { SHORT_GRACE } else { GRACE })?;
            Some((*id, why))
        };
        let slow: Vec<_> = self.peers.iter().filter_map(slow).collect();
        if slow.is_empty() {
            return;
        }
        for (id, why) in &slow {
            self.cut(*id, why);
        }
        self.starved = false;
        self.exchange.wake_answering();
        self.give_room();
    }

    /// Ends a connection, and tells why.
    fn cut(&mut self, id: u64, why: &Cut) {
        let Some(peer) = self.peers.get(&id) else { return };
        (self.told)(&CutClient {
            caller: peer.who.caller,
            text: format!("the connection of {} was ended: {why}", peer.who),
            of_handshake: why.is_of_handshake(),
        });
        self.exchange.forget(id);
        self.remove(id);
    }

    fn remove(&mut self, id: u64) {
        let Some(peer) = self.peers.remove(&id) else { return };
        let mut shared = self.exchange.lock();
        shared.bodies -= peer.machine.room().min(shared.bodies);
        drop(shared);
        self.paid(peer.owed);
        if let Some(socket) = &peer.socket {
            // Closing does it, unless another process has the descriptor, too.
            let _ = epoll::delete(&self.epoll, socket.as_fd());
        }
    }
}

/// Has the clients of a listener noticed.
fn watch(epoll: &OwnedFd, number: usize, listener: &Listener) -> io::Result<()> {
    Ok(epoll::add(epoll, listener, EventData::new_u64(number as u64), EventFlags::IN)?)
}
