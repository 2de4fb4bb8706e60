//! The thread that answers: short requests at once, long ones slice by slice, and those that change
//! what is declared when the store has it.
//!
//! Requests with changes are carried out, wait together, and are one commit: a *group*. While one
//! is in the store, other changes are *held*, and questions are answered. A group is handed over
//! when no request is left to join it, or after a millisecond.

use super::{
    bounds,
    exchange::{Exchange, Job, Reply, heard},
};
use crate::{Envelope, Failure, Handler, Task};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{
    collections::VecDeque,
    io,
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

/// Most requests of a group.
const GROUP: usize = 1024;
/// Longest time that a group waits for others to join it.
const JOIN: Duration = Duration::from_millis(1);
/// Most requests that are held. What is longer than a short one takes room of its own.
const HELD: usize = 4096;
/// Time between two looks at a store that says nothing.
const LOOK: Duration = Duration::from_millis(250);
/// Longest wait for the store when the daemon stops.
const LAST: Duration = Duration::from_secs(5);

/// Longest time in which requests are answered that came before another process goes on.
const REST: Duration = Duration::from_millis(200);

/// Longest time between two turns, and the function that hears of each.
pub(super) type Turn = (Duration, Box<dyn Fn() + Send>);

/// Calls of the handler that are carried out as one.
const CALLS: usize = 1024;

/// A request, and how far it is answered.
type Begun = (Job, Task);

/// The thread that answers.
pub(super) struct Answering<'a, H> {
    exchange: &'a Exchange,
    envelope: &'a mut Envelope<H>,
    /// Readable when the handler is called.
    call: Option<BorrowedFd<'a>>,
    /// Requests that are long, each gone on with in turn.
    long: Vec<Begun>,
    next: usize,
    /// Requests whose changes are made, and not handed over.
    group: Vec<Begun>,
    /// Time since when there are some.
    since: Instant,
    /// Requests whose changes are in the store.
    committing: Vec<Begun>,
    /// Requests that have to wait before they change anything.
    held: VecDeque<Begun>,
}

impl<'a, H: Handler> Answering<'a, H> {
    pub(super) fn new(
        exchange: &'a Exchange,
        envelope: &'a mut Envelope<H>,
        call: Option<BorrowedFd<'a>>,
    ) -> Self {
        Self {
            exchange,
            envelope,
            call,
            long: Vec::new(),
            next: 0,
            group: Vec::new(),
            since: Instant::now(),
            committing: Vec::new(),
            held: VecDeque::new(),
        }
    }

    pub(super) fn run(
        &mut self,
        stop: BorrowedFd<'_>,
        turn: Option<&Turn>,
        done: impl Fn(&H) -> bool,
    ) -> io::Result<()> {
        loop {
            if let Some((_, taken)) = turn {
                taken();
            }
            self.settle();
            self.release();
            let short = self.answer_short();
            if short && done(self.envelope.handler()) {
                self.end();
                return Ok(());
            }
            self.take_long();
            let long = self.go_on();
            if done(self.envelope.handler()) {
                // What asked for the end is carried out to its own.
                while !self.long.is_empty() && self.go_on() {}
                self.end();
                return Ok(());
            }
            if self.envelope.handler().passes_on() {
                self.answer_the_rest();
                return Ok(());
            }
            self.hand_over(short);
            let wait = if short || long {
                Some(Duration::ZERO)
            } else {
                // With a store there are times to keep.
                let store = self.envelope.handler().news().map(|_| LOOK);
                let turn = turn.map(|(interval, _)| *interval);
                store.into_iter().chain(turn).min()
            };
            if self.sleep(stop, wait)? {
                self.end();
                return Ok(());
            }
        }
    }

    /// Answers what came, for a moment, and commits it.
    fn answer_the_rest(&mut self) {
        let until = Instant::now() + REST;
        while Instant::now() < until {
            self.settle();
            self.release();
            let short = self.answer_short();
            self.take_long();
            if !(self.go_on() || short) {
                break;
            }
        }
        self.end();
    }

