//! Checkpoints: a thread that waits for orders, drains, and makes all objects again where that is
//! asked for.
//!
//! Orders are files of the directory, `order.N`, from 0: `keep` (drain and go on, as around an
//! image), `rebuild` (make everything again, as after a restart, in the process that goes on), or
//! `hold` (drain, and stay so while images are taken: `held.N.PROCESS` then says which descriptors
//! and which memory are in none, and `go.N` how to go on: `keep`, or `restored` in processes that
//! were restored from them). `result.N.PROCESS` says how it went.

use crate::directory::{Directory, Missing};
use crate::left_out;
use crate::real::give_up;
use crate::state::{self, State};
use core::sync::atomic::{AtomicBool, Ordering};
use rustbtl_shadow::{Old, Tally, postponed};
use std::sync::{MutexGuard, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Between two looks for an order.
const LOOK: Duration = Duration::from_millis(5);
/// Between two attempts, where a connection is being made.
const LATER: Duration = Duration::from_millis(10);
/// A process that has not come by then, or a request that has not completed, is never waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Nobody says for so long how to go on: as if there had been no image.
const HELD_MOST: Duration = Duration::from_secs(300);
/// Calls of the drain between two looks at what others say.
const DRAINS: usize = 64;

static LEAVING: OnceLock<Directory> = OnceLock::new();
static HAS_STARTED: AtomicBool = AtomicBool::new(false);

extern "C" fn leave() {
    if let Some(directory) = LEAVING.get() {
        directory.leave();
    }
}

/// Start the thread.
pub fn start(directory: &Directory) {
    if HAS_STARTED.swap(true, Ordering::Relaxed) || LEAVING.set(directory.clone()).is_err() {
        return;
    }
    // SAFETY: a function without arguments that stays.
    unsafe { libc::atexit(leave) };
    let directory = directory.clone();
    let started = std::thread::Builder::new()
        .name("rustbtl-verbs".to_owned())
        .spawn(move || obey(&directory));
    if let Err(error) = started {
        give_up(&format!("no thread for checkpoints: {error}"));
    }
}

fn obey(directory: &Directory) {
    let process = directory.job().process;
    for number in 0u32.. {
        let order = loop {
            match directory.get(&format!("order.{number}")) {
                Some(order) if directory.all_have_joined() => break order,
                _ => sleep(LOOK),
            }
        };
        let said = match String::from_utf8_lossy(&order).trim() {
            "keep" => checkpoint(directory, number, Then::GoOn),
            "rebuild" => checkpoint(directory, number, Then::Rebuild),
            "hold" => checkpoint(directory, number, Then::Hold),
            other => Ok(format!("unknown order {other}")),
        };
        let said = said.unwrap_or_else(|Missing { meeting, process }| {
            format!("failed: process {process} has not come to {meeting}")
        });
        directory.put(&format!("result.{number}.{process}"), said.as_bytes());
    }
}

/// What follows a drain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    GoOn,
    Rebuild,
    Hold,
}

/// Say what no image has, and wait, in this process or one that was restored meanwhile, to be told
/// which of them it is.
fn hold(directory: &Directory, number: u32, state: &mut State) -> Option<Old> {
    let list = |items: Vec<String>| items.join(",");
    let descriptors = left_out::descriptors(state).iter().map(ToString::to_string).collect();
    let memory = left_out::memory();
    let memory = memory.iter().map(|range| format!("{:x}-{:x}", range.start, range.end)).collect();
    let said = format!("drop={};exclude={}", list(descriptors), list(memory));
    directory.put(&format!("held.{number}.{}", directory.job().process), said.as_bytes());
    let begin = Instant::now();
    while begin.elapsed() < HELD_MOST {
        match directory.get(&format!("go.{number}")).as_deref() {
            Some(b"keep") => return None,
            Some(b"restored") => return Some(Old::Abandon),
            _ => sleep(LOOK),
        }
    }
    None
}

