//! Put, get, accumulates, compare and swap.

use crate::engine::driver_state::Driver;
use crate::engine::host::EngineHost;
use crate::engine::shared::shared;
use crate::engine::windows::neighbours::Reach;
use crate::engine::windows::{FetchedInto, ResultBuffer};
use crate::ffi::operation::Op as Pending;
use crate::ffi::table::{Access, FAILED, Operation, Row};
use crate::mpi::one_sided::layouts::layouts_of;
use crate::mpi::one_sided::{access, code, quickly};
use rustbtl_fragments::ids::{CommRank, ContextId};
use rustbtl_rma::arithmetic::Op;
use rustbtl_rma::error::RmaError;
use rustbtl_rma::layout::Layout;
use rustbtl_rma::machine::{Kind, Nobody, QUICK_BYTES_MAX, Quick, Rma};
use rustbtl_rma::primitive::Primitive;

const PUT: u32 = 1;
const GET: u32 = 2;
const ACCUMULATE: u32 = 3;

/// Polls for which a neighbour's exposure epoch is awaited before it is sent a message.
const EXPOSURE_POLLS: u32 = 400;

/// Where what is fetched goes: memory, or an operation that C keeps until it is complete.
///
/// # Safety
/// Null, or an operation as glue.h describes it.
unsafe fn result_of(operation: *mut Operation) -> Option<ResultBuffer> {
    // SAFETY: the caller's promise.
    let op = unsafe { Pending::new(operation) }?;
    Some(match op.on_stack() {
        true => ResultBuffer::Memory(op.start()),
        false => ResultBuffer::Operation { op, is_last: true },
    })
}

/// One access to a target's memory. 0, or an error of `enum rustbtl_rma`: then nothing was done.
///
/// # Safety
/// Null, or as glue.h describes it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_window_access(of: *const Access) -> i32 {
    // SAFETY: the caller's promise.
    let Some(of) = (unsafe { of.as_ref() }) else { return FAILED };
    let (rows, data): (&[Row], &[u8]) = (&[], &[]);
    let rows = match of.rows.is_null() {
        true => rows,
        // SAFETY: the caller's promise.
        false => unsafe { core::slice::from_raw_parts(of.rows, of.row_count as usize) },
    };
    let data = match of.bytes {
        0 => data,
        // SAFETY: the caller's promise.
        bytes => unsafe { core::slice::from_raw_parts(of.data, bytes as usize) },
    };
    // SAFETY: the caller's promise.
    let result = unsafe { result_of(of.result) };
    let layouts = match layouts_of(of, rows) {
        Ok(layouts) => layouts,
        Err(error) => return code(Err(error)),
    };
    access_by(of, &layouts, data, result)
}

/// The long way.
fn access_by(of: &Access, layouts: &[Layout], data: &[u8], result: Option<ResultBuffer>) -> i32 {
    await_exposure(ContextId(of.window), CommRank(of.target));
    access(|driver| code(issue(driver, of, layouts, data, result)))
}

