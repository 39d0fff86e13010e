//! What who reads the network learns of a job: real coordinator, agents and guardians, pretended
//! ranks, and a socket that sees all that goes over the loopback.

mod common;

use common::{Job, Scratch, wait_for};
use rustbtl_runtime::os;
use rustbtl_runtime::{job_secret, settings};
use std::fs;
use std::io::{self, Read};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::thread::JoinHandle;

/// All that goes over the loopback.
struct Capture {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<u8>>,
}

impl Capture {
    /// Only root may.
    fn start() -> io::Result<Self> {
        let all = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: numbers only.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, i32::from(all)) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, owned by nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let bytes: libc::c_int = 64 << 20;
        // SAFETY: the option takes an int.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUFFORCE,
                (&raw const bytes).cast(),
                size_of_val(&bytes) as u32,
            )
        };
        assert_eq!(set, 0, "a large buffer");
        os::set_nonblocking(&socket)?;
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let (mut socket, mut seen) = (fs::File::from(socket), Vec::new());
            let mut packet = vec![0; 1 << 17];
            loop {
                match socket.read(&mut packet) {
                    Ok(bytes) => seen.extend_from_slice(&packet[..bytes]),
                    Err(_) if is_over.load(Ordering::Relaxed) => return seen,
                    Err(_) => thread::sleep(std::time::Duration::from_micros(200)),
                }
            }
        });
        Ok(Self { over, thread })
    }

    fn end(self) -> Vec<u8> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("it reads")
    }
}

fn shows(seen: &[u8], what: &[u8]) -> bool {
    seen.windows(what.len()).any(|window| window == what)
}

fn key_file(folder: &Path) -> PathBuf {
    let file = folder.join("key");
    fs::write(&file, os::random::<32>().expect("a key")).expect("a file");
    fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("own");
    file
}

#[test]
fn neither_images_nor_the_secret_are_seen_on_the_network() {
    let capture = match Capture::start() {
        Ok(capture) => capture,
        Err(error) => return eprintln!("SKIPPED: only root can read the network: {error}"),
    };
    let scratch = Scratch::new();
    let secret = format!("secret file:{}\n", key_file(&scratch.0).display());
    let mut job = Job::start_local_with(scratch, 4, 1, &secret).ranks();
    job.wait_until_ready();
    let (code, text) = job.checkpoint(&["--all", "--wait"]);
    assert_eq!(code, 0, "{text}");
    let name = format!("rustbtl-{}-n1.{}", os::euid(), job.name);
    let image = job.scratch.0.join("local").join(name).join("checkpoint-1/rank-0.img");
    let image = fs::read(&image).expect("the replica of n0's image on n1");
    assert!(image.len() >= 16, "{image:?}");
    // The control: what is not encrypted is seen.
    let marker = os::random::<16>().expect("a number");
    let to = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let at = to.local_addr().expect("an address");
    UdpSocket::bind("127.0.0.1:0").expect("a socket").send_to(&marker, at).expect("it is sent");
    assert_eq!(job.status()["secret"], "file");
    assert_eq!(job.finish(), [0; 4]);
    let token = job.secret.clone();
    let opened = job_secret::open(&token).expect("the key is here");
    job.end();
    let seen = capture.end();
    assert!(shows(&seen, &marker), "what goes over the loopback is seen");
    assert!(shows(&seen, b"rustbtl/"), "the handshakes are seen");
    assert!(!shows(&seen, &image[..16]) && !shows(&seen, &image[image.len() - 16..]), "images");
    assert!(!shows(&seen, &opened) && !shows(&seen, settings::hex(&opened).as_bytes()), "secret");
}

#[test]
fn a_guardian_that_has_not_the_key_says_which_file_it_misses() {
    let scratch = Scratch::new();
    let file = key_file(&scratch.0);
    let mut job = Job::start(1, &format!("secret file:{}\n", file.display()));
    fs::remove_file(&file).expect("it is there");
    let program = job.guardian(0, "n0", &["/bin/true"]).status().expect("it runs");
    assert!(program.success(), "the program runs");
    let printed = job.printed(0);
    let why = format!("{}: No such file", file.display());
    assert!(printed.contains(&why) && printed.contains("running unprotected"), "{printed}");
    job.hang_up();
    wait_for("it ends", || job.coordinator.try_wait().is_ok_and(|ended| ended.is_some()));
}
