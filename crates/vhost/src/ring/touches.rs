//! First touches: pages of a guest's memory that the switch touches before any other program did,
//! or since a hole was punched there.
//!
//! Each first touch is a page fault inside the worker. It takes 1 to 5 us and usually a new page,
//! which is charged to the daemon. An ordinary guest has such pages, as its driver posts buffers
//! that were never written; so nothing is refused. But there is a budget per vnic, [`RATE`] and
//! [`BURST`]. A vnic beyond its budget rests: frames for it are [`super::NotDelivered::Resting`],
//! and the frames it sends wait in its ring.
//!
//! On the usual path a batch pays for that with one store per ring, which says whose memory is
//! touched now. Everything else happens only while workers fault at all. Housekeeping reads their
//! fault counts from /proc ten times a second ([`look`]). While these grow by more than
//! [`NOTICED`], workers read their own count (getrusage) whenever they go from one vnic's ring to
//! another's. So the faults of the first tenth of a second are not counted. Pages that the guest
//! did touch, but that are not mapped here yet, count too.
//!
//! A fault in a page of 2 MiB or 1 GiB counts as all of its 4 KiB pages ([`Touches::costs`]).
//!
//! A fault may sleep. A page of a range in which the front end is punching a hole cannot be had
//! until the whole range is done (0.3 s per GiB). A page in swap has to be read. The worker itself
//! cannot do anything about it. Housekeeping sees whose memory a sleeping worker touches, and that
//! vnic rests for [`STALL_RESTS`] times as long afterwards.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    fs,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use butterfly_mem::cpu;

/// Pages per second and vnic: 128 MiB, 3 to 15 % of a worker's time.
const RATE: i64 = 32_768;
/// At once: 256 MiB, more than the kernel of a guest that boots posts.
const BURST: i64 = 65_536;
/// Faults of a worker per look from which on they are counted: 40 MiB/s at ten looks per second.
const NOTICED: u64 = 1000;
/// Looks without as many after which they are not counted any more.
const QUIET_LOOKS: u32 = 10;
/// Rest of a vnic after a stall, in multiples of the stall: it has a twentieth of the worker's time
/// at most.
const STALL_RESTS: u32 = 20;

/// [`BURST`] and [`RATE`].
static BUDGET: OnceLock<(i64, i64)> = OnceLock::new();
/// Workers count their faults.
static METERING: AtomicBool = AtomicBool::new(false);
/// Number of times that counting began.
static SPAN: AtomicU64 = AtomicU64::new(0);
/// Time until which some vnic rests (ticks).
static RESTING_UNTIL: AtomicU64 = AtomicU64::new(0);
static IDS: AtomicU64 = AtomicU64::new(1);

/// A vnic's first touches. Times are ticks of the time stamp counter.
#[derive(Debug)]
pub struct Touches {
    id: u64,
    /// Pages of 4 KiB that a fault stands for.
    each: AtomicU64,
    pages: AtomicU64,
    budget: AtomicI64,
    filled: AtomicU64,
    rest_until: AtomicU64,
    rests: AtomicU64,
    stalls: AtomicU64,
    stalled_us: AtomicU64,
}

/// A vnic's first touches for the operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TouchReport {
    /// Pages of its memory that the switch touched first, as far as they were counted.
    pub pages: u64,
    /// Number of rests for having touched too many pages.
    pub rests: u64,
    /// Number of times that a worker was seen to sleep for one of its pages.
    pub stalls: u64,
    /// Total length of these stalls.
    pub stalled: Duration,
}

impl Touches {
    /// A vnic that touched nothing yet.
    pub fn new() -> Arc<Touches> {
        let new = Arc::new(Touches {
            id: IDS.fetch_add(1, Relaxed),
            each: AtomicU64::new(1),
            pages: AtomicU64::new(0),
            budget: AtomicI64::new(BUDGET.get_or_init(|| (BURST, RATE)).0),
            filled: AtomicU64::new(cpu::tsc()),
            rest_until: AtomicU64::new(0),
            rests: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            stalled_us: AtomicU64::new(0),
        });
        locked(&ALL).get_or_insert_default().insert(new.id, Arc::downgrade(&new));
        new
    }

