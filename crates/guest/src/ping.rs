//! Behind a BENCH vnic that asks: echo requests, one after the other, and how long the answers
//! take.

use std::{
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use butterfly_packet::Mac;

use crate::{
    echo::{self, Echo},
    seat::{End, Seat},
    vnic::{BURST, Vnic},
};

/// Receiver of each measurement of a thousand answers.
pub type Told = Box<dyn Fn(Times) + Send>;

/// The identifier of our requests, as the original has it.
const ID: u16 = 0x0bb0;
/// Data of a request, so that one over IPv4 has 98 bytes.
const DATA: usize = 56;
/// Time after which a question is given up, and the next one asked. Answers that come later count
/// all the same.
const PATIENCE: Duration = Duration::from_millis(1);
/// Questions that are remembered, a power of two.
const REMEMBERED: usize = 1024;
/// Answers of one measurement.
const MEASUREMENT: u64 = 1024;

/// Times that answers took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Number of the answers.
    pub count: u64,
    /// The shortest time.
    pub min: Duration,
    /// All of them together.
    pub sum: Duration,
    /// The longest time.
    pub max: Duration,
}

impl Times {
    /// The mean.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos((self.sum.as_nanos() / u128::from(self.count.max(1))) as u64)
    }

    fn with(self, time: Duration) -> Times {
        Times {
            count: self.count + 1,
            min: self.min.min(time),
            sum: self.sum + time,
            max: self.max.max(time),
        }
    }

    fn add(times: &mut Option<Times>, time: Duration) {
        *times =
            Some(times.map_or(Times { count: 1, min: time, sum: time, max: time }, |times| {
                times.with(time)
            }));
    }
}

/// Questions and answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pings {
    /// Requests sent.
    pub requests: u64,
    /// Times of all answers; `None` while there was none.
    pub times: Option<Times>,
}

/// The same, for two threads.
#[derive(Default)]
pub(crate) struct Record(Mutex<Pings>);

impl Record {
    pub fn read(&self) -> Pings {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Pings)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Asks until it is asked to end.
pub(crate) fn run(
    seat: &mut Seat,
    vnic: &Vnic,
    (ip, mac): (IpAddr, Mac),
    record: &Record,
    told: &Told,
) -> End {
    let mut asker = Asker { asked: [None; REMEMBERED], next: 0, last: None, measured: None };
    loop {
        if let Err(end) = asker.turn(seat, vnic, (ip, mac), record, told) {
            return end;
        }
    }
}

struct Asker {
    /// Time at which each of the last questions was asked, by its number; none if it was answered.
    asked: [Option<Instant>; REMEMBERED],
    /// The number of the next question.
    next: u16,
    /// Time at which the last question was asked, if it was not answered.
    last: Option<Instant>,
    measured: Option<Times>,
}

impl Asker {
    fn turn(
        &mut self,
        seat: &mut Seat,
        vnic: &Vnic,
        (ip, mac): (IpAddr, Mac),
        record: &Record,
        told: &Told,
    ) -> Result<(), End> {
        if seat.stopping() {
            return Err(End::Stopped);
        }
        let packet = seat.ip().and_then(|own| echo::packet((vnic.mac, own), (mac, ip)));
        let Some(packet) = packet else {
            // Without an address there is no station to answer. Frames that arrive are ignored.
            seat.nic.receive(BURST, |_, _| ())?;
            seat.sleep(None, None)?;
            return Ok(());
        };
        let mut frame = Vec::new();
        let mut answered = Vec::new();
        let received = seat.nic.receive(BURST, |memory, pieces| {
            echo::gather(memory, pieces, &mut frame);
            answered.extend(
                echo::read(&frame)
                    .filter(|echo| echo.source == ip)
                    .and_then(|echo| self.answered(&echo)),
            );
        })?;
        seat.noticed(answered.len());
        for time in answered {
            record.change(|pings| Times::add(&mut pings.times, time));
            Times::add(&mut self.measured, time);
        }
        if let Some(times) = self.measured.filter(|times| times.count >= MEASUREMENT) {
            self.measured = None;
            told(times);
        }
        let waited = self.last.map(|last| last.elapsed());
        match waited.and_then(|waited| PATIENCE.checked_sub(waited)) {
            Some(left) if !left.is_zero() => {
                if received == 0 && seat.is_quiet() {
                    seat.sleep(None, Some(left))?;
                }
            }
            _ => self.ask(seat, packet.ping(ID, self.next, &data()), record)?,
        }
        Ok(())
    }

    fn ask(&mut self, seat: &mut Seat, question: Vec<u8>, record: &Record) -> Result<(), End> {
        let now = Instant::now();
        // One that found no room counts as lost.
        self.last = Some(now);
        if echo::send(seat, [question])? > 0 {
            self.asked[usize::from(self.next) % REMEMBERED] = Some(now);
            self.next = self.next.wrapping_add(1);
            record.change(|pings| pings.requests += 1);
        }
        Ok(())
    }

    /// Returns how long an answer took, if it is one to a question that waits for it.
    fn answered(&mut self, echo: &Echo<'_>) -> Option<Duration> {
        if echo.request || echo.message.echo_id() != ID {
            return None;
        }
        let number = echo.message.echo_sequence();
        let age = usize::from(self.next.wrapping_sub(number));
        if !(1..=REMEMBERED).contains(&age) {
            return None;
        }
        let asked = self.asked[usize::from(number) % REMEMBERED].take()?;
        if age == 1 {
            self.last = None;
        }
        Some(asked.elapsed())
    }
}

/// The data of a request: when it was made, in microseconds since the epoch.
fn data() -> [u8; DATA] {
    let mut data = [0; DATA];
    let micros =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
    data[..8].copy_from_slice(&micros.to_be_bytes());
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(number: u16, answer: bool) -> Vec<u8> {
        let packet =
            echo::packet((Mac([2; 6]), [10, 0, 0, 2].into()), (Mac([4; 6]), [10, 0, 0, 1].into()))
                .unwrap();
        if answer {
            packet.icmp(0, 0, u32::from(ID) << 16 | u32::from(number), &[])
        } else {
            packet.ping(ID, number, &[])
        }
    }

    #[test]
    fn an_answer_counts_once_and_only_if_it_was_asked_for() {
        let mut asker = Asker {
            asked: [None; REMEMBERED],
            next: 5,
            last: Some(Instant::now()),
            measured: None,
        };
        for number in [2, 3, 4] {
            asker.asked[number] = Some(Instant::now());
        }
        let mut answered = |frame: &[u8]| asker.answered(&echo::read(frame).unwrap()).is_some();
        assert!(!answered(&frame(4, false)), "a question");
        assert!(!answered(&frame(5, true)), "not asked yet");
        assert!(!answered(&frame(5 + 0x8000, true)), "long ago");
        assert!(answered(&frame(3, true)), "late");
        assert!(!answered(&frame(3, true)), "twice");
        assert!(answered(&frame(4, true)));
        assert!(asker.last.is_none(), "the next question follows");
    }

    #[test]
    fn the_mean_is_of_all() {
        let mut times = None;
        for micros in [10, 20, 60] {
            Times::add(&mut times, Duration::from_micros(micros));
        }
        let times = times.unwrap();
        assert_eq!(
            (times.count, times.min, times.max),
            (3, Duration::from_micros(10), Duration::from_micros(60))
        );
        assert_eq!(times.mean(), Duration::from_micros(30));
    }
}
