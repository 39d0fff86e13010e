//! Determinants as bytes: a kind, then integers of 7 bits a byte (LEB128), signed ones zigzag.
//!
//! Typical sizes: a match 8 bytes, a successful test 3, a run of failed ones 13,
//! a date 9; readings of clocks 10 and two or three for each; one-sided operations 6 to 13 for each
//! change of origin or tick, direct ones some 5 more.

use super::clock_readings;
use super::{AppliedRun, CallKind, Determinant, DirectRun, NondetCall, Outcome, TimeReading};
use core::fmt;
use rustbtl_fragments::ids::{CommRank, ContextId, MessageName, MessageSeq, PeerId, ReceiveName};
use rustbtl_fragments::little_endian::LittleEndian;

const MATCHED: u8 = 1;
const NOTHING: u8 = 2;
const FOUND_DONE: u8 = 3;
const FOUND_REQUESTS: u8 = 4;
const FOUND_MESSAGE: u8 = 5;
const CANCELLED: u8 = 6;
const CANCELLED_LATE: u8 = 7;
const DATE: u8 = 9;
const READINGS: u8 = 10;
const APPLIED: u8 = 11;
const APPLIED_GROUP: u8 = 12;
const FOUND_VALUE: u8 = 13;

/// Bytes that are no determinant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CodecError {
    /// They end inside of one.
    Short,
    /// No such kind of determinant or call.
    Kind(u8),
    /// An integer too large for what it says.
    Range,
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => write!(f, "determinants are damaged: they end too early"),
            Self::Kind(kind) => write!(f, "determinants are damaged: no such kind ({kind})"),
            Self::Range => write!(f, "determinants are damaged: a number is too large"),
        }
    }
}

pub(super) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn byte(from: &mut &[u8]) -> Result<u8, CodecError> {
    let (&byte, rest) = from.split_first().ok_or(CodecError::Short)?;
    *from = rest;
    Ok(byte)
}

pub(super) fn take(from: &mut &[u8]) -> Result<u64, CodecError> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = byte(from)?;
        let bits = u64::from(byte & 0x7F);
        if shift == 63 && bits > 1 {
            return Err(CodecError::Range);
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(CodecError::Range)
}

pub(super) fn take_u32(from: &mut &[u8]) -> Result<u32, CodecError> {
    u32::try_from(take(from)?).map_err(|_| CodecError::Range)
}

fn put_lane(out: &mut Vec<u8>, lane: i32) {
    // Lanes are never positive.
    put(out, u64::from(lane.unsigned_abs()));
}

fn take_lane(from: &mut &[u8]) -> Result<i32, CodecError> {
    let lane = take_u32(from)?;
    i32::try_from(lane).map(|lane| -lane).map_err(|_| CodecError::Range)
}

fn put_call(out: &mut Vec<u8>, call: &NondetCall) {
    out.push(call.kind as u8);
    put(out, call.arguments);
}

fn take_call(from: &mut &[u8]) -> Result<NondetCall, CodecError> {
    let kind = byte(from)?;
    let call = CallKind::of(kind).ok_or(CodecError::Kind(kind))?;
    Ok(NondetCall { kind: call, arguments: take(from)? })
}

fn put_receive(out: &mut Vec<u8>, receive: &ReceiveName) {
    put(out, u64::from(receive.context));
    put_lane(out, receive.lane);
    put(out, receive.number);
}

fn take_receive(from: &mut &[u8]) -> Result<ReceiveName, CodecError> {
    let (context, lane) = (take_u32(from)?, take_lane(from)?);
    Ok(ReceiveName { context, lane, number: take(from)? })
}

/// Append a determinant.
pub fn encode(determinant: &Determinant, out: &mut Vec<u8>) {
    match determinant {
        Determinant::Matched { receive, message } => {
            out.push(MATCHED);
            put_receive(out, receive);
            put(out, u64::from(message.from.0));
            put(out, message.sequence.0);
        }
        Determinant::Nothing { first, count, hash } => {
            out.push(NOTHING);
            put_call(out, first);
            put(out, *count);
            hash.append(out);
        }
        Determinant::Outcome { call, outcome } => encode_found(call, outcome, out),
        Determinant::ProgramTime(TimeReading { call, calls, seconds }) => {
            out.push(DATE);
            [call, calls, seconds].into_iter().for_each(|number| put(out, *number));
        }
        Determinant::Readings(readings) => {
            out.push(READINGS);
            clock_readings::encode(readings, out);
        }
        Determinant::Applied(run) => {
            out.push(APPLIED);
            put_run(out, run);
        }
        Determinant::AppliedGroup(runs) => {
            out.push(APPLIED_GROUP);
            put(out, runs.len() as u64);
            for DirectRun { target, first, run } in runs {
                put(out, target.0.into());
                put(out, *first);
                put_run(out, run);
            }
        }
    }
}