    /// For the operator.
    pub fn report(&self) -> TouchReport {
        TouchReport {
            pages: self.pages.load(Relaxed),
            rests: self.rests.load(Relaxed),
            stalls: self.stalls.load(Relaxed),
            stalled: Duration::from_micros(self.stalled_us.load(Relaxed)),
        }
    }

    /// Makes the touches of rings that belong to no vnic yet.
    pub(super) fn nobody() -> Arc<Touches> {
        static NOBODY: OnceLock<Arc<Touches>> = OnceLock::new();
        NOBODY.get_or_init(Touches::new).clone()
    }

    fn rests_at(&self, now: u64) -> bool {
        self.rest_until.load(Relaxed) > now
    }

    fn rest(&self, until: u64) {
        self.rest_until.fetch_max(until, Relaxed);
        RESTING_UNTIL.fetch_max(until, Relaxed);
    }

    /// Sets how many pages of 4 KiB a page fault in this memory takes at most from now on. The
    /// kernel clears a page of 2 MiB or 1 GiB as a whole, which takes as much longer.
    pub(crate) fn costs(&self, pages: u64) {
        self.each.store(pages, Relaxed);
    }

    /// Charges `faults` page faults, up to `now`; there are `hz` ticks in a second.
    fn charge(&self, faults: u64, now: u64, hz: u64) {
        let pages = faults.saturating_mul(self.each.load(Relaxed));
        self.pages.fetch_add(pages, Relaxed);
        let passed = now.saturating_sub(self.filled.fetch_max(now, Relaxed));
        let (burst, rate) = *BUDGET.get_or_init(|| (BURST, RATE));
        let per_second = u128::from(rate.unsigned_abs().max(1));
        let earned =
            i64::try_from(u128::from(passed) * per_second / u128::from(hz.max(1))).unwrap_or(burst);
        let spent = i64::try_from(pages).unwrap_or(i64::MAX);
        // Several workers may touch one machine's memory.
        let rest = |budget: i64| budget.saturating_add(earned).min(burst).saturating_sub(spent);
        let before = self.budget.fetch_update(Relaxed, Relaxed, |budget| Some(rest(budget)));
        let left = rest(before.unwrap_or(0));
        if left < 0 && pages > 0 {
            self.rests.fetch_add(1, Relaxed);
            // Until it has a hundredth of what a second earns.
            let missing = u128::from((rate / 100 - left).unsigned_abs());
            self.rest(now.saturating_add(
                u64::try_from(missing * u128::from(hz) / per_second).unwrap_or(u64::MAX),
            ));
        }
    }

    /// A worker has been asleep for one of its pages for `more` again, `all` in all.
    fn stalled(&self, more: Duration, all: Duration, now: u64, hz: u64) {
        if more == all {
            self.stalls.fetch_add(1, Relaxed);
        }
        self.stalled_us.fetch_add(u64::try_from(more.as_micros()).unwrap_or(u64::MAX), Relaxed);
        let rest = u64::try_from((all * STALL_RESTS).as_micros()).unwrap_or(u64::MAX);
        self.rest(now.saturating_add(rest.saturating_mul(hz / 1_000_000)));
        count_from_now();
    }
}

/// Workers count from now on.
fn count_from_now() {
    if !metering() {
        SPAN.fetch_add(1, Relaxed);
        METERING.store(true, Relaxed);
    }
}

impl Drop for Touches {
    fn drop(&mut self) {
        if let Some(all) = locked(&ALL).as_mut() {
            all.remove(&self.id);
        }
    }
}

