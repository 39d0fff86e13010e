//! Who may touch the process: its lock, and the rights that stand for it.

use crate::engine::driver_state::Driver;
use crate::ffi::operation::Op;
use crate::ffi::table::Glue;
use crate::sync::engine_lock::EngineLock;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicPtr, Ordering};

/// The process and its lock.
pub struct Shared {
    /// MPI_THREAD_MULTIPLE: the lock is in use.
    pub threads: bool,
    /// What C does for us.
    pub glue: Glue,
    lock: EngineLock,
    driver: UnsafeCell<Driver>,
}

// SAFETY: `process` is only reached through `EngineGuard` and `ExclusiveGuard`: the lock lets one
// in. (Without MPI_THREAD_MULTIPLE MPI forbids calls from two threads at a time; it keeps our own
// threads out.)
unsafe impl Sync for Shared {}

static SHARED: AtomicPtr<Shared> = AtomicPtr::new(core::ptr::null_mut());

/// Make the process known. It lives as long as the program.
pub fn install(driver: Driver) {
    let threads = driver.host.threads;
    let glue = driver.host.glue;
    let lock = EngineLock::new(threads);
    let driver = UnsafeCell::new(driver);
    let shared = Box::new(Shared { threads, glue, lock, driver });
    SHARED.store(Box::into_raw(shared), Ordering::Release);
}

/// The process. Only after [`install`].
#[inline]
pub fn shared() -> &'static Shared {
    let shared = SHARED.load(Ordering::Acquire);
    debug_assert!(!shared.is_null());
    // SAFETY: C calls nothing else before rustbtl_start has succeeded; never freed.
    unsafe { &*shared }
}

/// Has [`install`] been called?
pub fn is_installed() -> bool {
    !SHARED.load(Ordering::Acquire).is_null()
}

/// The right to touch the process, while it lives.
pub struct EngineGuard(&'static Shared);

impl Shared {
    /// Wait for the right to touch the process.
    #[inline]
    pub fn enter(&'static self) -> EngineGuard {
        self.lock.enter();
        EngineGuard(self)
    }

    /// The same, if nobody else has it.
    #[inline]
    pub fn try_enter(&'static self) -> Option<EngineGuard> {
        self.lock.try_enter().then(|| EngineGuard(self))
    }

    /// Wait for the right, on the first thread and maybe in a signal handler; None: the thread has
    /// it already. Then C is notified of nothing ([`Shared::deliver`]), which may be anywhere.
    pub fn enter_unless_inside(&'static self) -> Option<EngineGuard> {
        self.lock.enter_unless_inside().then(|| EngineGuard(self))
    }

    /// Notify C of complete operations, without the right to touch the process.
    #[inline]
    pub fn deliver(&'static self, entered: EngineGuard) {
        if entered.host.done.is_empty() {
            return;
        }
        self.deliver_all(entered);
    }

    #[inline(never)]
    fn deliver_all(&'static self, entered: EngineGuard) {
        let mut entered = entered;
        loop {
            if entered.host.windows.holds {
                return self.deliver_steps(entered);
            }
            let next: Option<Op> = entered.host.done.pop_front();
            drop(entered);
            let Some(op) = next else { return };
            // SAFETY: the operation is complete and its fields are filled; C may call back.
            unsafe { (self.glue.complete)(op.as_ptr()) };
            entered = self.enter();
        }
    }

    /// Steps of nonblocking collectives are not held: others wait for the next one. What the
    /// program waits for is the collective's request: C holds that.
    #[cold]
    fn deliver_steps(&'static self, entered: EngineGuard) {
        let mut entered = entered;
        loop {
            // SAFETY: an operation of C's that is not told yet; this does not call back.
            let is_step =
                |op: &Op| op.in_request() && unsafe { (self.glue.is_step)(op.as_ptr()) } != 0;
            let Some(at) = entered.host.done.iter().position(is_step) else { return };
            let Some(op) = entered.host.done.remove(at) else { return };
            drop(entered);
            // SAFETY: as in `deliver_all`.
            unsafe { (self.glue.complete)(op.as_ptr()) };
            entered = self.enter();
        }
    }

    /// Rule 3 of a replay is about what the program sees. What a collective does inside of a call
    /// is not held: others wait for its next step, and what they do then may be what the replay
    /// waits for (docs/adr/0041).
    #[cold]
    pub fn complete_held(&'static self, op: Op) {
        let mut entered = self.enter();
        if !entered.host.windows.holds {
            return;
        }
        let Some(at) = entered.host.done.iter().position(|&done| done == op) else { return };
        entered.host.done.remove(at);
        drop(entered);
        // SAFETY: the operation is complete and its fields are filled; C may call back.
        unsafe { (self.glue.complete)(op.as_ptr()) };
    }
}

impl Deref for EngineGuard {
    type Target = Driver;
    #[inline]
    fn deref(&self) -> &Driver {
        // SAFETY: see `Shared`: this is the only `EngineGuard`.
        unsafe { &*self.0.driver.get() }
    }
}

impl DerefMut for EngineGuard {
    #[inline]
    fn deref_mut(&mut self) -> &mut Driver {
        // SAFETY: see `Shared`: this is the only `EngineGuard`.
        unsafe { &mut *self.0.driver.get() }
    }
}

impl Drop for EngineGuard {
    #[inline]
    fn drop(&mut self) {
        self.0.lock.leave();
    }
}

/// The right of one of our own threads to touch the process, whatever the program's threads do
/// meanwhile: those that come into MPI wait.
pub struct ExclusiveGuard(&'static Shared);

impl Shared {
    /// Can [`Self::take`] be called? It cannot fail after this.
    pub fn prepare(&self) -> std::io::Result<()> {
        self.lock.prepare()
    }

    /// Wait until no thread of the program touches the process, and keep them out.
    pub fn take(&'static self) -> std::io::Result<ExclusiveGuard> {
        self.lock.take()?;
        let mut taken = ExclusiveGuard(self);
        taken.host.is_taken = true;
        taken.host.set_completes_at_once();
        Ok(taken)
    }
}

impl Deref for ExclusiveGuard {
    type Target = Driver;
    fn deref(&self) -> &Driver {
        // SAFETY: see `Shared`: there is no `EngineGuard`, and this is the only `ExclusiveGuard`.
        unsafe { &*self.0.driver.get() }
    }
}

impl DerefMut for ExclusiveGuard {
    fn deref_mut(&mut self) -> &mut Driver {
        // SAFETY: see `Shared`: there is no `EngineGuard`, and this is the only `ExclusiveGuard`.
        unsafe { &mut *self.0.driver.get() }
    }
}

impl Drop for ExclusiveGuard {
    fn drop(&mut self) {
        self.host.is_taken = false;
        self.host.set_completes_at_once();
        self.0.lock.give_back();
    }
}
