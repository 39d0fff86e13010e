//! Where the source of Open MPI comes from: the original tarballs in Debian's source packages.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use super::Version;
use super::files::hex;
use crate::error::{Context, Result, fail, failure};
use crate::run;

/// Where Debian's archive is, unless `RUSTBTL_DEBIAN_MIRROR` says otherwise.
const MIRROR: &str = "http://deb.debian.org/debian";

/// A tarball, with the sum that Debian's signed index gives for it.
pub struct Tarball {
    /// Full version of what is in it.
    pub version: &'static str,
    sha256: &'static str,
}

/// What is built for a version: of Debian 12 (bookworm) and 13 (trixie).
pub fn tarball(version: Version) -> Tarball {
    match version {
        Version::V41 => Tarball {
            version: "4.1.4",
            sha256: "ddaee7dbdb01eb4fab1fda5b5e03e8bbff026711806c095c1f39bb410f99f263",
        },
        Version::V50 => Tarball {
            version: "5.0.7",
            sha256: "97f10c04e9b9a1771db3fd005009e4c07afa3ce739f940e41eb0fc7397cb9473",
        },
    }
}

/// The folder for what takes long to get or to build; outlives checkouts.
pub fn cache() -> Result<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    let base = base.ok_or_else(|| failure!("neither XDG_CACHE_HOME nor HOME is set"))?;
    Ok(base.join("rustbtl"))
}

/// Debian's archive.
pub fn mirror() -> String {
    env::var("RUSTBTL_DEBIAN_MIRROR").unwrap_or_else(|_| MIRROR.into())
}

impl Tarball {
    fn name(&self) -> String {
        format!("openmpi_{}.orig.tar.xz", self.version)
    }

    /// Unpacks it as the folder `to`, whole or not at all; downloads it where that was not done.
    pub fn unpack(&self, to: &Path) -> Result<()> {
        let packed = self.download()?;
        let unfinished = to.with_extension("unfinished");
        let _ = fs::remove_dir_all(&unfinished);
        fs::create_dir_all(&unfinished).context(|| unfinished.display().to_string())?;
        let mut tar = Command::new("tar");
        tar.arg("-xJf").arg(&packed).arg("--strip-components=1").arg("-C").arg(&unfinished);
        run::check(&mut tar)?;
        fs::rename(&unfinished, to).context(|| to.display().to_string())
    }

    fn download(&self) -> Result<PathBuf> {
        let folder = cache()?.join("dl");
        let file = folder.join(self.name());
        if file.exists() && self.is_right(&file)? {
            return Ok(file);
        }
        fs::create_dir_all(&folder).context(|| folder.display().to_string())?;
        let address = format!("{}/pool/main/o/openmpi/{}", mirror(), self.name());
        let partial = file.with_extension("partial");
        eprintln!("ompi-tree: downloading {address}");
        let mut curl = Command::new("curl");
        curl.args(["-fsSL", "--retry", "3", "-o"]).arg(&partial).arg(&address);
        run::check(&mut curl)?;
        if !self.is_right(&partial)? {
            fail!("{address} is not what Debian's index says it should be (SHA-256)");
        }
        fs::rename(&partial, &file).context(|| file.display().to_string())?;
        Ok(file)
    }

    fn is_right(&self, file: &Path) -> Result<bool> {
        let bytes = fs::read(file).context(|| file.display().to_string())?;
        Ok(hex(&Sha256::digest(&bytes)) == self.sha256)
    }
}