/// All there are.
static ALL: Mutex<Option<HashMap<u64, Weak<Touches>>>> = Mutex::new(None);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---- What a worker does ----

thread_local! {
    /// Cell in which this worker says whose memory it touches.
    static SAYS: Cell<Option<&'static AtomicU64>> = const { Cell::new(None) };
    /// Vnic to charge for faults from that count on, and the span of counting in which that began.
    static CHARGED: RefCell<Option<(Arc<Touches>, u64, u64)>> = const { RefCell::new(None) };
    static WATCHED: RefCell<Option<Watched>> = const { RefCell::new(None) };
}

/// The calling thread touches a vnic's memory from now on.
#[inline(always)]
pub(super) fn enter(of: &Arc<Touches>) {
    if let Some(says) = SAYS.get() {
        says.store(of.id, Relaxed);
    }
    if metering() {
        charge_to(Some(of));
    }
}

/// Records that the worker touches no guest's memory: a batch is in private memory.
pub(super) fn outside() {
    if let Some(says) = SAYS.get() {
        says.store(0, Relaxed);
    }
    own_memory();
}

/// Records that the worker touches no guest's memory, until it uses a ring or reads more of a
/// frame. The pages of a new session's record are not the sender's, and no large ones if its are.
#[inline(always)]
pub fn own_memory() {
    if metering() {
        charge_to(None);
    }
}

/// True if faults are counted, and vnics may have to rest.
#[inline(always)]
pub(super) fn metering() -> bool {
    METERING.load(Relaxed)
}

/// True if a vnic has to rest.
#[inline(always)]
pub(super) fn rests(of: &Touches) -> bool {
    metering() && rests_now(of)
}

#[cold]
fn rests_now(of: &Touches) -> bool {
    of.rests_at(cpu::tsc())
}

#[cold]
fn charge_to(next: Option<&Arc<Touches>>) {
    let _ = CHARGED.try_with(|charged| {
        let Ok(mut charged) = charged.try_borrow_mut() else { return };
        let faults = faults();
        let span = SPAN.load(Relaxed);
        // Faults from before counting began belong to no vnic.
        if let Some((of, from, _)) = charged.as_ref().filter(|(_, _, begun)| *begun == span) {
            of.charge(faults.saturating_sub(*from), cpu::tsc(), cpu::tsc_hz());
        }
        *charged = next.map(|next| (next.clone(), faults, span));
    });
}

/// Page faults of this thread.
fn faults() -> u64 {
    // SAFETY: an all-zero rusage is valid, and the call writes one.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    usage.ru_minflt.unsigned_abs().saturating_add(usage.ru_majflt.unsigned_abs())
}

// ---- What is seen of workers from outside ----

/// A thread that is looked at, until this is dropped.
struct Watched(u32);

/// Findings of the last look at a worker.
struct Seen {
    thread: u32,
    says: &'static AtomicU64,
    last: Option<Sample>,
    when: Instant,
    /// Time for which it has been asleep for one page.
    stalled: Duration,
}

/// A worker at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    /// True if it sleeps, and nothing but the event it waits for wakes it.
    asleep: bool,
    faults: u64,
    /// Times it went to sleep; only known of one that does.
    sleeps: u64,
    /// Slot of the vnic whose memory it touches.
    whose: u64,
}

static WORKERS: Mutex<Vec<Seen>> = Mutex::new(Vec::new());

impl Drop for Watched {
    fn drop(&mut self) {
        locked(&WORKERS).retain(|seen| seen.thread != self.0);
    }
}

/// The calling thread is a worker: it is looked at from now on.
pub(super) fn watch_me() {
    let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    let _ = WATCHED.try_with(|watched| {
        if let Ok(mut watched) = watched.try_borrow_mut()
            && watched.is_none()
        {
            let says: &'static AtomicU64 = Box::leak(Box::default());
            SAYS.set(Some(says));
            locked(&WORKERS).push(Seen {
                thread,
                says,
                last: None,
                when: Instant::now(),
                stalled: Duration::ZERO,
            });
            *watched = Some(Watched(thread));
        }
    });
}

