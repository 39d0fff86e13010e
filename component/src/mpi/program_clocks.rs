//! The clocks of a protected program: what its first thread reads from clock_gettime, gettimeofday,
//! clock, times, getrusage and timespec_get is recorded, and given again to a process that was
//! restored (docs/adr/0029). C++'s chrono, Fortran's system_clock, date_and_time and cpu_time, and
//! Python's time call these. MPI_Wtime is one more of them (`wtime`); time() has its own way
//! (`time`).
//!
//! The machine is coordination's `ClockReadings`. Calls come here by `interpose`, from the program,
//! from libraries that call MPI, and from the libraries of its language; other libraries read
//! clocks when they like, and not as often in the next incarnation.
//!
//! A reading that comes very soon after the last one of that clock is the same, and the clock is
//! not even read: the processor's counter says how soon. So a program that looks at the clock in a
//! loop does not notice that it is recorded.
//!
//! A signal handler may call these functions at any moment: nothing is allocated and no lock is
//! taken in here but the engine's, and where the thread is in the engine already it gets the
//! machine's time.
//!
//! Not recorded: other threads, programs with MPI_THREAD_SERIALIZED (as time()), clocks of other
//! processes and threads (clock_getcpuclockid), what getrusage says but the times.
//!
//! Invariants:
//! 1. What the first thread reads from a clock never decreases, whatever machine it is restored on.
//! 2. Readings go out before the next thing that the process sends (`SLOW_PATH`).

use crate::determinants::recorder::{ClocksThen, flush_many};
use crate::determinants::set_order::{RUN, SLOW_PATH, rustbtl_recording};
use crate::engine::driver_state::Driver;
use crate::engine::recording::READINGS_ROOM;
use crate::engine::shared::{is_installed, shared};
use crate::mpi::interpose::Source;
use crate::os::ticks;
use crate::sync::engine_lock;
use core::ffi::c_int;
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use libc::{clock_t, clockid_t, rusage, timespec, timeval, tms};
use rustbtl_coordination::determinants::{CLOCKS, Ticks};
use std::io::Read;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

const NS_PER_SECOND: u64 = 1_000_000_000;
const NS_PER_US: u64 = 1000;
/// clock_t of times(2): a hundredth of a second.
const NS_PER_CLOCK_TICK: u64 = NS_PER_SECOND / 100;

// Those of the kernel have its numbers.
const REALTIME: u8 = libc::CLOCK_REALTIME as u8;
const MONOTONIC: u8 = libc::CLOCK_MONOTONIC as u8;
const PROCESS_CPU: u8 = libc::CLOCK_PROCESS_CPUTIME_ID as u8;
const THREAD_CPU: u8 = libc::CLOCK_THREAD_CPUTIME_ID as u8;
const RAW: u8 = libc::CLOCK_MONOTONIC_RAW as u8;
const REALTIME_COARSE: u8 = libc::CLOCK_REALTIME_COARSE as u8;
const MONOTONIC_COARSE: u8 = libc::CLOCK_MONOTONIC_COARSE as u8;
const BOOT: u8 = libc::CLOCK_BOOTTIME as u8;
const TAI: u8 = libc::CLOCK_TAI as u8;
/// What times(2) returns: since some moment before the start of the machine.
const SINCE_BOOT: u8 = 12;
/// The four that it fills in, and the two of getrusage(2).
const TIMES: [u8; 4] = [13, 14, 15, 16];
const USAGE: [u8; 2] = [17, 18];
/// What MPI_Wtime reads: the kernel's monotonic clock. Its readings are apart from those of
/// [`MONOTONIC`], which a language's library may read another number of times.
pub(super) const MPI_CLOCK: u8 = 19;
const _: () = assert!(CLOCKS > MPI_CLOCK as usize);

/// Clocks that run from the start of a machine: another one has another origin.
const OF_A_MACHINE: [u8; 6] = [MONOTONIC, RAW, MONOTONIC_COARSE, BOOT, SINCE_BOOT, MPI_CLOCK];

