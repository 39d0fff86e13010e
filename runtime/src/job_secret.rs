//! How the job's secret gets from mpirun's node to the others. Open MPI's launch message takes it
//! there, in clear; so what is in the message is a **token**, from which each node makes the
//! secret.
//!
//! | token | the secret is |
//! |---|---|
//! | 64 hexadecimal digits | these: who reads the message knows it |
//! | `munge:SOCKET:CREDENTIAL` | what munge decodes on each node, for this user only |
//! | `file:PATH:DIGITS` | the digits under the key in a file of the user, which all nodes see |
//!
//! 1. A token of `munge` or `file` does not tell the secret to who reads it.
//! 2. A token means the same on all nodes, or an error says what is missing on this one.
//!
//! SOCKET and PATH are in hexadecimal, since a token has no blanks.

use crate::auth::Secret;
use crate::os;
use crate::settings::{hex, unhex};
use hmac::{Hmac, Mac};
use rustbtl_process::private_files::{self, Folder};
use sha2::Sha256;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;

/// Bytes of a key file that are too few to be a key.
const KEY_FILE_MIN: usize = 32;
const KEY_FILE_MAX: u64 = 64 << 10;
/// Permissions of a key file that let others read it.
const READABLE_BY_OTHERS: u32 = 0o077;

/// The value of `vprotocol_correlated_secret`: how the secret travels.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Way {
    /// With munge in an allocation of Slurm, whose nodes all have it; otherwise in clear.
    #[default]
    Auto,
    /// In clear.
    Clear,
    /// With munge, at this socket or at its usual one.
    Munge(Option<PathBuf>),
    /// Under the key in this file.
    File(PathBuf),
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = |path: &str| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
        let way = match text.split_once(':') {
            None if text == "auto" => Some(Self::Auto),
            None if text == "clear" => Some(Self::Clear),
            None if text == "munge" => Some(Self::Munge(None)),
            Some(("munge", socket)) => path(socket).map(|socket| Self::Munge(Some(socket))),
            Some(("file", file)) => path(file).map(Self::File),
            _ => None,
        };
        way.ok_or_else(|| {
            format!(
                "vprotocol_correlated_secret is {text:?}: give auto, clear, munge, munge:SOCKET or \
                 file:PATH, the path from / on"
            )
        })
    }
}

/// How the secret of a job has travelled, for users.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Travels {
    /// Anybody who reads Open MPI's messages knows it.
    InClear,
    /// Encrypted by munge.
    ByMunge,
    /// It depends on a file of the user.
    UnderAKey,
}

impl Travels {
    /// The name in events and in `rustbtl status`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InClear => "clear",
            Self::ByMunge => "munge",
            Self::UnderAKey => "file",
        }
    }

    /// Of the secret that this token stands for.
    pub fn of(token: &str) -> Self {
        match token.split_once(':') {
            Some(("munge", _)) => Self::ByMunge,
            Some(("file", _)) => Self::UnderAKey,
            _ => Self::InClear,
        }
    }
}

/// A new secret, and its token.
///
/// # Errors
/// It cannot travel in this way; the text is for users.
pub fn draw(way: &Way, in_slurm: bool) -> Result<(Secret, String), String> {
    let drawn: Secret =
        os::random().map_err(|error| format!("drawing the job's secret: {error}"))?;
    match way {
        Way::Clear => Ok((drawn, hex(&drawn))),
        Way::Auto => Ok(match in_slurm.then(|| by_munge(&drawn, None)) {
            Some(Ok(token)) => (drawn, token),
            _ => (drawn, hex(&drawn)),
        }),
        Way::Munge(socket) => Ok((drawn, by_munge(&drawn, socket.as_deref())?)),
        Way::File(file) => {
            let secret = under_key(&drawn, file)?;
            let file = hex(file.as_os_str().as_bytes());
            Ok((secret, format!("file:{file}:{}", hex(&drawn))))
        }
    }
}

/// The secret that a token stands for.
///
/// # Errors
/// It cannot be found out on this node; the text is for users.
pub fn open(token: &str) -> Result<Secret, String> {
    let senseless = || "the job's secret makes no sense".to_owned();
    let words: Vec<&str> = token.splitn(3, ':').collect();
    match words[..] {
        [digits] => unhex(digits).ok_or_else(senseless),
        ["munge", socket, credential] => {
            let socket = path_of(socket).ok_or_else(senseless)?;
            let decoded = unmunge(credential, socket.as_deref())?;
            <[u8; 64]>::try_from(decoded)
                .ok()
                .and_then(|digits| unhex(core::str::from_utf8(&digits).ok()?))
                .ok_or_else(senseless)
        }
        ["file", file, digits] => {
            let file = path_of(file).flatten().ok_or_else(senseless)?;
            under_key(&unhex(digits).ok_or_else(senseless)?, &file)
        }
        _ => Err(senseless()),
    }
}