/// The same of `count` elements of a primitive in a row, at the origin as well; nobody waits for it
/// by a request. `how`: the kind of access, the operation (from bit 8 on) and the primitive (from
/// bit 16 on).
///
/// # Safety
/// `data` is null, where nothing is sent, or readable for the elements; `result` is null, or stays
/// writable for them until the next synchronization.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_window_access_row(
    window: u32,
    target: u32,
    displacement: i64,
    how: u32,
    count: u64,
    data: *const u8,
    result: *mut u8,
) -> i32 {
    let shared = shared();
    let mut driver = shared.enter();
    let of = (ContextId(window), CommRank(target), displacement);
    // SAFETY: the caller's promise.
    let done = driver.is_plain()
        && unsafe { access_quickly(&mut driver.host, of, how, count, data, result) };
    shared.deliver(driver);
    if done {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { access_row(of, how, count, data, result) }
}

/// The long way.
///
/// # Safety
/// As [`rustbtl_window_access_row`].
#[inline(never)]
unsafe fn access_row(
    (window, target, displacement): (ContextId, CommRank, i64),
    how: u32,
    count: u64,
    data: *const u8,
    result: *mut u8,
) -> i32 {
    let [kind, op, primitive, _] = how.to_le_bytes();
    let Some(primitive) = Primitive::from_code(primitive) else { return code(Err(RmaError::Type)) };
    let Some(bytes) = count.checked_mul(primitive.size() as u64) else {
        return code(Err(RmaError::Type));
    };
    // SAFETY: the caller's promise.
    let data = unsafe { data_of(data, bytes) };
    let access = Access {
        displacement,
        window: window.0,
        target: target.0,
        kind: kind.into(),
        op: op.into(),
        count,
        primitive: primitive as u32,
        ..Access::default()
    };
    let result = (!result.is_null()).then_some(ResultBuffer::Memory(result));
    access_by(&access, &[Layout::Contiguous { primitive, count }], data, result)
}

/// # Safety
/// Null, or readable for so many bytes.
#[inline(always)]
unsafe fn data_of<'a>(data: *const u8, bytes: u64) -> &'a [u8] {
    match data.is_null() {
        true => &[],
        // SAFETY: the caller's promise.
        false => unsafe { core::slice::from_raw_parts(data, bytes as usize) },
    }
}

/// The short way.
///
/// # Safety
/// As [`rustbtl_window_access_row`].
#[inline(always)]
unsafe fn access_quickly(
    host: &mut EngineHost,
    of: (ContextId, CommRank, i64),
    how: u32,
    count: u64,
    data: *const u8,
    result: *mut u8,
) -> bool {
    let [kind, op, primitive, _] = how.to_le_bytes();
    let Some(primitive) = Primitive::from_code(primitive) else { return false };
    let Ok(count) = u32::try_from(count) else { return false };
    let bytes = u64::from(count) * primitive.size() as u64;
    // SAFETY: the caller's promise.
    let data = unsafe { data_of(data, bytes) };
    let done = match u32::from(kind) {
        PUT => {
            let quick = Quick::Put(data);
            host.quickly(|rma, reach| rma.quick_access(reach, of, primitive, quick))
                || gather_quickly(host, of, primitive, &Quick::Put(data))
        }
        GET => {
            // SAFETY: the caller's promise; a get has nothing but a result.
            let into = unsafe { core::slice::from_raw_parts_mut(result, bytes as usize) };
            let quick = Quick::Get(into);
            host.quickly(|rma, reach| rma.quick_access(reach, of, primitive, quick))
        }
        // SAFETY: the caller's promise.
        _ => unsafe { combine_quickly(host, of, primitive, op, data, result) },
    };
    if done {
        host.look_for_races();
    }
    done
}

/// # Safety
/// As [`rustbtl_window_access_row`].
#[inline(never)]
unsafe fn combine_quickly(
    host: &mut EngineHost,
    of: (ContextId, CommRank, i64),
    primitive: Primitive,
    op: u8,
    data: &[u8],
    result: *mut u8,
) -> bool {
    // The program's buffers may be one.
    let mut found = [0; QUICK_BYTES_MAX];
    let (Some(op), Some(found)) = (Op::from_code(op), found.get_mut(..data.len())) else {
        return false;
    };
    let quick = Quick::Combine { op, data, found: Some(&mut *found) };
    let done = host.quickly(|rma, reach| rma.quick_access(reach, of, primitive, quick));
    if done && !result.is_null() {
        // SAFETY: the caller's promise.
        unsafe { core::ptr::copy_nonoverlapping(found.as_ptr(), result, found.len()) };
    }
    let travels = !done && result.is_null();
    done || travels
        && gather_quickly(host, of, primitive, &Quick::Combine { op, data, found: None })
}

/// To a target that is no neighbour, behind others.
#[inline(never)]
fn gather_quickly(
    host: &mut EngineHost,
    of: (ContextId, CommRank, i64),
    primitive: Primitive,
    quick: &Quick<'_>,
) -> bool {
    let done = host.windows.rma.quick_gather(of, primitive, quick);
    if done {
        host.publish_tick();
    }
    done
}

/// A neighbour that has not left its fence yet, or not posted, most often does so within a moment:
/// what is done directly then need not be a message.
fn await_exposure(window: ContextId, target: CommRank) {
    let shared = shared();
    let mut driver = shared.enter();
    for _ in 0..EXPOSURE_POLLS {
        let awaits =
            |rma: &mut Rma, reach: &mut Reach<'_>| rma.awaits_exposure(reach, window, target);
        if driver.idle.oversubscribed || !driver.host.beside(awaits, |_| false) {
            break;
        }
        driver.poll();
    }
    shared.deliver(driver);
}

fn issue(
    driver: &mut Driver,
    access: &Access,
    layouts: &[Layout],
    data: &[u8],
    result: Option<ResultBuffer>,
) -> Result<(), RmaError> {
    let (window, target) = (ContextId(access.window), CommRank(access.target));
    let at = access.displacement;
    let op = match access.kind {
        PUT | GET => Op::Replace,
        _ => u8::try_from(access.op).ok().and_then(Op::from_code).ok_or(RmaError::Op)?,
    };
    let mut all = 0u64;
    for layout in layouts {
        driver.host.windows.rma.check_range(window, target, at, layout)?;
        let bytes = layout.packed_bytes().ok_or(RmaError::Type)?;
        all = all.checked_add(bytes).ok_or(RmaError::Type)?;
    }
    let sends = access.kind == PUT || access.kind != GET && op != Op::NoOp;
    if sends && all != data.len() as u64 {
        return Err(RmaError::Type);
    }
    let mut first = 0u64;
    for (layout, number) in layouts.iter().zip(1..) {
        let bytes = layout.packed_bytes().unwrap_or(0);
        let data = if sends { &data[first as usize..][..bytes as usize] } else { &[][..] };
        let kind = match access.kind {
            PUT => Kind::Put,
            GET => Kind::Get,
            ACCUMULATE => Kind::Accumulate(op),
            _ => Kind::GetAccumulate(op),
        };
        let operation = driver.host.beside(
            |rma, reach| rma.access(reach, window, target, at, layout, kind, data),
            |rma| rma.access(&mut Nobody, window, target, at, layout, kind, data),
        )?;
        if let Some(data) = driver.host.windows.rma.take_fetched() {
            let is_last = number == layouts.len();
            if let Some(buffer) = result {
                driver.host.fill(buffer, first, &data, is_last);
            }
        } else if let Some(mut buffer) = result {
            if let ResultBuffer::Operation { is_last, .. } = &mut buffer {
                *is_last = number == layouts.len();
            }
            driver.host.expect_data(operation, FetchedInto { buffer, first });
        }
        first += bytes;
    }
    driver.host.look_for_races();
    if let Some(ResultBuffer::Operation { .. }) = result {
        // The program may wait for it alone.
        driver.host.windows.rma.send_batch(window, target);
    }
    Ok(())
}

/// MPI_Compare_and_swap; packed elements of a primitive. The result is contiguous.
///
/// # Safety
/// `compare` and `new` are readable for an element, `result` stays writable for one until the next
/// synchronization.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rustbtl_window_compare_and_swap(
    window: u32,
    target: u32,
    displacement: i64,
    primitive: u32,
    compare: *const u8,
    new: *const u8,
    result: *mut u8,
) -> i32 {
    let known = u8::try_from(primitive).ok().and_then(Primitive::from_code);
    let Some(primitive) = known else { return code(Err(RmaError::Type)) };
    // SAFETY: the caller's promise.
    let compare = unsafe { core::slice::from_raw_parts(compare, primitive.size()) };
    // SAFETY: the caller's promise.
    let new = unsafe { core::slice::from_raw_parts(new, primitive.size()) };
    let (window, target) = (ContextId(window), CommRank(target));
    let mut found = [0; QUICK_BYTES_MAX];
    if let Some(found) = found.get_mut(..primitive.size())
        && quickly(|host| {
            let found = &mut *found;
            let quick = Quick::Swap { compare, new, found };
            let of = (window, target, displacement);
            host.quickly(|rma, reach| rma.quick_access(reach, of, primitive, quick))
        })
    {
        // SAFETY: the caller's promise.
        unsafe { core::ptr::copy_nonoverlapping(found.as_ptr(), result, found.len()) };
        return 0;
    }
    access(|driver| {
        let place = (window, target, displacement);
        let issued = driver.host.beside(
            |rma, reach| rma.compare_and_swap_beside(reach, place, primitive, compare, new),
            |rma| rma.compare_and_swap(window, target, displacement, primitive, compare, new),
        );
        code(issued.map(|operation| {
            let buffer = ResultBuffer::Memory(result);
            match driver.host.windows.rma.take_fetched() {
                Some(data) => driver.host.fill(buffer, 0, &data, true),
                None => driver.host.expect_data(operation, FetchedInto { buffer, first: 0 }),
            }
        }))
    })
}