/// Nanoseconds between the machine's clocks and the program's.
static OFFSET_NS: [AtomicI64; CLOCKS] = [const { AtomicI64::new(0) }; CLOCKS];

/// So many determinants wait before the checkpoint thread is asked to send them.
const MANY: usize = READINGS_ROOM / 4;

/// The processor's counter, and what the clock was then; ticks in a microsecond, 0: not known, or
/// not to be used.
static COUNTED_FROM: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static TICKS_PER_US: AtomicU64 = AtomicU64::new(0);
/// After such a time the rate is known well enough.
const COUNTED_NS: u64 = 2_000_000;

/// Which start of the machine the process was in when it was asked last.
static BOOT_ID: Mutex<Option<[u8; 36]>> = Mutex::new(None);

/// Allocates nothing.
fn boot_id() -> Option<[u8; 36]> {
    let mut text = [0; 36];
    let mut file = std::fs::File::open("/proc/sys/kernel/random/boot_id").ok()?;
    file.read_exact(&mut text).ok()?;
    Some(text)
}

/// Does the kernel itself tell the time by the processor's counter? Then it is the same on all
/// processors, and reading it is cheap.
fn counter_is_good() -> bool {
    const FILE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    const GOOD: [&str; 3] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"];
    cfg!(target_arch = "x86_64")
        && std::fs::read_to_string(FILE).is_ok_and(|text| GOOD.contains(&text.trim()))
}

/// The counter's rate is found out from now on, on this machine.
fn count_from_now() {
    TICKS_PER_US.store(0, Ordering::Relaxed);
    let now_ns = if counter_is_good() { crate::os::now_ns() } else { 0 };
    COUNTED_FROM[0].store(ticks(), Ordering::Relaxed);
    COUNTED_FROM[1].store(now_ns, Ordering::Relaxed);
}

fn ticks_per_us() -> u64 {
    let known = TICKS_PER_US.load(Ordering::Relaxed);
    let from_ns = COUNTED_FROM[1].load(Ordering::Relaxed);
    if known != 0 || from_ns == 0 {
        return known;
    }
    let ns = crate::os::now_ns().saturating_sub(from_ns);
    if ns < COUNTED_NS {
        return 0;
    }
    let count = ticks().wrapping_sub(COUNTED_FROM[0].load(Ordering::Relaxed));
    let per_us = u128::from(count) * u128::from(NS_PER_US) / u128::from(ns);
    // One that was set back in between, by another processor, is not used.
    let per_us = u64::try_from(per_us).ok().filter(|&rate| rate < 100_000).unwrap_or(0);
    TICKS_PER_US.store(per_us, Ordering::Relaxed);
    per_us
}

/// The clock of one of the kernel's ids, if it is recorded.
#[inline]
fn clock_of(id: clockid_t) -> Option<u8> {
    let id = u8::try_from(id).ok()?;
    (id <= BOOT || id == TAI).then_some(id)
}

fn ns_of(time: &timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(NS_PER_SECOND).saturating_add(time.tv_nsec as u64)
}

fn timespec_of(ns: u64) -> timespec {
    timespec {
        tv_sec: (ns / NS_PER_SECOND) as libc::time_t,
        tv_nsec: (ns % NS_PER_SECOND) as libc::c_long,
    }
}

fn timeval_of(ns: u64) -> timeval {
    let timespec { tv_sec, tv_nsec } = timespec_of(ns);
    timeval { tv_sec, tv_usec: tv_nsec / NS_PER_US as libc::c_long }
}

/// What the machine's clock says.
#[inline]
pub(super) fn machine_ns(id: clockid_t) -> u64 {
    let mut time = timespec_of(0);
    // SAFETY: writable.
    unsafe { libc::clock_gettime(id, &raw mut time) };
    ns_of(&time)
}

