//! `rustbtl leave`: connects to Open MPI's runtime in the name of a rank, and disconnects.
//!
//! A restarted program has no connection to the PMIx server any more, and cannot disconnect in
//! MPI_Finalize; without that, mpirun takes its end for a failure. The server knows a client by
//! name, rank and user, not by its process, so another process can do it: what it needs is in the
//! environment that orted has given the guardian (FACTS-openmpi §5).

use crate::os;
use std::ffi::{CStr, CString, c_int, c_void};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long it may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of its messages that are reported.
const STDERR_BYTES_MAX: u64 = 2000;

/// From PMIx's public interface, version 2 and later.
type Init = unsafe extern "C" fn(*mut c_void, *mut c_void, usize) -> c_int;
type Finalize = unsafe extern "C" fn(*mut c_void, usize) -> c_int;

fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: an open library and a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        Err(format!("libpmix has no {}", name.to_string_lossy()))
    } else {
        Ok(found)
    }
}

fn open(name: &CStr) -> *mut c_void {
    // SAFETY: a C string; the library's initialisers are those of a client.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }
}

/// The PMIx of the Open MPI that this program was installed with, if it brings its own.
fn own_library() -> Option<CString> {
    let program = std::env::current_exe().ok()?;
    let library = program.parent()?.parent()?.join("lib/libpmix.so.2");
    let there = library.exists().then_some(library)?;
    CString::new(there.into_os_string().into_encoded_bytes()).ok()
}

/// Connects and disconnects.
///
/// # Errors
/// There is no PMIx library, or the server does not let this process in.
pub fn leave() -> Result<(), String> {
    let library = own_library().map_or(core::ptr::null_mut(), |name| open(&name));
    let library = if library.is_null() { open(c"libpmix.so.2") } else { library };
    if library.is_null() {
        return Err("libpmix.so.2 cannot be loaded".into());
    }
    let (init, finalize) = (symbol(library, c"PMIx_Init")?, symbol(library, c"PMIx_Finalize")?);
    // SAFETY: the function's type, as PMIx declares it.
    let init: Init = unsafe { core::mem::transmute(init) };
    // SAFETY: the function's type, as PMIx declares it.
    let finalize: Finalize = unsafe { core::mem::transmute(finalize) };
    // SAFETY: the client's name is in the environment; no further options.
    let rc = unsafe { init(core::ptr::null_mut(), core::ptr::null_mut(), 0) };
    if rc != 0 {
        return Err(format!("PMIx_Init: {rc}"));
    }
    // SAFETY: initialised; no further options.
    match unsafe { finalize(core::ptr::null_mut(), 0) } {
        0 => Ok(()),
        rc => Err(format!("PMIx_Finalize: {rc}")),
    }
}

/// Does it in a process of its own: the library starts threads and opens descriptors.
///
/// # Errors
/// Why it failed: mpirun will report that the rank has ended improperly.
pub fn leave_in_child() -> Result<(), String> {
    let mut client = Command::new("/proc/self/exe");
    client.arg("leave").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let guardian = std::process::id();
    // A daemon that is ending does not answer, and nobody would end this process.
    let prepare = move || {
        os::die_with_parent(libc::SIGKILL)?;
        if os::parent() as u32 != guardian {
            return Err(io::Error::other("the guardian has ended"));
        }
        Ok(())
    };
    // SAFETY: system calls only, and no allocation unless it fails.
    unsafe { client.pre_exec(prepare) };
    let mut client = client.spawn().map_err(|error| error.to_string())?;
    let until = Instant::now() + TIMEOUT;
    let status = loop {
        match client.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() <= until => std::thread::sleep(Duration::from_millis(1)),
            Ok(None) => {
                let _ = client.kill();
                let _ = client.wait();
                return Err(format!("no answer in {} s", TIMEOUT.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut stderr = Vec::new();
    if let Some(from) = client.stderr {
        let _ = from.take(STDERR_BYTES_MAX).read_to_end(&mut stderr);
    }
    let stderr = String::from_utf8_lossy(&stderr);
    Err(format!("{status}; {}", stderr.trim().replace('\n', "; ")))
}