/// Looks at all workers. To be called about ten times a second, by a thread that is none.
pub fn look() {
    static QUIET: AtomicU64 = AtomicU64::new(0);
    let (now, ticks, hz) = (Instant::now(), cpu::tsc(), cpu::tsc_hz());
    let mut noticed = false;
    for seen in locked(&WORKERS).iter_mut() {
        let Some(sample) = sample(seen.thread, seen.says.load(Relaxed)) else { continue };
        let (more, faults) = seen.compare(sample, now);
        noticed |= is_noticed(faults, dearest);
        if let Some(more) = more
            && let Some(of) =
                locked(&ALL).as_ref().and_then(|all| all.get(&sample.whose)).and_then(Weak::upgrade)
        {
            of.stalled(more, seen.stalled, ticks, hz);
        }
    }
    if noticed || RESTING_UNTIL.load(Relaxed) > ticks {
        QUIET.store(0, Relaxed);
        count_from_now();
    } else if metering() && QUIET.fetch_add(1, Relaxed) + 1 >= u64::from(QUIET_LOOKS) {
        METERING.store(false, Relaxed);
    }
}

/// Returns whether so many faults since the last look are to be counted. Their vnics are not known,
/// so each is taken for one of the `dearest`.
fn is_noticed(faults: u64, dearest: impl FnOnce() -> u64) -> bool {
    faults >= NOTICED || faults > 0 && faults.saturating_mul(dearest()) >= NOTICED
}

/// Returns the most pages that one fault of any vnic takes.
fn dearest() -> u64 {
    let all = locked(&ALL);
    let each = all.iter().flat_map(|all| all.values()).filter_map(Weak::upgrade);
    each.map(|of| of.each.load(Relaxed)).max().unwrap_or(1)
}

impl Seen {
    /// Compares a sample with the last one. Returns how much longer the worker has been asleep for
    /// one page, if it is, and its faults since the last look.
    fn compare(&mut self, sample: Sample, now: Instant) -> (Option<Duration>, u64) {
        let passed = now.saturating_duration_since(self.when);
        let faults = self.last.map_or(0, |last| sample.faults.saturating_sub(last.faults));
        let same = self.last.is_some_and(|last| {
            (last.asleep, last.sleeps, last.whose) == (true, sample.sleeps, sample.whose)
        });
        let more = (sample.asleep && same && sample.whose != 0).then_some(passed);
        self.stalled = more.map_or(Duration::ZERO, |more| self.stalled + more);
        (self.last, self.when) = (Some(sample), now);
        (more, faults)
    }
}

/// Reads what the kernel says about a thread of this process; `None` if that is over.
fn sample(thread: u32, whose: u64) -> Option<Sample> {
    let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    let (state, faults) = parse_stat(&stat)?;
    let asleep = state == "D";
    let sleeps = if asleep {
        let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse().ok()?
    } else {
        0
    };
    Some(Sample { asleep, faults, sleeps, whose })
}

/// State and page faults. A thread's name may hold anything, but nothing behind it holds a
/// parenthesis.
fn parse_stat(stat: &str) -> Option<(&str, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    // The third field is the state, the tenth and twelfth are faults.
    let minor: u64 = fields.nth(6)?.parse().ok()?;
    let major: u64 = fields.nth(1)?.parse().ok()?;
    Some((state, minor.saturating_add(major)))
}