/// How far the program's clock is ahead of the machine's.
pub fn offset_ns(id: clockid_t) -> i64 {
    clock_of(id).map_or(0, |clock| OFFSET_NS[usize::from(clock)].load(Ordering::Relaxed))
}

fn is_recorded() -> bool {
    rustbtl_recording.load(Ordering::Acquire) != 0 && engine_lock::is_first() && is_installed()
}

/// The program's reading, if this call is one that is recorded, or forced.
#[inline]
fn recorded(clock: u8, machine_ns: impl FnOnce() -> u64) -> Option<u64> {
    if !is_recorded() {
        return None;
    }
    let mut driver = shared().enter_unless_inside()?;
    // It may have been switched off meanwhile.
    (rustbtl_recording.load(Ordering::Relaxed) != 0)
        .then(|| driver.read_program_clock(clock, machine_ns))
}

/// For threads that are not recorded: the same clock, so that they understand each other.
fn moved(clock: u8, machine_ns: u64) -> u64 {
    machine_ns.saturating_add_signed(OFFSET_NS[usize::from(clock)].load(Ordering::Relaxed))
}

impl Driver {
    #[inline]
    fn read_program_clock(&mut self, clock: u8, machine_ns: impl FnOnce() -> u64) -> u64 {
        let tick = ticks();
        match self.host.record.decisions.clock_again(clock, tick) {
            Some(ns) => ns,
            None => self.read_machine_clock(clock, tick, machine_ns),
        }
    }

    #[inline(never)]
    fn read_machine_clock(
        &mut self,
        clock: u8,
        tick: u64,
        machine_ns: impl FnOnce() -> u64,
    ) -> u64 {
        let decisions = &mut self.host.record.decisions;
        let readings = decisions.clock_readings(clock);
        let given_ns = readings.given_ns();
        // Without room for more it does not advance, until the checkpoint thread has sent some.
        let stays = readings.replays() || decisions.recorded_pending() + CLOCKS >= READINGS_ROOM;
        let now_ns = if stays { given_ns } else { moved(clock, machine_ns()) };
        if now_ns < given_ns && !matches!(clock, REALTIME | REALTIME_COARSE | TAI) {
            // Of another machine, or of another process: it goes on from where it was. A date
            // does not advance until the machine's is there.
            let lag = i64::try_from(given_ns - now_ns).unwrap_or(0);
            OFFSET_NS[usize::from(clock)].fetch_add(lag, Ordering::Relaxed);
        }
        let ticks = Ticks { now: tick, per_us: ticks_per_us() };
        let ns = decisions.read_clock(clock, now_ns, ticks);
        let pending = decisions.recorded_pending();
        if pending > 0 {
            // Not one operation: whoever else writes it is in here, too.
            SLOW_PATH.store(SLOW_PATH.load(Ordering::Relaxed) | RUN, Ordering::Relaxed);
        }
        if pending > MANY {
            flush_many();
        }
        ns
    }

    /// A snapshot is taken next.
    pub fn snapshot_program_clocks(&mut self) {
        let ns = OF_A_MACHINE.map(|clock| (clock, moved(clock, since_start_ns(clock))));
        self.host.record.clocks_then = Some(ClocksThen { ns, date: SystemTime::now() });
    }

    /// The process was restored from an image: the counter of this machine's processors is another
    /// one.
    pub fn restore_program_clocks(&mut self) {
        count_from_now();
    }

    /// The same: on another machine, or after another start of it, its clocks go on as if it had
    /// been running. Before its threads run, of which others than the first read them without
    /// asking, and compute deadlines from them; allocates nothing.
    pub fn move_program_clocks(&self) {
        let now = boot_id();
        // Only this thread, and MPI_Init before it, ever lock it.
        let mut known = BOOT_ID.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let same = now.is_some() && core::mem::replace(&mut *known, now) == now;
        let Some(then) = self.host.record.clocks_then.as_ref().filter(|_| !same) else { return };
        let gone = SystemTime::now().duration_since(then.date).unwrap_or(Duration::ZERO);
        for (clock, then_ns) in then.ns {
            let now_ns = u128::from(then_ns) + gone.as_nanos();
            let offset = now_ns as i128 - i128::from(since_start_ns(clock));
            let offset = i64::try_from(offset).unwrap_or(0);
            OFFSET_NS[usize::from(clock)].store(offset, Ordering::Relaxed);
        }
    }
}

