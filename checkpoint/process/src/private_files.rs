//! Files that are read back, by whoever it is: an image becomes a process of this user, so nobody
//! else may have written it. All readers and writers of folders of jobs use this.
//!
//! 1. What is trusted is an open descriptor, never a path: it is opened first, then looked at, and
//!    what is in a folder is opened relative to its descriptor. Symbolic links are not followed.
//! 2. It belongs to this user or to root, and nobody else may write to it: neither to the file nor
//!    to its folder. What is above the folder does not matter: who can write there can move the
//!    folder away, but not put anything of his own into its place.
//! 3. Only regular files are read; opening never waits (a FIFO, a device).
//! 4. The size is compared with a limit before anything is read or allocated.
//! 5. What is made did not exist, and is closed to others: folders 0700, files 0600.

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display, Formatter};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Permissions of which nobody but the owner may have any.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// The user that a server makes of root, or of a user whom it does not know.
const NOBODY: u32 = 65534;

/// What is wrong with a file or a folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Distrust {
    /// It belongs to another user.
    Owner {
        /// Its owner.
        owner: u32,
        /// Who would use it.
        user: u32,
    },
    /// Others may write to it.
    Writable {
        /// Its permissions.
        mode: u32,
    },
    /// It is a symbolic link.
    Link,
    /// It is no folder.
    NotAFolder,
    /// It is no regular file.
    NotAFile,
    /// It is longer than it may be.
    TooLong {
        /// Its length.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
}

/// Why a file or folder is not used. The text names it, and says what to do.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system refuses it.
    #[error("{}: {error}", path.display())]
    System {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is not trusted.
    #[error("{}", distrusted(path, *problem))]
    Distrusted {
        /// Which.
        path: PathBuf,
        /// Why.
        problem: Distrust,
    },
}

impl FileError {
    /// It does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::System { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }

    /// It belongs to somebody else.
    pub fn is_foreign(&self) -> bool {
        matches!(self, Self::Distrusted { problem: Distrust::Owner { .. }, .. })
    }
}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        let kind = match &error {
            FileError::System { error, .. } => error.kind(),
            FileError::Distrusted { .. } => io::ErrorKind::PermissionDenied,
        };
        Self::new(kind, error)
    }
}

/// What is wrong, and what to do.
fn distrusted(path: &Path, problem: Distrust) -> impl Display {
    struct Text<'a>(&'a Path, Distrust);
    impl Display for Text<'_> {
        fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
            let path = self.0.display();
            match self.1 {
                Distrust::Owner { owner, user } => {
                    write!(
                        f,
                        "{path} belongs to user {owner}; user {user} uses only what belongs to \
                         him or to root, because a process is made of it. Do this as user {owner}, \
                         or make a copy of your own, if you trust its owner (cp -r)"
                    )?;
                    if owner == NOBODY {
                        write!(
                            f,
                            ". User {NOBODY} is what a file server shows for a user that it does \
                             not know, and for root (root_squash): then do this as the user who \
                             wrote it"
                        )?;
                    }
                    Ok(())
                }
                Distrust::Writable { mode } => {
                    let who = match (mode & GROUP_WRITES != 0, mode & OTHERS_WRITE != 0) {
                        (true, true) => "go-w",
                        (true, false) => "g-w",
                        _ => "o-w",
                    };
                    write!(
                        f,
                        "{path} can be changed by others (mode {mode:o}), and is not used: if \
                         nobody has, chmod {who} {path}"
                    )
                }
                Distrust::Link => {
                    write!(
                        f,
                        "{path} is a symbolic link, which is not followed: move there what \
                               it leads to"
                    )
                }
                Distrust::NotAFolder => write!(f, "{path} is no folder: remove it"),
                Distrust::NotAFile => write!(f, "{path} is no regular file: remove it"),
                Distrust::TooLong { bytes, bytes_max } => write!(
                    f,
                    "{path} has {bytes} bytes, more than the {bytes_max} that such a file can \
                     have: it is damaged, remove it"
                ),
            }
        }
    }
    Text(path, problem)
}

/// May `user` use what belongs to `owner` and has these permissions (2)?
pub fn check_owner_and_mode(user: u32, owner: u32, mode: u32) -> Result<(), Distrust> {
    if owner != user && owner != 0 {
        return Err(Distrust::Owner { owner, user });
    }
    if mode & WRITABLE_BY_OTHERS != 0 {
        return Err(Distrust::Writable { mode: mode & 0o7777 });
    }
    Ok(())
}