    /// Sleeps until there is something to do, and carries out a call; whether to stop.
    fn sleep(&mut self, stop: BorrowedFd<'_>, wait: Option<Duration>) -> io::Result<bool> {
        let mut watched = vec![
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
            PollFd::from_borrowed_fd(self.exchange.to_answer(), PollFlags::IN),
            // Without calls the first one is watched twice.
            PollFd::from_borrowed_fd(self.call.unwrap_or(stop), PollFlags::IN),
        ];
        let news = self.envelope.handler().news();
        watched.extend(news.map(|news| PollFd::from_borrowed_fd(news, PollFlags::IN)));
        let wait = wait.map(|wait| Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        match poll(&mut watched, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |at: usize| watched.get(at).is_some_and(|it| !it.revents().is_empty());
        let (stopped, asked, called) = (is_ready(0), is_ready(1), is_ready(2));
        if asked {
            heard(self.exchange.to_answer());
        }
        let stops = stopped || self.exchange.is_broken();
        if let Some(call) = self.call.filter(|_| called && !stops) {
            // What is left after that is another call.
            let _ = rustix::io::read(call, &mut [0; CALLS]);
            self.envelope.handler_mut().called();
        }
        Ok(stops)
    }

    /// Answers one short request, if there is one.
    fn answer_short(&mut self) -> bool {
        let Some(mut job) = self.exchange.next_short() else { return false };
        let task = self.envelope.begin_task(std::mem::take(&mut job.body), Some(job.caller));
        self.finish_short(job, task);
        true
    }

    /// Answers a short request, or has it wait.
    fn finish_short(&mut self, job: Job, mut task: Task) {
        loop {
            if let Some(reply) = self.envelope.go_on(&mut task, || true) {
                return self.answered(job, reply);
            }
            if task.waits_for_commit() {
                return self.join((job, task));
            }
            if self.held.len() < HELD {
                return self.held.push_back((job, task));
            }
            task.refuse_changes(too_many());
        }
    }

    fn answered(&self, job: Job, reply: Vec<u8>) {
        let Job { peer, route, room, .. } = job;
        self.exchange.answered(room, Reply { peer, route, body: reply });
    }

    fn join(&mut self, begun: Begun) {
        if self.group.is_empty() {
            self.since = Instant::now();
        }
        self.group.push(begun);
    }

    /// Hands the group over, if it is time. `short`: another request may join it.
    fn hand_over(&mut self, short: bool) {
        let joins = short && self.group.len() < GROUP && self.since.elapsed() < JOIN;
        // A long request is one commit, too.
        let unfinished = self.long.iter().any(|(_, task)| task.has_changed());
        let idle = self.committing.is_empty() && self.envelope.handler().may_change();
        if self.group.is_empty() || joins || unfinished || !idle {
            return;
        }
        self.committing = std::mem::take(&mut self.group);
        self.envelope.handler_mut().hand_over();
    }

    /// Answers the requests whose commit has an outcome.
    fn settle(&mut self) {
        let Some(outcome) = self.envelope.handler_mut().outcome() else { return };
        for (job, mut task) in std::mem::take(&mut self.committing) {
            self.envelope.settle(&mut task, &outcome);
            if let Some(reply) = self.envelope.go_on(&mut task, || true) {
                self.answered(job, reply);
            }
        }
    }

    /// Goes on with what was held, if it may.
    fn release(&mut self) {
        if self.held.is_empty() || !self.envelope.handler().may_change() {
            return;
        }
        for (job, task) in std::mem::take(&mut self.held) {
            match job.room {
                0 => self.finish_short(job, task),
                _ => self.long.push((job, task)),
            }
        }
    }

    /// Commits what was changed, before the daemon ends.
    fn end(&mut self) {
        let until = Instant::now() + LAST;
        while !(self.group.is_empty() && self.committing.is_empty()) && Instant::now() < until {
            self.settle();
            self.hand_over(false);
            if let Some(news) = self.envelope.handler().news() {
                let wait = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                let _ = poll(&mut [PollFd::from_borrowed_fd(news, PollFlags::IN)], Some(&wait));
            }
        }
    }

    /// Begins with the long requests that came.
    fn take_long(&mut self) {
        while let Some(mut job) = self.exchange.next_long() {
            let task = self.envelope.begin_task(std::mem::take(&mut job.body), Some(job.caller));
            self.long.push((job, task));
        }
    }

    /// Goes on with one long request, if there is one and memory for its reply.
    fn go_on(&mut self) -> bool {
        if self.long.is_empty() || !self.exchange.may_go_on() {
            return false;
        }
        let so_far: usize = self.long.iter().map(|(_, task)| task.reply_so_far()).sum();
        let number = if so_far > bounds::SIDE_BY_SIDE { 0 } else { self.next % self.long.len() };
        let Some((_, task)) = self.long.get_mut(number) else { return false };
        let end = Instant::now() + bounds::SLICE;
        let before = task.reply_so_far();
        let reply = self.envelope.go_on(task, || Instant::now() < end);
        let (kept, waits) = (task.waits_for_commit(), self.envelope.has_to_wait(task));
        let after = task.reply_so_far();
        if let Some(reply) = reply {
            let (job, task) = self.long.remove(number);
            // Its memory is free before another client gets the room.
            drop(task);
            self.exchange.set_so_far(so_far - before);
            self.answered(job, reply);
        } else {
            self.exchange.set_so_far(so_far - before + after);
            if kept {
                let begun = self.long.remove(number);
                self.join(begun);
            } else if waits {
                let begun = self.long.remove(number);
                self.held.push_back(begun);
            }
        }
        self.next = number + 1;
        true
    }
}

fn too_many() -> Failure {
    Failure::new("too many changes wait for the store")
        .with_help(format!("nothing was changed; {HELD} requests wait: try again"))
}