/// What the machine says on one of [`OF_A_MACHINE`].
fn since_start_ns(clock: u8) -> u64 {
    match clock {
        SINCE_BOOT => {}
        MPI_CLOCK => return machine_ns(libc::CLOCK_MONOTONIC),
        _ => return machine_ns(clockid_t::from(clock)),
    }
    // SAFETY: a structure of integers, to which nothing is all zero.
    let mut filled: tms = unsafe { core::mem::zeroed() };
    // SAFETY: writable.
    let ticks = unsafe { libc::times(&raw mut filled) };
    u64::try_from(ticks).unwrap_or(0).saturating_mul(NS_PER_CLOCK_TICK)
}

/// The reading that a call gets whose machine's clock was `machine_ns` when it was not recorded: a
/// snapshot may have been taken in between.
#[inline]
fn otherwise(clock: u8, machine_ns: u64) -> u64 {
    recorded(clock, || machine_ns).unwrap_or_else(|| match clock {
        // Each thread has its own.
        THREAD_CPU => machine_ns,
        _ => moved(clock, machine_ns),
    })
}

/// The program asks for a clock of the kernel's, by whatever function.
#[inline]
pub(super) fn read(clock: u8, id: clockid_t) -> u64 {
    recorded(clock, || machine_ns(id)).unwrap_or_else(|| otherwise(clock, machine_ns(id)))
}

unsafe extern "C" fn clock_gettime(id: clockid_t, out: *mut timespec) -> c_int {
    let Some(clock) = clock_of(id).filter(|_| !out.is_null()) else {
        // SAFETY: the caller's promise.
        return unsafe { libc::clock_gettime(id, out) };
    };
    let ns = match recorded(clock, || machine_ns(id)) {
        Some(ns) => ns,
        None => {
            // SAFETY: the caller's promise.
            let code = unsafe { libc::clock_gettime(id, out) };
            if code != 0 {
                return code;
            }
            // SAFETY: it was filled in.
            otherwise(clock, ns_of(unsafe { &*out }))
        }
    };
    // SAFETY: the caller's promise.
    unsafe { out.write(timespec_of(ns)) };
    0
}

/// The kernel's zone, which nobody uses, is the kernel's.
unsafe extern "C" fn gettimeofday(out: *mut timeval, zone: *mut libc::timezone) -> c_int {
    if out.is_null() || !zone.is_null() {
        // SAFETY: the caller's promise.
        let code = unsafe { libc::gettimeofday(out, zone.cast()) };
        if code != 0 || out.is_null() {
            return code;
        }
    }
    let ns = read(REALTIME, libc::CLOCK_REALTIME);
    // SAFETY: the caller's promise.
    unsafe { out.write(timeval_of(ns)) };
    0
}

/// Of C11.
unsafe extern "C" fn timespec_get(out: *mut timespec, base: c_int) -> c_int {
    const TIME_UTC: c_int = 1;
    if base != TIME_UTC {
        return 0;
    }
    // SAFETY: the caller's promise.
    if unsafe { clock_gettime(libc::CLOCK_REALTIME, out) } == 0 { base } else { 0 }
}

extern "C" fn clock() -> clock_t {
    (read(PROCESS_CPU, libc::CLOCK_PROCESS_CPUTIME_ID) / NS_PER_US) as clock_t
}

