//! The settings that mpirun's component gives to guardians in the environment of the job.

use crate::auth::Secret;
use crate::job_secret;
use crate::local;
use rustbtl_fragments::ids::{Incarnation, PeerId};
use rustbtl_process::dump::Compression;
use rustbtl_process::file_undo::TEMPORARY;
use std::ffi::OsString;
use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Name of the job.
pub const JOB: &str = "RUSTBTL_JOB";
/// The token of the job's secret (`job_secret`); in an agent's environment its 64 hexadecimal
/// digits.
pub const SECRET: &str = "RUSTBTL_SECRET";
/// Port of the coordinator, a blank, and mpirun's own address as Open MPI writes it.
pub const COORDINATOR: &str = "RUSTBTL_COORDINATOR";
/// Folder of the checkpoint that the job restarts from.
pub const RESTORE: &str = "RUSTBTL_RESTORE";
/// How images are written: [`Images`] as text.
pub const IMAGES: &str = "RUSTBTL_IMAGES";
/// Folder of the job in the checkpoint directory.
pub const FOLDER: &str = "RUSTBTL_FOLDER";
/// Base of the folder in which each node keeps images, if there is no folder that all share;
/// empty: the node's temporary files.
pub const LOCAL: &str = "RUSTBTL_LOCAL";
/// The incarnation that a restarted rank runs in, where its job keeps running meanwhile.
pub const INCARNATION: &str = "RUSTBTL_INCARNATION";
/// 1: other ranks of the job keep running while this one is restarted.
pub const ALONE: &str = "RUSTBTL_ALONE";
/// What was printed of a rank whose guardian another one has started: [`Printed`] as text.
pub const PRINTED: &str = "RUSTBTL_PRINTED";
/// 1: mpirun prints what ranks without a daemon of its own print.
pub const PRINTS: &str = "RUSTBTL_PRINTS";
/// Number of the rank's end of the socket to its guardian.
pub const GUARDIAN_FD: &str = "RUSTBTL_GUARDIAN_FD";
/// The same number in every process, because it is part of images.
pub const GUARDIAN_FD_NUMBER: i32 = 199;
/// Folder in which a rank records what it changes in files.
pub const UNDO: &str = "RUSTBTL_UNDO";
/// Of a program: its images are incremental, so it has the kernel note what it writes.
pub const TRACK_CHANGES: &str = "RUSTBTL_TRACK_CHANGES";
/// For tests: pages that a program calls unchanged are read all the same, and an image in which one
/// has changed is refused.
pub const VERIFY_UNCHANGED: &str = "RUSTBTL_VERIFY_UNCHANGED";
/// Shadow verbs (docs/adr/0044): 1, or the path of the library.
pub const SHADOW_VERBS: &str = "RUSTBTL_SHADOW_VERBS";
/// Of a program: its verbs are shadowed, and the component tells it when to drain them.
pub const SHADOW_VERBS_JOB: &str = "RUSTBTL_VERBS_JOB";
/// Where the node's directory goes, if not into the session's.
pub const TMP: &str = "RUSTBTL_TMP";
/// Milliseconds after which a silent node counts as failed.
pub const FAILURE_TIMEOUT: &str = "RUSTBTL_FAILURE_TIMEOUT";
/// What it is, if nobody has chosen another.
pub const FAILURE_TIMEOUT_MS: u64 = 4000;
/// What may be chosen: probes by the kernel are a second apart at least.
pub const FAILURE_TIMEOUTS_MS: std::ops::RangeInclusive<u64> = 2000..=600_000;
/// Heartbeats in this time.
const HEARTBEATS: u32 = 8;
/// An agent tries to connect again when nothing was received for so many times as long.
const AGENT_PATIENCE: u32 = 5;
/// Tests: folder with the points at which guardians wait (`guardian/failpoints.rs`).
pub const FAILPOINTS: &str = "RUSTBTL_FAILPOINTS";
/// All of them: programs see only the last.
pub const ALL: [&str; 16] = [
    SHADOW_VERBS,
    FAILURE_TIMEOUT,
    FAILPOINTS,
    ALONE,
    PRINTED,
    PRINTS,
    JOB,
    SECRET,
    COORDINATOR,
    RESTORE,
    FOLDER,
    LOCAL,
    IMAGES,
    INCARNATION,
    TMP,
    GUARDIAN_FD,
];

/// How long a silent node is waited for, and what follows from that for processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailureTimeout(Duration);