fn put_run(out: &mut Vec<u8>, AppliedRun { window, source, count, tick }: &AppliedRun) {
    let numbers = [window.0.into(), source.0.into(), *count, *tick];
    numbers.into_iter().for_each(|number| put(out, number));
}

fn take_run(from: &mut &[u8]) -> Result<AppliedRun, CodecError> {
    let (window, source) = (ContextId(take_u32(from)?), CommRank(take_u32(from)?));
    let (count, tick) = (take(from)?, take(from)?);
    if count == 0 {
        return Err(CodecError::Range);
    }
    Ok(AppliedRun { window, source, count, tick })
}

fn encode_found(call: &NondetCall, outcome: &Outcome, out: &mut Vec<u8>) {
    let kind = match outcome {
        Outcome::Done => FOUND_DONE,
        Outcome::Requests(_) => FOUND_REQUESTS,
        Outcome::Message(_) => FOUND_MESSAGE,
        Outcome::Cancelled(Some(_)) => CANCELLED,
        Outcome::Cancelled(None) => CANCELLED_LATE,
        Outcome::Value(_) => FOUND_VALUE,
    };
    out.push(kind);
    put_call(out, call);
    match outcome {
        Outcome::Done | Outcome::Cancelled(None) => {}
        Outcome::Requests(places) => {
            put(out, places.len() as u64);
            places.iter().for_each(|place| put(out, u64::from(*place)));
        }
        Outcome::Message(message) => {
            put(out, u64::from(message.from.0));
            put(out, u64::from(message.context));
            put_lane(out, message.lane);
            put(out, message.sequence.0);
        }
        Outcome::Cancelled(Some(receive)) => put_receive(out, receive),
        Outcome::Value(number) => put(out, *number),
    }
}

/// Take a determinant from the front of `from`. No memory beyond the length of `from` is used.
///
/// # Errors
/// The bytes are damaged; how much of them was taken is not said.
pub fn decode(from: &mut &[u8]) -> Result<Determinant, CodecError> {
    let kind = byte(from)?;
    Ok(match kind {
        MATCHED => {
            let receive = take_receive(from)?;
            let (sender, sequence) = (PeerId(take_u32(from)?), MessageSeq(take(from)?));
            let ReceiveName { context, lane, .. } = receive;
            let message = MessageName { from: sender, context, lane, sequence };
            Determinant::Matched { receive, message }
        }
        NOTHING => {
            let (first, count) = (take_call(from)?, take(from)?);
            let hash = u64::take_from(from).ok_or(CodecError::Short)?;
            Determinant::Nothing { first, count, hash }
        }
        DATE => {
            let (call, calls, seconds) = (take(from)?, take(from)?, take(from)?);
            Determinant::ProgramTime(TimeReading { call, calls, seconds })
        }
        READINGS => Determinant::Readings(Box::new(clock_readings::decode(from)?)),
        APPLIED => Determinant::Applied(take_run(from)?),
        APPLIED_GROUP => {
            let count = take(from)?;
            // Each takes more than a byte: so much memory, and no more, may be asked for.
            if count == 0 || count > from.len() as u64 {
                return Err(CodecError::Short);
            }
            let run = |_| {
                let (target, first) = (PeerId(take_u32(from)?), take(from)?);
                Ok(DirectRun { target, first, run: take_run(from)? })
            };
            Determinant::AppliedGroup((0..count).map(run).collect::<Result<_, _>>()?)
        }
        _ => {
            let call = match kind {
                FOUND_DONE..=CANCELLED_LATE | FOUND_VALUE => take_call(from)?,
                _ => return Err(CodecError::Kind(kind)),
            };
            let outcome = decode_outcome(kind, from)?;
            Determinant::Outcome { call, outcome }
        }
    })
}

fn decode_outcome(kind: u8, from: &mut &[u8]) -> Result<Outcome, CodecError> {
    Ok(match kind {
        FOUND_DONE => Outcome::Done,
        FOUND_REQUESTS => {
            let count = take(from)?;
            // Each takes a byte at least: so much memory, and no more, may be asked for.
            if count > from.len() as u64 {
                return Err(CodecError::Short);
            }
            let places = (0..count).map(|_| take_u32(from));
            Outcome::Requests(places.collect::<Result<_, _>>()?)
        }
        FOUND_MESSAGE => Outcome::Message(MessageName {
            from: PeerId(take_u32(from)?),
            context: take_u32(from)?,
            lane: take_lane(from)?,
            sequence: MessageSeq(take(from)?),
        }),
        CANCELLED => Outcome::Cancelled(Some(take_receive(from)?)),
        FOUND_VALUE => Outcome::Value(take(from)?),
        _ => Outcome::Cancelled(None),
    })
}
