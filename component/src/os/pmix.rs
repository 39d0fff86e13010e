//! The socket to the PMIx server: it belongs to a library that does not tell its number.

use std::net::SocketAddr;
use std::os::fd::RawFd;

/// The server's port, from the environment that it gave this process
/// (`namespace.0;tcp4://127.0.0.1:port`).
fn server() -> Option<SocketAddr> {
    let names = ["PMIX_SERVER_URI41", "PMIX_SERVER_URI4", "PMIX_SERVER_URI3", "PMIX_SERVER_URI21"];
    let uri = names.iter().find_map(|name| std::env::var(name).ok())?;
    address(&uri)
}

fn address(uri: &str) -> Option<SocketAddr> {
    uri.split(';').find_map(|part| {
        let at = part.strip_prefix("tcp4://").or_else(|| part.strip_prefix("tcp6://"))?;
        at.parse().ok()
    })
}

/// The descriptor of this process that is connected to its PMIx server.
pub fn server_socket() -> Option<RawFd> {
    let server = server()?;
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found: Vec<RawFd> =
        numbers.filter(|&fd| crate::os::socket::peer(fd) == Some(server)).collect();
    found.sort_unstable();
    found.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_what_pmix_writes() {
        let found = address("3217752064.0;tcp4://127.0.0.1:41423").unwrap();
        assert_eq!(found, "127.0.0.1:41423".parse().unwrap());
        assert_eq!(address("3217752064.0;/tmp/x"), None);
    }

    #[test]
    fn a_connected_socket_is_known_by_its_other_end() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let stream = std::net::TcpStream::connect(at).unwrap();
        use std::os::fd::AsRawFd;
        assert_eq!(super::super::socket::peer(stream.as_raw_fd()), Some(at));
        assert_eq!(super::super::socket::peer(0), None);
    }
}
