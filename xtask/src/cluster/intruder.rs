//! An unauthenticated peer: connects to everything of ours that listens on a node, says what makes
//! no sense, or nothing, and stays; and takes the names in `/tmp` and `/dev/shm` that he can guess.
//! (How Open MPI's own daemons treat one is their affair.)

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::chown;
use std::path::Path;
use std::time::Duration;

/// Connections to each listener: more than it admits at a time (`half_open.rs`).
const EACH: usize = 80;
const PATIENCE: Duration = Duration::from_millis(200);
/// `nobody`.
const OTHER_USER: u32 = 65534;

/// What is said first.
const SAID: [&[u8]; 5] = [
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    &[0xff; 64],
    &[0; 4096],
    b"rustbtl\x01\xff\xff\xff\x7f\x00\x00\x00\x00",
];

/// A port at which somebody listens, and the number of the socket.
type Listener = (u16, u64);

/// Those in /proc/net/tcp: `sl local remote state queues timer retransmits user timeout inode …`,
/// addresses as `HEX:PORT`.
fn listening(table: &str) -> Vec<Listener> {
    let listener = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (local, state, inode) = (words.get(1)?, words.get(3)?, words.get(9)?);
        let (_, port) = local.rsplit_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (*state == "0A").then_some((port, inode.parse().ok()?))
    };
    table.lines().filter_map(listener).collect()
}

/// Sockets that these processes have.
fn sockets_of(processes: &[libc::pid_t]) -> BTreeSet<u64> {
    let entries = processes.iter().filter_map(|pid| fs::read_dir(format!("/proc/{pid}/fd")).ok());
    let links = entries.flatten().flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    links
        .filter_map(|link| {
            let number = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            number.parse().ok()
        })
        .collect()
}

/// What somebody else can do on the node whose namespaces this process is in: how many connections
/// to these processes he has, and how many names he has taken. They stay until this process ends.
pub fn come(processes: &[libc::pid_t], address: Ipv4Addr, node: &str) -> (usize, usize) {
    let table = fs::read_to_string("/proc/thread-self/net/tcp").unwrap_or_default();
    let sockets = sockets_of(processes);
    let mut open = 0;
    for (port, _) in listening(&table).into_iter().filter(|(_, socket)| sockets.contains(socket)) {
        for (number, said) in SAID.into_iter().cycle().take(EACH).enumerate() {
            // Where it listens is not the same for all.
            let address = if number % 2 == 0 { address } else { Ipv4Addr::LOCALHOST };
            let address = SocketAddr::new(IpAddr::V4(address), port);
            let Ok(mut connection) = TcpStream::connect_timeout(&address, PATIENCE) else {
                continue;
            };
            let _ = connection.set_write_timeout(Some(PATIENCE));
            let _ = connection.write_all(said);
            // Until the cluster ends.
            let _ = connection.into_raw_fd();
            open += 1;
        }
    }
    (open, take_names(node))
}

fn take_names(node: &str) -> usize {
    // SAFETY: has no precondition.
    let user = unsafe { libc::geteuid() };
    let names = [format!("rustbtl-{user}"), format!("rustbtl-{user}-{node}"), "rustbtl".into()];
    let mut taken = 0;
    for folder in ["/tmp", "/dev/shm"] {
        for name in &names {
            let path = Path::new(folder).join(name);
            taken += usize::from(fs::create_dir(&path).is_ok());
            let _ = chown(&path, Some(OTHER_USER), Some(OTHER_USER));
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_found_in_the_kernels_table() {
        let table =
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 71 1 0
   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 72 1 0
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 73 1 0
";
        assert_eq!(listening(table), [(0x1f90, 71), (0x16, 73)]);
    }

    #[test]
    fn a_listener_of_this_process_is_visited() {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let table = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
        let found = listening(&table).into_iter().find(|&(other, _)| other == port).unwrap();
        let own = libc::pid_t::try_from(std::process::id()).unwrap();
        assert!(sockets_of(&[own]).contains(&found.1));
    }
}