impl FailureTimeout {
    /// Of so many milliseconds; those that nobody can choose are the default.
    pub fn from_ms(ms: u64) -> Self {
        let valid = FAILURE_TIMEOUTS_MS.contains(&ms);
        Self(Duration::from_millis(if valid { ms } else { FAILURE_TIMEOUT_MS }))
    }

    /// As a variable of the environment has it.
    pub fn read(text: Option<&str>) -> Self {
        Self::from_ms(text.and_then(|text| text.parse().ok()).unwrap_or(FAILURE_TIMEOUT_MS))
    }

    /// As a variable of the environment.
    pub fn text(self) -> String {
        self.0.as_millis().to_string()
    }

    /// A node that was silent for so long has failed.
    pub fn silence(self) -> Duration {
        self.0
    }

    /// Programs of a node that hears nothing from the coordinator's are suspended from then on:
    /// before others take their ranks.
    pub fn suspension(self) -> Duration {
        self.0 * 3 / 4
    }

    /// Between two heartbeats.
    pub fn heartbeat_interval(self) -> Duration {
        self.0 / HEARTBEATS
    }

    /// An agent that has received nothing from its coordinator for so long tries to connect again.
    pub fn coordinator_silence(self) -> Duration {
        self.0 * AGENT_PATIENCE
    }
}

/// What a guardian has to know.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// Name of the job.
    pub job: String,
    /// Its secret.
    pub secret: Secret,
    /// Where the coordinator may be.
    pub coordinator: Vec<SocketAddr>,
    /// The checkpoint to restore from.
    pub restore: Option<PathBuf>,
    /// In which incarnation; 0: the one after that of the image.
    pub incarnation: Incarnation,
    /// Other ranks keep running meanwhile, and may have written to the files that it writes to.
    pub alone: bool,
    /// Where the job keeps what outlives it.
    pub folder: Option<PathBuf>,
    /// Where this node keeps images of the job, if there is no folder that all share.
    pub local: Option<PathBuf>,
    /// What was printed of its output, if another guardian has started this one.
    pub printed: Option<Printed>,
    /// mpirun prints what ranks without a daemon of its own print.
    pub prints: bool,
    /// How long a silent node is waited for.
    pub failure_timeout: FailureTimeout,
    /// Whom to guard.
    pub rank: PeerId,
    /// Ranks of the job.
    pub size: u32,
    /// Where the node keeps what belongs to the job.
    pub tmp: PathBuf,
}

/// Why a guardian does not protect its program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoSettings {
    /// The job is not protected.
    NotRequested,
    /// A variable has no valid value.
    Invalid(&'static str),
    /// The job's secret cannot be found out on this node, for this reason.
    Secret(String),
}

impl Settings {
    /// From the environment, through `get`.
    pub fn read(get: impl Fn(&str) -> Option<OsString>) -> Result<Self, NoSettings> {
        let text = |name: &str| get(name).and_then(|value| value.into_string().ok());
        let coordinator = text(COORDINATOR).ok_or(NoSettings::NotRequested)?;
        // Open MPI sets it for each process; without it this is no process of a job.
        let rank = text("OMPI_COMM_WORLD_RANK").ok_or(NoSettings::NotRequested)?;
        let rank = rank.parse().map_err(|_| NoSettings::Invalid("OMPI_COMM_WORLD_RANK"))?;
        let size = text("OMPI_COMM_WORLD_SIZE").and_then(|size| size.parse().ok());
        let size =
            size.filter(|size| rank < *size).ok_or(NoSettings::Invalid("OMPI_COMM_WORLD_SIZE"))?;
        let job = text(JOB).filter(|job| is_job_name(job)).ok_or(NoSettings::Invalid(JOB))?;
        let token = text(SECRET).ok_or(NoSettings::Invalid(SECRET))?;
        let secret = job_secret::open(&token).map_err(NoSettings::Secret)?;
        let coordinator = addresses(&coordinator).ok_or(NoSettings::Invalid(COORDINATOR))?;
        let path = |name| get(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let (restore, folder) = (path(RESTORE), path(FOLDER));
        let tmp = temporary(&get);
        let local = get(LOCAL).filter(|_| folder.is_none()).map(|base| {
            let base = if base.is_empty() { local::default_base(&tmp) } else { base.into() };
            local::folder(&base, &job)
        });
        let rank = PeerId(rank);
        let incarnation = match text(INCARNATION) {
            Some(number) => number.parse().map_err(|_| NoSettings::Invalid(INCARNATION))?,
            None => 0,
        };
        let incarnation = Incarnation(incarnation);
        let printed = match text(PRINTED) {
            Some(text) => Some(text.parse().map_err(|()| NoSettings::Invalid(PRINTED))?),
            None => None,
        };
        let alone = text(ALONE).is_some_and(|alone| alone == "1");
        let prints = text(PRINTS).is_some_and(|prints| prints == "1");
        let failure_timeout = FailureTimeout::read(text(FAILURE_TIMEOUT).as_deref());
        Ok(Self {
            job,
            secret,
            coordinator,
            restore,
            incarnation,
            alone,
            folder,
            local,
            printed,
            prints,
            failure_timeout,
            rank,
            size,
            tmp,
        })
    }
}

impl Settings {
    /// Where ranks record what they change in files: beside the checkpoints; without a directory
    /// that all nodes share, in the folder where the job was started.
    pub fn undo(&self) -> Option<PathBuf> {
        match &self.folder {
            Some(folder) => Some(folder.join("files")),
            None => Some(temporary_undo(&std::env::current_dir().ok()?, &self.job)),
        }
    }
}

/// The folder for this in another one, for the time that the job runs.
pub fn temporary_undo(folder: &Path, job: &str) -> PathBuf {
    folder.join(format!("{TEMPORARY}{job}"))
}

/// Where the node keeps what belongs to the job.
pub fn temporary(get: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let tmp = get(TMP).or_else(|| get("PMIX_SERVER_TMPDIR")).or_else(|| get("TMPDIR"));
    let tmp = tmp.filter(|t| !t.is_empty());
    tmp.map_or_else(|| PathBuf::from("/tmp"), PathBuf::from)
}

/// How much of a rank's output was printed before its node was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Printed {
    /// Bytes of its standard output and standard error.
    pub bytes: [u64; 2],
    /// mpirun has received so much. Otherwise so much was forwarded, or more.
    pub exact: bool,
}