/// A path in hexadecimal; no digits: none.
fn path_of(digits: &str) -> Option<Option<PathBuf>> {
    if digits.is_empty() {
        return Some(None);
    }
    if !digits.len().is_multiple_of(2) || !digits.is_ascii() {
        return None;
    }
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).ok();
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    Some(Some(PathBuf::from(OsString::from_vec(bytes?))))
}

/// What the drawn number becomes under the key in a file that only the user can read.
fn under_key(drawn: &Secret, path: &Path) -> Result<Secret, String> {
    let what = |problem: String| {
        format!("node {}: {problem} (vprotocol_correlated_secret)", os::hostname())
    };
    let key = read_key(path).map_err(what)?;
    // Of any length.
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&key).map_err(|e| what(e.to_string()))?;
    mac.update(b"rustbtl job secret");
    mac.update(drawn);
    Ok(mac.finalize().into_bytes().into())
}

fn read_key(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let (folder, name) = Folder::of(path).map_err(|error| error.to_string())?;
    let file = folder.file(name).map_err(|error| error.to_string())?;
    let mode = file.metadata().map_err(|error| format!("{shown}: {error}"))?.mode();
    if mode & READABLE_BY_OTHERS != 0 {
        return Err(format!(
            "{shown} can be read by others (mode {:o}): make a new key in it, and chmod 600 \
             {shown}",
            mode & 0o7777
        ));
    }
    let key = private_files::read_all(file, path, KEY_FILE_MAX).map_err(|e| e.to_string())?;
    if key.len() < KEY_FILE_MIN {
        return Err(format!(
            "{shown} has {} bytes, too few for a key: head -c 32 /dev/urandom > {shown}",
            key.len()
        ));
    }
    Ok(key)
}

fn by_munge(secret: &Secret, socket: Option<&Path>) -> Result<String, String> {
    let mut munge = Command::new("munge");
    munge.arg(format!("--restrict-uid={}", os::euid()));
    let credential = run(with_socket(&mut munge, socket), hex(secret).as_bytes(), |_| false)?;
    let credential = String::from_utf8(credential).ok();
    let credential = credential.as_deref().map(str::trim).filter(|text| is_credential(text));
    let credential = credential.ok_or("munge has written something that is no credential")?;
    let socket = socket.map_or_else(String::new, |path| hex(path.as_os_str().as_bytes()));
    Ok(format!("munge:{socket}:{credential}"))
}

fn is_credential(text: &str) -> bool {
    let fine = |c: char| c.is_ascii_alphanumeric() || "+/=:".contains(c);
    text.starts_with("MUNGE:") && text.len() <= 2000 && text.chars().all(fine)
}

/// Munge refuses what it has decoded on this node before (15: expired, 16: rewound, 17: replayed),
/// and says all the same what is in it: several processes of a node ask, also long after the job
/// has begun. Only the user himself is told (`--restrict-uid`), and only what he has encoded
/// counts.
fn unmunge(credential: &str, socket: Option<&Path>) -> Result<Vec<u8>, String> {
    let mut unmunge = Command::new("unmunge");
    unmunge.args(["--keys=UID", "--numeric"]);
    let once_more = |code: i32| (15..=17).contains(&code);
    let decoded = run(with_socket(&mut unmunge, socket), credential.as_bytes(), once_more)?;
    let text = String::from_utf8(decoded).map_err(|_| "unmunge has written no text".to_owned())?;
    let (uid, payload) = text.split_once("\n\n").ok_or("unmunge has not written who it is from")?;
    let uid = uid.strip_prefix("UID:").and_then(|uid| uid.trim().parse::<u32>().ok());
    if uid != Some(os::euid()) {
        return Err("the job's secret was encoded by another user".into());
    }
    Ok(payload.as_bytes().to_vec())
}

fn with_socket<'a>(command: &'a mut Command, socket: Option<&Path>) -> &'a mut Command {
    if let Some(socket) = socket {
        let mut argument = OsString::from("--socket=");
        argument.push(socket);
        command.arg(argument);
    }
    command
}

