//! A process' traffic as a JSON file, for `cargo xtask` and for people.

use crate::engine::driver_state::Driver;
use crate::ffi::table::Glue;
use core::fmt::Write as _;
use rustbtl_fragments::ids::PeerId;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The directory that the user asked for, made and tried; `None` if he asked for none.
pub fn directory(glue: &Glue, wanted: &str) -> Option<PathBuf> {
    if wanted.is_empty() {
        return None;
    }
    let path = PathBuf::from(wanted);
    if let Err(error) = try_directory(&path) {
        glue.fatal("report-dir", &[wanted, &error.to_string()]);
    }
    Some(path)
}

fn try_directory(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)?;
    let probe = path.join(format!(".probe-{}", std::process::id()));
    create(&probe)?;
    fs::remove_file(&probe)
}

/// A new file, through no link that somebody may have put into a folder that all write to.
fn create(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::create_new(path)
}

/// JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// How many there are.
pub const COUNTERS: usize = 23;

/// All counters with their names in reports.
pub fn counters(driver: &Driver) -> [(&'static str, u64); COUNTERS] {
    let c = driver.engine.counters();
    let log = driver.host.log.counters();
    let [requested, completed] = crate::sync::checkpoint_signals::checkpoint_counts();
    [
        ("sent_internal_messages", c.sent_internal_messages),
        ("sent_internal_bytes", c.sent_internal_bytes),
        ("sent_outgoing_messages", c.sent_outgoing_messages),
        ("sent_outgoing_bytes", c.sent_outgoing_bytes),
        ("received_internal_messages", c.received_internal_messages),
        ("received_internal_bytes", c.received_internal_bytes),
        ("received_ingoing_messages", c.received_ingoing_messages),
        ("received_ingoing_bytes", c.received_ingoing_bytes),
        ("eager_messages", c.eager_messages),
        ("rendezvous_messages", c.rendezvous_messages),
        ("unexpected_messages", c.unexpected_messages),
        ("log_messages", log.messages),
        ("log_bytes", log.bytes),
        ("log_bytes_peak", log.bytes_peak),
        ("log_spilled_bytes", log.spilled_bytes),
        ("engine_ns", if driver.clock.on { driver.clock.ns() } else { 0 }),
        ("log_spilled_bytes_peak", log.spilled_bytes_peak),
        ("log_checkpoints_requested", requested),
        ("checkpoints", completed),
        ("piggyback_frames", c.piggyback_frames),
        ("log_budget_bytes", driver.host.log.budget_bytes()),
        ("log_cost_ns", driver.host.log_cost.spent_ns()[0]),
        ("fetched_messages", c.fetched_messages),
    ]
}

/// The document.
pub fn document(driver: &Driver) -> String {
    let host = &driver.host;
    let mut transport = Vec::new();
    let mut peers = Vec::new();
    for (peer, set, traffic) in driver.engine.traffic() {
        let route = host.route(peer);
        let peer = if host.peers.is_own(peer) { host.peers.name(peer).rank } else { peer.0 };
        transport.push(format!("\"{peer}\":\"{}\"", route.name()));
        peers.push(format!(
            "{{\"rank\":{peer},\"set\":{set},\"sent_messages\":{},\"sent_bytes\":{},\
             \"received_messages\":{},\"received_bytes\":{}}}",
            traffic.sent_messages,
            traffic.sent_bytes,
            traffic.received_messages,
            traffic.received_bytes
        ));
    }
    let counters: Vec<String> =
        counters(driver).iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!(
        "{{\"version\":1,\"rank\":{},\"size\":{},\"node\":{},\"set\":{},\"policy\":{},\
         \"transport\":{{{}}},\"counters\":{{{}}},\"peers\":[{}]}}\n",
        host.peers.rank(),
        host.peers.size(),
        quoted(&host.node),
        host.peers.name(PeerId(host.set.0)).rank,
        quoted(&host.policy_text),
        transport.join(","),
        counters.join(","),
        peers.join(",")
    )
}

/// Write `rank-<N>.json`, once.
pub fn write(driver: &mut Driver, directory: &Path) {
    if driver.reported {
        return;
    }
    driver.reported = true;
    let name = format!("rank-{}.json", driver.host.peers.rank());
    let path = directory.join(&name);
    let unfinished = directory.join(format!("{name}.tmp"));
    let written = create(&unfinished)
        .and_then(|mut file| file.write_all(document(driver).as_bytes()))
        .and_then(|()| fs::rename(&unfinished, &path));
    if let Err(error) = written {
        let path = path.display().to_string();
        driver.host.glue.show("report-failed", &[&path, &error.to_string()]);
    }
}

#[cfg(test)]
mod tests {
    use super::{create, quoted};

    #[test]
    fn a_report_is_not_written_through_a_link() {
        let folder = std::env::temp_dir().join(format!("rustbtl-report-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (victim, planted) = (folder.join("victim"), folder.join("rank-0.json.tmp"));
        std::fs::write(&victim, "mine").unwrap();
        std::os::unix::fs::symlink(&victim, &planted).unwrap();
        create(&planted).unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "mine");
        assert!(!planted.is_symlink());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn strings_are_quoted_as_json_wants_it() {
        assert_eq!(quoted("file:/a \"b\"\\\n"), "\"file:/a \\\"b\\\"\\\\\\u000a\"");
    }
}
