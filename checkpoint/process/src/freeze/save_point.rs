//! The save point: where the snapshot of the checkpoint thread is taken, and where it resumes.
//!
//! Source: FACTS-image §1 (a save point that returns twice breaks compilers). Neither function
//! returns twice: `save` calls a function and returns what it returned; a restored process enters
//! `resume`, which calls another function on the same stack and then returns in the place of
//! `save`. For the caller of `save` it is one call that takes long and may change memory.

use core::arch::naked_asm;

/// What `resume` needs; its address is in the image.
#[repr(C)]
#[derive(Debug)]
pub struct Context {
    /// Stack pointer below the saved registers.
    pub stack: u64,
    /// Called by `resume`.
    pub restored: extern "C" fn(u64) -> u64,
    /// Its argument.
    pub argument: u64,
}

/// A function of these instructions that returns in the place of `save`: what `save` has pushed is
/// popped, so both ways out undo the same.
macro_rules! and_return {
    ($($line:literal),* $(,)?) => {
        naked_asm!(
            $($line,)*
            "add rsp, 24",
            "pop r15",
            "pop r14",
            "pop r13",
            "pop r12",
            "pop rbx",
            "pop rbp",
            "ret",
        )
    };
}

/// Saves what a function must preserve, calls `body(argument)`, returns what that returns.
///
/// # Safety
/// `context` is valid until `body` has returned, here or (through `resume`) in a restored process.
#[unsafe(naked)]
pub unsafe extern "C" fn save(
    context: *mut Context,
    body: extern "C" fn(u64) -> u64,
    argument: u64,
) -> u64 {
    and_return!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 24",
        "stmxcsr [rsp]",
        "fnstcw [rsp + 4]",
        "mov [rdi], rsp",
        "mov rdi, rdx",
        "call rsi",
    )
}

/// Entered by the restorer with a `Context` in the first argument, on any stack.
///
/// # Safety
/// Only in a restored process, once, in the thread that was in `save`.
#[unsafe(naked)]
pub unsafe extern "C" fn resume(context: *mut Context) -> ! {
    and_return!(
        "mov rsp, [rdi]",
        "ldmxcsr [rsp]",
        "fldcw [rsp + 4]",
        "mov rax, [rdi + 8]",
        "mov rdi, [rdi + 16]",
        "call rax",
    )
}

/// Returns from a signal handler by its frame: the thread continues where it was suspended.
///
/// # Safety
/// `frame` is the third argument of a signal handler that this thread has not left.
#[unsafe(naked)]
pub unsafe extern "C" fn leave_handler(frame: u64) -> ! {
    naked_asm!("mov rsp, rdi", "mov eax, 15", "syscall", "ud2")
}

/// Where our signal handler returns to.
///
/// # Safety
/// Only the kernel enters it, as `sa_restorer`.
#[unsafe(naked)]
pub unsafe extern "C" fn handler_return() -> ! {
    naked_asm!("mov eax, 15", "syscall", "ud2")
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn twice(argument: u64) -> u64 {
        2 * argument
    }

    #[test]
    fn save_returns_what_the_body_returns() {
        let mut context = Context { stack: 0, restored: twice, argument: 0 };
        // SAFETY: `context` outlives the call.
        assert_eq!(unsafe { save(&raw mut context, twice, 21) }, 42);
        assert_ne!(context.stack, 0);
    }
}