/// Close the gate on everything that is under way, unless a connection is only being made.
fn close_gate(
    directory: &Directory,
    number: u32,
) -> Result<(MutexGuard<'static, State>, String, usize), Missing> {
    for attempt in 0usize.. {
        let round = format!("{number}.{attempt}");
        let state = state::close();
        let tallies = state.shadow.tallies();
        directory.put_tallies(&round, &tallies);
        let met = directory.meet(&format!("closed.{round}"), PATIENCE);
        let waits = met.is_ok() && postponed(&directory.tallies(&round)).is_some();
        // All have to see the same tallies before one changes its own.
        let met = met.and_then(|()| directory.meet(&format!("seen.{round}"), PATIENCE));
        match met {
            Ok(()) if !waits => {
                let sends = tallies.iter().map(|tally| tally.sends as usize).sum();
                return Ok((state, round, sends));
            }
            Ok(()) => state::open(state),
            Err(missing) => {
                state::open(state);
                return Err(missing);
            }
        }
        sleep(LATER);
    }
    unreachable!("attempts are not counted to an end")
}

/// One checkpoint: what there is to say of it.
fn checkpoint(directory: &Directory, number: u32, then: Then) -> Result<String, Missing> {
    directory.meet(&format!("ready.{number}"), PATIENCE)?;
    let begin = Instant::now();
    let (mut state, round, sends) = close_gate(directory, number)?;
    let drained = drain(directory, &round, &mut state);
    if let Err(why) = &drained {
        directory.put(&format!("failed.{number}"), why.as_bytes());
    }
    let met = directory.meet(&format!("drained.{number}"), PATIENCE + PATIENCE);
    let failed = directory.get(&format!("failed.{number}"));
    if let (Err(missing), None) = (&met, &failed) {
        state::open(state);
        return Err(missing.clone());
    }
    if let Some(why) = failed {
        state::open(state);
        return Ok(format!("failed: {}", String::from_utf8_lossy(&why)));
    }
    let drained_us = begin.elapsed().as_micros();
    let mut said = format!("ok: {sends} sends under way, drained in {drained_us} us");
    let old = match then {
        Then::GoOn => None,
        Then::Rebuild => Some(Old::Destroy),
        Then::Hold => hold(directory, number, &mut state),
    };
    if let Some(old) = old {
        // Half of the objects cannot be used: neither can the process.
        let receives = rebuild(directory, number, old, &mut state)
            .unwrap_or_else(|why| give_up(&format!("the program cannot go on: {why}")));
        said += &format!(", {receives} receives posted again");
    }
    state::open(state);
    Ok(said)
}

fn rebuild(
    directory: &Directory,
    number: u32,
    old: Old,
    state: &mut State,
) -> Result<usize, String> {
    let missing = |Missing { meeting, process }| format!("process {process} is not at {meeting}");
    state.shadow.make(old).map_err(|problem| problem.to_string())?;
    state.watch_contexts();
    directory.meet(&format!("made.{number}"), PATIENCE).map_err(missing)?;
    let receives = state.shadow.connect().map_err(|problem| problem.to_string())?;
    directory.meet(&format!("connected.{number}"), PATIENCE).map_err(missing)?;
    Ok(receives)
}

/// Until nothing is under way here.
fn drain(directory: &Directory, round: &str, state: &mut State) -> Result<(), String> {
    let begin = Instant::now();
    let ready = |tallies: &[Tally]| -> Vec<_> {
        tallies.iter().map(|tally| (tally.qpn, tally.readiness)).collect()
    };
    let mut said = ready(&state.shadow.tallies());
    let mut all = directory.tallies(round);
    for turn in 1usize.. {
        match state.shadow.drain(&all) {
            Ok(true) => return Ok(()),
            Ok(false) => std::thread::yield_now(),
            Err(errno) => return Err(format!("the adapter refuses to drain: error {}", errno.0)),
        }
        if turn.is_multiple_of(DRAINS) {
            // A connection that fails meanwhile is not waited for, at either end.
            let tallies = state.shadow.tallies();
            if ready(&tallies) != said {
                said = ready(&tallies);
                directory.put_tallies(round, &tallies);
            }
            all = directory.tallies(round);
            if begin.elapsed() > PATIENCE {
                return Err("requests are under way for a minute".to_owned());
            }
        }
    }
    unreachable!("turns are not counted to an end")
}