fn is_folder(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// What was opened is looked at, not its name (1).
fn trusted(fd: OwnedFd, path: &Path, folder: bool) -> Result<OwnedFd, FileError> {
    let stat = fs::fstat(&fd).map_err(|error| system(path, error))?;
    let problem = match folder {
        true if !is_folder(&stat) => Some(Distrust::NotAFolder),
        false if !is_file(&stat) => Some(Distrust::NotAFile),
        _ => {
            let user = rustix::process::geteuid().as_raw();
            check_owner_and_mode(user, stat.st_uid, stat.st_mode).err()
        }
    };
    match problem {
        None => Ok(fd),
        Some(problem) => Err(FileError::Distrusted { path: path.to_owned(), problem }),
    }
}

fn system(path: &Path, error: Errno) -> FileError {
    FileError::System { path: path.to_owned(), error: error.into() }
}

/// Errors that say what a name stands for.
fn opening(path: &Path, error: Errno, folder: bool) -> FileError {
    let problem = match error {
        // With O_DIRECTORY a link is no directory.
        Errno::NOTDIR if folder && path.is_symlink() => Distrust::Link,
        Errno::NOTDIR if folder && path.exists() => Distrust::NotAFolder,
        Errno::LOOP => Distrust::Link,
        // A socket; or a FIFO, opened for writing.
        Errno::NXIO => Distrust::NotAFile,
        Errno::ISDIR if !folder => Distrust::NotAFile,
        error => return system(path, error),
    };
    FileError::Distrusted { path: path.to_owned(), problem }
}

/// Without waiting (3), and never through a link (1).
const CAREFULLY: OFlags =
    OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
const AS_FOLDER: OFlags = CAREFULLY.union(OFlags::DIRECTORY);
const PRIVATE_FILE: Mode = Mode::from_raw_mode(0o600);
const PRIVATE_FOLDER: Mode = Mode::from_raw_mode(0o700);

/// A folder that only this user, or root, can change.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
    path: PathBuf,
}