/// What it writes. `fine`: exit codes beside 0.
fn run(command: &mut Command, input: &[u8], fine: impl Fn(i32) -> bool) -> Result<Vec<u8>, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let what = |error: io::Error| {
        format!("node {}: running {name}: {error} (vprotocol_correlated_secret)", os::hostname())
    };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(what)?;
    if let Some(mut stdin) = child.stdin.take() {
        // If it does not read, it says why.
        let _ = stdin.write_all(input);
    }
    let output = child.wait_with_output().map_err(what)?;
    if output.status.success() || output.status.code().is_some_and(fine) {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(format!("node {}: {said} (vprotocol_correlated_secret)", os::hostname()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    struct KeyFile(PathBuf);

    impl KeyFile {
        fn new(name: &str, key: &[u8], mode: u32) -> Self {
            let path = std::env::temp_dir().join(format!("rustbtl-key-{name}-{}", os::euid()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            let file = path.join("a key");
            fs::write(&file, key).unwrap();
            fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            Self(file)
        }
    }

    impl Drop for KeyFile {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.parent().unwrap());
        }
    }

    #[test]
    fn ways_are_those_of_the_parameter() {
        assert_eq!("auto".parse(), Ok(Way::Auto));
        assert_eq!("clear".parse(), Ok(Way::Clear));
        assert_eq!("munge".parse(), Ok(Way::Munge(None)));
        assert_eq!("munge:/run/s".parse(), Ok(Way::Munge(Some("/run/s".into()))));
        assert_eq!("file:/home/u/my key".parse(), Ok(Way::File("/home/u/my key".into())));
        for senseless in ["", "none", "file", "file:key", "munge:", "clear:", "file:"] {
            let why = senseless.parse::<Way>().unwrap_err();
            assert!(why.contains("vprotocol_correlated_secret"), "{why}");
        }
    }

    #[test]
    fn a_secret_in_clear_is_its_own_token() {
        let (secret, token) = draw(&Way::Clear, true).unwrap();
        assert_eq!(open(&token), Ok(secret));
        assert_eq!(Travels::of(&token), Travels::InClear);
        assert_eq!(draw(&Way::Auto, false).unwrap().1.len(), 64);
    }

    #[test]
    fn under_a_key_the_token_does_not_tell_the_secret() {
        let file = KeyFile::new("right", &[9; 32], 0o600);
        let (secret, token) = draw(&Way::File(file.0.clone()), false).unwrap();
        assert!(!token.contains(&hex(&secret)) && !token.contains(' '), "1");
        assert_eq!(open(&token), Ok(secret));
        assert_eq!(Travels::of(&token), Travels::UnderAKey);
        fs::write(&file.0, [8; 32]).unwrap();
        assert_ne!(open(&token), Ok(secret), "another key");
        fs::remove_file(&file.0).unwrap();
        let why = open(&token).unwrap_err();
        assert!(why.contains("a key: No such file") && why.contains(&os::hostname()), "2: {why}");
    }

    #[test]
    fn a_key_that_others_can_read_and_one_that_is_none_are_refused() {
        let file = KeyFile::new("open", &[9; 32], 0o640);
        let why = draw(&Way::File(file.0.clone()), false).unwrap_err();
        assert!(why.contains("can be read by others (mode 640)"), "{why}");
        let file = KeyFile::new("short", &[9; 31], 0o600);
        let why = draw(&Way::File(file.0.clone()), false).unwrap_err();
        assert!(why.contains("31 bytes, too few"), "{why}");
        let file = KeyFile::new("folder", &[9; 32], 0o600);
        let folder = file.0.parent().unwrap();
        fs::create_dir(folder.join("sub")).unwrap();
        let why = draw(&Way::File(folder.join("sub")), false).unwrap_err();
        assert!(why.contains("is no regular file"), "{why}");
        fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).unwrap();
        let why = draw(&Way::File(file.0.clone()), false).unwrap_err();
        assert!(why.contains("can be changed by others (mode 777)"), "{why}");
    }

    #[test]
    fn tokens_without_sense_are_refused() {
        let digits = "0f".repeat(32);
        for token in [
            String::new(),
            digits[1..].to_owned(),
            format!("file::{digits}"),
            format!("file:2f6:{digits}"),
            format!("file:2f61:{}", &digits[2..]),
            "munge:xy:MUNGE:a:".into(),
            format!("rot13::{digits}"),
        ] {
            assert!(open(&token).is_err(), "{token}");
        }
    }

    #[test]
    fn munge_that_is_not_there_is_named() {
        let nowhere = Way::Munge(Some("/nonexistent/munge.socket".into()));
        let why = draw(&nowhere, true).unwrap_err();
        assert!(why.contains("munge") && why.contains("vprotocol_correlated_secret"), "{why}");
    }
}