unsafe extern "C" fn times(out: *mut tms) -> clock_t {
    // SAFETY: the caller's promise.
    let ticks = unsafe { libc::times(out) };
    let given = |clock, ticks: clock_t| {
        let ns = u64::try_from(ticks).unwrap_or(0).saturating_mul(NS_PER_CLOCK_TICK);
        (otherwise(clock, ns) / NS_PER_CLOCK_TICK) as clock_t
    };
    if ticks == -1 {
        return ticks;
    }
    // SAFETY: the caller's promise.
    if let Some(out) = unsafe { out.as_mut() } {
        let all =
            [&mut out.tms_utime, &mut out.tms_stime, &mut out.tms_cutime, &mut out.tms_cstime];
        all.into_iter().zip(TIMES).for_each(|(ticks, clock)| *ticks = given(clock, *ticks));
    }
    given(SINCE_BOOT, ticks)
}

unsafe extern "C" fn getrusage(who: c_int, out: *mut rusage) -> c_int {
    // SAFETY: the caller's promise.
    let code = unsafe { libc::getrusage(who, out) };
    if code == 0 && who == libc::RUSAGE_SELF {
        // SAFETY: it was filled in.
        let out = unsafe { &mut *out };
        for (time, clock) in [&mut out.ru_utime, &mut out.ru_stime].into_iter().zip(USAGE) {
            let us = time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
            *time = timeval_of(otherwise(clock, us * NS_PER_US));
        }
    }
    code
}

/// Finds out what the machine's clocks are like.
pub fn install() {
    count_from_now();
    *BOOT_ID.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = boot_id();
}

/// The functions that are called by way of us.
pub fn sources() -> [Source; 6] {
    [
        Source::of(c"clock_gettime", clock_gettime as *const ()),
        Source::of(c"gettimeofday", gettimeofday as *const ()),
        Source::of(c"timespec_get", timespec_get as *const ()),
        Source::of(c"clock", clock as *const ()),
        Source::of(c"times", times as *const ()),
        Source::of(c"getrusage", getrusage as *const ()),
    ]
    .map(Source::and_later)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_recorded_gets_the_machines_clocks() {
        for id in [0, 1, 2, 3, 4, 5, 6, 7, 11] {
            let before = machine_ns(id);
            let mut out = timespec_of(0);
            // SAFETY: writable.
            assert_eq!(unsafe { clock_gettime(id, &raw mut out) }, 0);
            assert!((before..=machine_ns(id)).contains(&ns_of(&out)), "{id}");
        }
        let mut out = timespec_of(0);
        // SAFETY: writable.
        assert_eq!(unsafe { clock_gettime(99, &raw mut out) }, -1);
        let (before, mut time) = (machine_ns(libc::CLOCK_REALTIME), timeval_of(0));
        // SAFETY: writable; no zone.
        assert_eq!(unsafe { gettimeofday(&raw mut time, core::ptr::null_mut()) }, 0);
        let us = time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
        assert!(us >= before / NS_PER_US && us <= machine_ns(0) / NS_PER_US);
        // SAFETY: writable.
        assert_eq!(unsafe { timespec_get(&raw mut out, 1) }, 1);
        // SAFETY: writable.
        assert_eq!(unsafe { timespec_get(&raw mut out, 7) }, 0);
        assert!(ns_of(&out) >= before && clock() >= 0);
        // SAFETY: nothing is stored.
        let ticks = unsafe { times(core::ptr::null_mut()) };
        // SAFETY: a structure of integers.
        let mut usage: rusage = unsafe { core::mem::zeroed() };
        // SAFETY: writable.
        assert_eq!(unsafe { getrusage(libc::RUSAGE_SELF, &raw mut usage) }, 0);
        assert!(ticks > 0 && usage.ru_maxrss > 0);
    }

    #[test]
    fn the_counters_rate_is_found_out() {
        install();
        let start = std::time::Instant::now();
        while ticks_per_us() == 0 && start.elapsed() < Duration::from_secs(1) {}
        assert_eq!(counter_is_good(), ticks_per_us() > 0);
        assert_eq!(offset_ns(libc::CLOCK_MONOTONIC), 0);
        assert_eq!(offset_ns(-6), 0);
    }
}