impl Folder {
    /// One that exists. Only the last part of the path is checked (2).
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let opened = fs::open(path, AS_FOLDER, Mode::empty());
        let fd = opened.map_err(|error| opening(path, error, true))?;
        Ok(Self { fd: trusted(fd, path, true)?, path: path.to_owned() })
    }

    /// A new one (5); an error if anything has this name.
    pub fn create(path: &Path) -> Result<Self, FileError> {
        fs::mkdir(path, PRIVATE_FOLDER).map_err(|error| system(path, error))?;
        Self::open(path)
    }

    /// One that exists or is made.
    pub fn open_or_create(path: &Path) -> Result<Self, FileError> {
        match fs::mkdir(path, PRIVATE_FOLDER) {
            Ok(()) | Err(Errno::EXIST) => Self::open(path),
            Err(error) => Err(system(path, error)),
        }
    }

    /// The folder that a file is in.
    pub fn of(file: &Path) -> Result<(Self, &OsStr), FileError> {
        let missing = || system(file, Errno::NOENT);
        let name = file.file_name().ok_or_else(missing)?;
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        Ok((Self::open(folder.unwrap_or(Path::new(".")))?, name))
    }

    /// Its path, as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A folder in it that exists.
    pub fn folder(&self, name: impl AsRef<OsStr>) -> Result<Self, FileError> {
        let (name, path) = self.inside(name.as_ref())?;
        let opened = fs::openat(&self.fd, name, AS_FOLDER, Mode::empty());
        let fd = opened.map_err(|error| opening(&path, error, true))?;
        Ok(Self { fd: trusted(fd, &path, true)?, path })
    }

    /// A folder in it that exists or is made.
    pub fn folder_or_new(&self, name: impl AsRef<OsStr>) -> Result<Self, FileError> {
        let (inside, path) = self.inside(name.as_ref())?;
        match fs::mkdirat(&self.fd, inside, PRIVATE_FOLDER) {
            Ok(()) | Err(Errno::EXIST) => self.folder(inside),
            Err(error) => Err(system(&path, error)),
        }
    }

    /// A name in this folder leads nowhere else.
    fn inside<'a>(&self, name: &'a OsStr) -> Result<(&'a OsStr, PathBuf), FileError> {
        let path = self.path.join(name);
        let bytes = name.as_bytes();
        if bytes.is_empty() || bytes.contains(&b'/') || bytes == b"." || bytes == b".." {
            return Err(system(&path, Errno::INVAL));
        }
        Ok((name, path))
    }

    fn open_file(&self, name: &OsStr, flags: OFlags) -> Result<File, FileError> {
        let (name, path) = self.inside(name)?;
        let opened = fs::openat(&self.fd, name, CAREFULLY | flags, PRIVATE_FILE);
        let fd = opened.map_err(|error| opening(&path, error, false))?;
        trusted(fd, &path, false).map(File::from)
    }

    /// A file in it, to read.
    pub fn file(&self, name: impl AsRef<OsStr>) -> Result<File, FileError> {
        self.open_file(name.as_ref(), OFlags::RDONLY)
    }

    /// The content of a file that may have so many bytes (4).
    pub fn read(&self, name: impl AsRef<OsStr>, bytes_max: u64) -> Result<Vec<u8>, FileError> {
        let name = name.as_ref();
        read_all(self.file(name)?, &self.path.join(name), bytes_max)
    }

    /// A new file (5), to write; an error if anything has this name.
    pub fn create_file(&self, name: impl AsRef<OsStr>) -> Result<File, FileError> {
        self.open_file(name.as_ref(), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)
    }

    /// A new file in place of one that an earlier attempt may have left.
    pub fn create_file_anew(&self, name: impl AsRef<OsStr>) -> Result<File, FileError> {
        let name = name.as_ref();
        match self.remove(name) {
            Err(error) if !error.is_missing() => Err(error),
            _ => self.create_file(name),
        }
    }

    /// A file that exists or is made, to read and write.
    pub fn file_or_new(&self, name: impl AsRef<OsStr>) -> Result<File, FileError> {
        self.open_file(name.as_ref(), OFlags::RDWR | OFlags::CREATE)
    }

    /// A file that exists, to append to.
    pub fn file_to_append(&self, name: impl AsRef<OsStr>) -> Result<File, FileError> {
        self.open_file(name.as_ref(), OFlags::WRONLY | OFlags::APPEND)
    }

    /// The same, or a new one.
    pub fn file_or_new_to_append(&self, name: impl AsRef<OsStr>) -> Result<File, FileError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
        self.open_file(name.as_ref(), flags)
    }

    /// Gives a file another name; what had it is replaced.
    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> Result<(), FileError> {
        let ((from, _), (to, path)) = (self.inside(from.as_ref())?, self.inside(to.as_ref())?);
        fs::renameat(&self.fd, from, &self.fd, to).map_err(|error| system(&path, error))
    }

    /// Removes a file.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> Result<(), FileError> {
        let (name, path) = self.inside(name.as_ref())?;
        fs::unlinkat(&self.fd, name, AtFlags::empty()).map_err(|error| system(&path, error))
    }

    /// Where a symbolic link in it leads; `None`: the name is no link. The link is this user's: the
    /// folder is.
    pub fn link(&self, name: impl AsRef<OsStr>) -> Option<PathBuf> {
        let (name, _) = self.inside(name.as_ref()).ok()?;
        let target = fs::readlinkat(&self.fd, name, Vec::new()).ok()?;
        Some(PathBuf::from(OsStr::from_bytes(target.as_bytes())))
    }

    /// Names in it, sorted.
    pub fn names(&self) -> Result<Vec<OsString>, FileError> {
        let failed = |error| system(&self.path, error);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Makes names in it durable.
    pub fn sync(&self) -> Result<(), FileError> {
        fs::fsync(&self.fd).map_err(|error| system(&self.path, error))
    }
}

/// The content of an open file (4).
pub fn read_all(file: File, path: &Path, bytes_max: u64) -> Result<Vec<u8>, FileError> {
    let failed = |error| FileError::System { path: path.to_owned(), error };
    let too_long = |bytes| FileError::Distrusted {
        path: path.to_owned(),
        problem: Distrust::TooLong { bytes, bytes_max },
    };
    let bytes = file.metadata().map_err(failed)?.len();
    if bytes > bytes_max {
        return Err(too_long(bytes));
    }
    let mut content = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
    // It may grow meanwhile.
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut content).map_err(failed)?;
    let read = content.len() as u64;
    if read > bytes_max { Err(too_long(read)) } else { Ok(content) }
}

/// A file of this user in any folder, also in one that all write to: only for what is shown.
pub fn open_to_show(path: &Path) -> Result<File, FileError> {
    let opened = fs::open(path, CAREFULLY, Mode::empty());
    let fd = opened.map_err(|error| opening(path, error, false))?;
    trusted(fd, path, false).map(File::from)
}

/// Makes a folder and those above it, if they are not there, closed to others.
pub fn make_folders(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests;