impl Display for Printed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let ([out, err], exact) = (self.bytes, u8::from(self.exact));
        write!(f, "{out} {err} {exact}")
    }
}

impl FromStr for Printed {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let numbers: Result<Vec<u64>, _> = text.split(' ').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[out, err, exact @ (0 | 1)]) => Ok(Self { bytes: [out, err], exact: exact == 1 }),
            _ => Err(()),
        }
    }
}

/// How images are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Images {
    /// Of memory.
    pub compression: Compression,
    /// One image in so many is a full one; 0 and 1: all are.
    pub full_every: u32,
}

/// Longest chain of incremental images.
pub const FULL_EVERY_MAX: u32 = 255;

impl Default for Images {
    fn default() -> Self {
        Self { compression: Compression::None, full_every: 0 }
    }
}

impl FromStr for Images {
    type Err = String;

    /// The values of the parameters `compression` and `incremental`, with a blank between them. The
    /// text of the error is for users.
    fn from_str(text: &str) -> Result<Self, String> {
        let (compression, full_every) = text.rsplit_once(' ').unwrap_or((text, "0"));
        let compression = compression.parse().map_err(|choose| {
            format!("vprotocol_correlated_compression is {compression:?}: {choose}")
        })?;
        let number = full_every.parse().ok().filter(|every| *every <= FULL_EVERY_MAX);
        let full_every = number.ok_or_else(|| {
            format!(
                "vprotocol_correlated_incremental is {full_every:?}: give the number of images of \
                 which one is full, up to {FULL_EVERY_MAX}, or 0 for full images only"
            )
        })?;
        Ok(Self { compression, full_every })
    }
}

/// A name that is safe as a file name.
pub fn is_job_name(name: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && name.len() <= 100 && !name.starts_with('.') && name.chars().all(fine)
}