/// For tests, before there is a vnic: counts faults from now on as if a worker had many, against a
/// budget of so many pages at once and per second.
#[doc(hidden)]
pub fn meter(burst: u32, rate: u32) {
    BUDGET.get_or_init(|| (burst.into(), rate.into()));
    METERING.store(true, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const HZ: u64 = 1_000_000_000;

    fn fresh() -> Arc<Touches> {
        let touches = Touches::new();
        touches.filled.store(0, Relaxed);
        touches
    }

    #[test]
    fn a_burst_is_free_and_what_follows_is_paced() {
        let of = fresh();
        of.charge(BURST as u64, 0, HZ);
        assert!(!of.rests_at(0));
        of.charge(0, 1, HZ);
        assert!(!of.rests_at(1));
        // Twice what a second earns: it rests for two seconds, and until it has earned a little.
        of.charge(2 * RATE as u64, 1, HZ);
        assert!(of.rests_at(2 * HZ) && !of.rests_at(2 * HZ + HZ / 50));
        assert_eq!((of.report().pages, of.report().rests), (BURST as u64 + 2 * RATE as u64, 1));
        // A vnic that keeps to the rate never rests.
        let of = fresh();
        for second in 1..100u64 {
            of.charge(RATE as u64, second * HZ, HZ);
        }
        assert_eq!(of.report().rests, 0);
    }

    /// A machine with large pages has as many bytes touched as any other, not as many faults.
    #[test]
    fn a_large_page_counts_as_all_that_it_holds() {
        let of = fresh();
        of.costs(512);
        of.charge(128, 0, HZ);
        assert_eq!((of.report().pages, of.rests_at(0)), (BURST as u64, false));
        of.charge(1, 0, HZ);
        assert!(of.rests_at(0) && of.report().rests == 1);
        // Two faults in a tenth of a second are noticed if somebody has such pages.
        let noticed = |faults, dearest| is_noticed(faults, || dearest);
        assert_eq!([noticed(999, 1), noticed(1000, 1)], [false, true]);
        assert_eq!([noticed(1, 512), noticed(2, 512), noticed(1, 262_144)], [false, true, true]);
        assert!(!noticed(0, 262_144));
        assert!(dearest() >= 512);
    }

    #[test]
    fn a_stall_costs_twenty_times_as_much() {
        let of = fresh();
        let tenth = Duration::from_millis(100);
        of.stalled(tenth, tenth, 0, HZ);
        assert!(of.rests_at(2 * HZ - 1) && !of.rests_at(2 * HZ));
        of.stalled(tenth, 2 * tenth, HZ / 10, HZ);
        assert!(of.rests_at(4 * HZ) && !of.rests_at(4 * HZ + HZ / 10));
        assert_eq!((of.report().stalls, of.report().stalled), (1, 2 * tenth));
    }

    #[test]
    fn only_who_sleeps_on_is_stalled() {
        let begin = Instant::now();
        let says: &'static AtomicU64 = Box::leak(Box::default());
        let mut seen = Seen { thread: 0, says, last: None, when: begin, stalled: Duration::ZERO };
        let mut at = |n: u32, sample| {
            let (more, faults) = seen.compare(sample, begin + n * Duration::from_millis(100));
            (more.map(|more| more.as_millis()), faults, seen.stalled.as_millis())
        };
        let awake = Sample { asleep: false, faults: 10, sleeps: 0, whose: 7 };
        let asleep = Sample { asleep: true, sleeps: 3, ..awake };
        assert_eq!(at(1, awake), (None, 0, 0));
        assert_eq!(at(2, asleep), (None, 0, 0), "it may just have fallen asleep");
        assert_eq!(at(3, asleep), (Some(100), 0, 100));
        assert_eq!(at(4, asleep), (Some(100), 0, 200));
        assert_eq!(at(5, Sample { sleeps: 4, ..asleep }), (None, 0, 0), "it woke up meanwhile");
        assert_eq!(
            at(6, Sample { sleeps: 4, whose: 8, ..asleep }),
            (None, 0, 0),
            "it is another's page"
        );
        assert_eq!(at(7, Sample { faults: 1010, ..awake }), (None, 1000, 0));
    }

    #[test]
    fn faults_in_the_switch_s_own_memory_are_nobody_s() {
        const OF_GUEST: usize = 64;
        const OWN: usize = 2000;
        let len = (OF_GUEST + OWN) * 4096;
        // SAFETY: a new mapping at an address the kernel chooses, unmapped below.
        let base = unsafe {
            use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
            let both = ProtFlags::READ | ProtFlags::WRITE;
            let base = mmap_anonymous(std::ptr::null_mut(), len, both, MapFlags::PRIVATE).unwrap();
            madvise(base, len, Advice::LinuxNoHugepage).unwrap();
            base.cast::<u8>()
        };
        // SAFETY: it is within the mapping.
        let touch = |page: usize| unsafe { base.add(page * 4096).write_volatile(1) };
        count_from_now();
        let (of, other) = (fresh(), fresh());
        enter(&of);
        (0..OF_GUEST).for_each(touch);
        own_memory();
        (OF_GUEST..OF_GUEST + OWN).for_each(touch);
        enter(&other);
        own_memory();
        // SAFETY: nobody uses it any more.
        unsafe { rustix::mm::munmap(base.cast(), len) }.unwrap();
        let (of, other) = (of.report().pages, other.report().pages);
        assert!(
            (OF_GUEST as u64..OF_GUEST as u64 + 100).contains(&of) && other < 100,
            "{of} {other}"
        );
    }

    #[test]
    fn what_the_kernel_says_is_understood() {
        let line = "4711 (a ) D (b) D 1 2 3 4 5 6 100 8 11 10 0";
        assert_eq!(parse_stat(line), Some(("D", 111)));
        assert_eq!(parse_stat("4711 (x) R 1"), None);
        let before = faults();
        let own =
            sample(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs(), 0).unwrap();
        assert!(own.faults >= before && own.faults <= faults() && !own.asleep);
    }

    /// Lets a front end punch a hole around the page that a worker touches. The sleep of the worker
    /// is seen, and its length measured.
    #[test]
    #[ignore = "long: make test-long"]
    fn who_punches_a_hole_under_load_is_found_and_rests() {
        use rustix::{
            fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create},
            mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap},
        };
        const SIZE: usize = 1 << 30;
        let file = memfd_create("holes", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, SIZE as u64).unwrap();
        // SAFETY: a new mapping, populated, and unmapped after its last use.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                SIZE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }
        .unwrap();
        // SAFETY: the mapping just made.
        unsafe { madvise(base, SIZE, Advice::LinuxPopulateWrite) }.unwrap();
        let (of, address) = (Touches::new(), base as usize);
        let stop = AtomicBool::new(false);
        let took = std::thread::scope(|scope| {
            scope.spawn(|| {
                watch_me();
                let mut at = 0;
                while !stop.load(Relaxed) {
                    enter(&of);
                    at = (at + 4096 * 12_289) % SIZE;
                    // SAFETY: inside the mapping, which lives as long as this thread.
                    unsafe {
                        std::ptr::with_exposed_provenance_mut::<u8>(address + at).write_volatile(1)
                    };
                }
            });
            let punch = scope.spawn(|| {
                let begun = Instant::now();
                fallocate(
                    &file,
                    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    0,
                    SIZE as u64,
                )
                .unwrap();
                begun.elapsed()
            });
            while !punch.is_finished() {
                look();
                std::thread::sleep(Duration::from_millis(5));
            }
            stop.store(true, Relaxed);
            punch.join().unwrap()
        });
        // SAFETY: made above; the thread that used it is over.
        unsafe { munmap(base, SIZE) }.unwrap();
        let report = of.report();
        println!(
            "a hole of 1 GiB took {took:?}; the worker was seen to sleep for {:?}",
            report.stalled
        );
        assert!(
            report.stalls > 0 && report.stalled > took / 4 && report.stalled <= took * 2,
            "{report:?} of {took:?}"
        );
        assert!(rests(&of));
    }
}
