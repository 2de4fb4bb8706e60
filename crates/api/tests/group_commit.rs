//! Requests that change something wait together for one commit; questions do not wait.

use butterfly_api::{
    Action, Answer, Context, Envelope, Failure, Handler,
    client::Client,
    proto::{Messages, Response},
    server::Server,
    text,
};
use rustix::event::{EventfdFlags, eventfd};
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Time of an fsync.
const SYNC: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(20);

/// A handler whose store is a thread that sleeps.
struct Slow {
    made: u64,
    handed: u64,
    in_store: bool,
    groups: Sender<()>,
    outcomes: Receiver<bool>,
    news: Arc<OwnedFd>,
    commits: Arc<AtomicUsize>,
}

impl Slow {
    /// `fails`: each commit does.
    fn new(sync: Duration, fails: bool) -> Self {
        let news = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let (groups, to_sync) = channel::<()>();
        let (told, outcomes) = channel();
        let (wake, commits) = (news.clone(), Arc::<AtomicUsize>::default());
        let count = commits.clone();
        thread::spawn(move || {
            for () in to_sync {
                thread::sleep(sync);
                count.fetch_add(1, Ordering::Relaxed);
                let _ = told.send(!fails);
                rustix::io::write(&*wake, &1u64.to_ne_bytes()).unwrap();
            }
        });
        Self { made: 0, handed: 0, in_store: false, groups, outcomes, news, commits }
    }
}

impl Handler for Slow {
    fn handle(&mut self, action: Action<'_>, _: &Context) -> Answer {
        if action.declares() {
            assert!(!self.in_store, "no change is made while a group is in the store");
            self.made += 1;
        }
        Ok(Response::new())
    }

    fn changes_made(&self) -> u64 {
        self.made
    }

    fn may_change(&self) -> bool {
        !self.in_store
    }

    fn hand_over(&mut self) {
        assert!(self.made > self.handed);
        self.handed = self.made;
        self.in_store = true;
        self.groups.send(()).unwrap();
    }

    fn outcome(&mut self) -> Option<Result<(), Failure>> {
        let _ = rustix::io::read(&*self.news, &mut [0; 8]);
        let done = self.outcomes.try_recv().ok()?;
        self.in_store = false;
        Some(if done { Ok(()) } else { Err(Failure::new("the disk is full")) })
    }

    fn news(&self) -> Option<BorrowedFd<'_>> {
        Some(self.news.as_fd())
    }
}

/// Serves `handler` as long as `use_it` runs.
fn serving(handler: Slow, use_it: impl FnOnce(&str) + Send) {
    let mut server = Server::bind(&["tcp://127.0.0.1:*"]).unwrap();
    let endpoint = server.endpoints()[0].clone();
    let stop = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    thread::scope(|scope| {
        let using = scope.spawn(|| {
            let outcome =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| use_it(&endpoint)));
            rustix::io::write(&stop, &1u64.to_ne_bytes()).unwrap();
            outcome
        });
        server.serve(&mut Envelope::new(handler), stop.as_fd(), |_| false).unwrap();
        if let Err(panic) = using.join().unwrap() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn request(parts: &[&str]) -> Messages {
    let message =
        |part| format!("messages {{ revision: 6 message_0 {{ request {{ {part} }} }} }}\n");
    text::parse(&parts.iter().map(message).collect::<String>()).unwrap()
}

const CHANGE: &str = "nic_del: \"a\"";
const QUESTION: &str = "nic_list: true";

#[test]
fn a_hundred_clients_make_more_than_a_thousand_changes_a_second() {
    const CLIENTS: usize = 100;
    const EACH: usize = 40;
    let slow = Slow::new(SYNC, false);
    let commits = slow.commits.clone();
    serving(slow, |endpoint| {
        let begun = Instant::now();
        thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    let client = Client::connect(endpoint, Some(PATIENCE)).unwrap();
                    for _ in 0..EACH {
                        client.call(&request(&[CHANGE])).unwrap();
                    }
                });
            }
        });
        let rate = (CLIENTS * EACH) as f64 / begun.elapsed().as_secs_f64();
        println!("{rate:.0} changes a second in {} commits", commits.load(Ordering::Relaxed));
        assert!(rate > 1000.0, "{rate}");
    });
}

#[test]
fn a_batch_is_one_commit() {
    let slow = Slow::new(SYNC, false);
    let commits = slow.commits.clone();
    serving(slow, |endpoint| {
        let reply = Client::connect(endpoint, Some(PATIENCE))
            .unwrap()
            .call(&request(&[CHANGE; 5000]))
            .unwrap();
        assert_eq!(reply.messages.len(), 5000);
        assert_eq!(commits.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn questions_are_answered_while_a_group_is_in_the_store() {
    serving(Slow::new(Duration::from_secs(2), false), |endpoint| {
        thread::scope(|scope| {
            let change = scope.spawn(|| {
                let begun = Instant::now();
                let client = Client::connect(endpoint, Some(PATIENCE)).unwrap();
                client.call(&request(&[CHANGE])).unwrap();
                begun.elapsed()
            });
            thread::sleep(Duration::from_millis(200));
            let begun = Instant::now();
            let client = Client::connect(endpoint, Some(PATIENCE)).unwrap();
            client.call(&request(&[QUESTION])).unwrap();
            assert!(begun.elapsed() < Duration::from_secs(1));
            assert!(change.join().unwrap() >= Duration::from_secs(2));
        });
    });
}

#[test]
fn a_failed_commit_refuses_each_change_of_its_group() {
    serving(Slow::new(SYNC, true), |endpoint| {
        let client = Client::connect(endpoint, Some(PATIENCE)).unwrap();
        let reply = client.call(&request(&[QUESTION, CHANGE, QUESTION, CHANGE])).unwrap();
        let said: Vec<(bool, &str)> = reply
            .messages
            .iter()
            .map(|message| &message.message_0.response.status)
            .map(|status| (status.status(), status.error.description()))
            .collect();
        let undone = (false, "the disk is full");
        assert_eq!(said, [(true, ""), undone, undone, undone]);
    });
}