/// As hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The reverse.
pub fn unhex<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if digits.len() != 2 * N || !digits.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Addresses in `4000 1234.0;tcp://10.0.0.1,10.1.0.1:5000;tcp6://[fd00::1]:5001`, with the port
/// in front; this host comes last. PRRTE has the bits of the networks' masks behind its port.
fn addresses(text: &str) -> Option<Vec<SocketAddr>> {
    let (port, uri) = text.split_once(' ').unwrap_or((text, ""));
    let port: u16 = port.parse().ok()?;
    Some(hosts(uri).into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
}

/// The addresses in such a text; this host comes last.
pub fn hosts(uri: &str) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = Vec::new();
    for part in uri.split(';') {
        let Some((_, hosts)) = part.split_once("://") else { continue };
        let mut inside = false;
        let ends = |c: char| {
            inside = (inside || c == '[') && c != ']';
            c == ':' && !inside
        };
        let hosts = hosts.split(ends).next().unwrap_or_default();
        let ip = |host: &str| host.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        let parsed = hosts.split(',').filter_map(ip);
        all.extend(parsed);
    }
    all.push(Ipv4Addr::LOCALHOST.into());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_mpis_addresses_are_understood() {
        let text = |all: &[&str]| -> Vec<SocketAddr> {
            all.iter().map(|address| address.parse().unwrap()).collect()
        };
        let uri = "77 12.0;tcp://10.0.0.1,10.1.0.1:5000;tcp6://[fd00::1],[fd00::2]:5001";
        let wanted = ["10.0.0.1:77", "10.1.0.1:77", "[fd00::1]:77", "[fd00::2]:77", "127.0.0.1:77"];
        assert_eq!(addresses(uri), Some(text(&wanted)));
        let prrte =
            "77 prterun-n0-9@0.0;tcp://10.0.0.1,10.1.0.1:5000:24,8;tcp6://[fd00::1]:5001:64";
        let wanted = ["10.0.0.1:77", "10.1.0.1:77", "[fd00::1]:77", "127.0.0.1:77"];
        assert_eq!(addresses(prrte), Some(text(&wanted)));
        assert_eq!(addresses("77"), Some(text(&["127.0.0.1:77"])));
        assert_eq!(addresses("77 nonsense;tcp://;x://:"), Some(text(&["127.0.0.1:77"])));
        assert_eq!(addresses("seven"), None);
    }

    #[test]
    fn all_times_follow_from_the_failure_timeout() {
        let usual = FailureTimeout::read(None);
        let ms = Duration::from_millis;
        assert_eq!(usual.silence(), ms(4000));
        assert_eq!(
            (usual.heartbeat_interval(), usual.coordinator_silence()),
            (ms(500), ms(20_000))
        );
        let long = FailureTimeout::read(Some("60000"));
        assert_eq!((long.silence(), long.suspension()), (ms(60_000), ms(45_000)));
        assert_eq!(FailureTimeout::read(Some(&long.text())), long);
        for nobody_chooses in ["", "x", "0", "1999", "600001", "-1"] {
            assert_eq!(FailureTimeout::read(Some(nobody_chooses)), usual, "{nobody_chooses}");
        }
        for choosable in [*FAILURE_TIMEOUTS_MS.start(), *FAILURE_TIMEOUTS_MS.end()] {
            let timeout = FailureTimeout::from_ms(choosable);
            // Programs are suspended before others take their ranks, by a heartbeat at least.
            assert!(timeout.suspension() + timeout.heartbeat_interval() < timeout.silence());
        }
    }

    #[test]
    fn how_images_are_written_is_understood_and_nonsense_is_not() {
        let zstd = Images { compression: Compression::Zstd, full_every: 8 };
        assert_eq!("zstd 8".parse(), Ok(zstd));
        assert_eq!("none 0".parse(), Ok(Images::default()));
        for (text, about) in [
            ("gzip 0", "vprotocol_correlated_compression is \"gzip\": choose none, lz4 or zstd"),
            ("ZSTD 0", "choose none, lz4 or zstd"),
            (" 0", "vprotocol_correlated_compression is \"\""),
            ("lz4 -1", "vprotocol_correlated_incremental is \"-1\": give the number"),
            ("lz4 256", "up to 255"),
        ] {
            let problem = text.parse::<Images>().unwrap_err();
            assert!(problem.contains(about), "{problem}");
        }
    }

    #[test]
    fn a_missing_variable_is_not_taken_for_an_invalid_one() {
        let good = [
            (JOB, "a-1"),
            (SECRET, &"0f".repeat(32)),
            (COORDINATOR, "77"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
        ];
        let read = |change: &str, to: Option<&str>| {
            Settings::read(|name| {
                let found = good.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
                (if name == change { to } else { found }).map(OsString::from)
            })
        };
        let settings = read("", None).ok().unwrap();
        assert_eq!((settings.rank, settings.size), (PeerId(1), 2));
        assert_eq!(settings.secret, [15; 32]);
        assert_eq!(read(COORDINATOR, None).err(), Some(NoSettings::NotRequested));
        assert_eq!(read("OMPI_COMM_WORLD_RANK", None).err(), Some(NoSettings::NotRequested));
        assert_eq!(
            read("OMPI_COMM_WORLD_RANK", Some("2")).err(),
            Some(NoSettings::Invalid("OMPI_COMM_WORLD_SIZE"))
        );
        assert_eq!(read(SECRET, None).err(), Some(NoSettings::Invalid(SECRET)));
        assert!(matches!(read(SECRET, Some("0f")).err(), Some(NoSettings::Secret(_))));
        assert_eq!(read(JOB, Some("../x")).err(), Some(NoSettings::Invalid(JOB)));
    }
}
