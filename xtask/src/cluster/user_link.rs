//! Cables that lose and delay what they carry, without the kernel's netem: at both ends of each is
//! a TAP device, and a thread of ours carries frames between them.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use super::nodes::Node;
use crate::error::{Context, Result};
use crate::sys;

/// Longest frame: an Ethernet header, a tag and 1,500 bytes.
const FRAME_MAX: usize = 1518;
/// Frames that are on their way at the same time; one more is lost, as in a switch that is full.
const FRAMES_MAX: usize = 8192;

/// What happens to frames: `loss=PERCENT`, `delay=MS`, or both with a comma between.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LinkFaults {
    /// Part of the frames that is lost, 0 to 0.5.
    loss: f64,
    /// How long each is on its way, in each direction.
    delay: Duration,
}

impl FromStr for LinkFaults {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut faults = Self::default();
        for part in text.split(',') {
            let (name, value) = part.split_once('=').ok_or("give it as loss=PERCENT,delay=MS")?;
            let number: f64 = value.parse().map_err(|_| format!("`{value}` is no number"))?;
            match name {
                "loss" if (0.0..=50.0).contains(&number) => faults.loss = number / 100.0,
                "delay" if (0.0..=1000.0).contains(&number) => {
                    faults.delay = Duration::from_secs_f64(number / 1000.0);
                }
                _ => return Err(format!("`{part}`: choose loss=0 to 50, delay=0 to 1000")),
            }
        }
        Ok(faults)
    }
}

/// Both ends of a cable: in the node, and at the bridge.
pub struct Cable([File; 2]);

impl Cable {
    /// Makes a device with one of these names in the node, and the other in the namespace of the
    /// caller.
    pub fn make(node: &Node, inside: &str, outside: &str) -> Result<Cable> {
        let home = File::open("/proc/self/ns/net").context(|| "/proc/self/ns/net".into())?;
        sys::enter(&node.namespaces[0]).context(|| format!("entering {}", node.name))?;
        let made = tap(inside);
        sys::enter(&home).context(|| "coming back from a node".into())?;
        let what = || format!("making a TAP device for {} (/dev/net/tun)", node.name);
        Ok(Cable([made.context(what)?, tap(outside).context(what)?]))
    }
}

/// A new TAP device in the network of the caller. It is there as long as the file is open.
fn tap(name: &str) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    sys::name_tap(file.as_fd(), name)?;
    Ok(file)
}

/// Carries frames until the process ends.
pub fn carry(cables: Vec<Cable>, faults: LinkFaults) -> Result<()> {
    let ends: Vec<File> = cables.into_iter().flat_map(|Cable(ends)| ends).collect();
    let mut carrier = Carrier::new(ends, faults);
    let carry = move || {
        // Its own current folder: only then may the process enter mount namespaces.
        if let Err(error) = sys::unshare(libc::CLONE_FS).and_then(|()| carrier.run()) {
            eprintln!("xtask: cluster: --link: {error}");
        }
    };
    thread::Builder::new()
        .name("link".into())
        .spawn(carry)
        .context(|| "starting a thread".into())?;
    Ok(())
}

/// A frame on its way.
#[derive(Clone)]
struct Frame {
    due: Instant,
    to: usize,
    length: usize,
    bytes: [u8; FRAME_MAX],
}

struct Carrier {
    /// End 2k and 2k + 1 are of one cable.
    ends: Vec<File>,
    faults: LinkFaults,
    /// A ring, made beforehand: init forks, so this thread must hold no lock of the allocator.
    frames: Vec<Frame>,
    first: usize,
    count: usize,
    chance: u64,
}

impl Carrier {
    fn new(ends: Vec<File>, faults: LinkFaults) -> Carrier {
        let empty = Frame { due: Instant::now(), to: 0, length: 0, bytes: [0; FRAME_MAX] };
        let frames = vec![empty; FRAMES_MAX];
        Carrier { ends, faults, frames, first: 0, count: 0, chance: 0x9E37_79B9_7F4A_7C15 }
    }

    fn run(&mut self) -> io::Result<()> {
        let poll =
            |end: &File| libc::pollfd { fd: end.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut waiting: Vec<libc::pollfd> = self.ends.iter().map(poll).collect();
        loop {
            sys::poll(&mut waiting, self.patience())?;
            for (from, end) in waiting.iter().enumerate() {
                if end.revents != 0 {
                    self.take(from);
                }
            }
            self.deliver();
        }
    }

    /// Until the next frame arrives.
    fn patience(&self) -> Option<Duration> {
        let first = (self.count > 0).then(|| self.frames[self.first].due);
        first.map(|due| due.saturating_duration_since(Instant::now()))
    }

    /// Takes what an end of a cable has, and loses some of it.
    fn take(&mut self, from: usize) {
        loop {
            let at = (self.first + self.count) % FRAMES_MAX;
            let frame = &mut self.frames[at];
            let Ok(length) = (&self.ends[from]).read(&mut frame.bytes) else { return };
            (frame.due, frame.to, frame.length) =
                (Instant::now() + self.faults.delay, from ^ 1, length);
            // With a full ring the frame is written over by the next one.
            if !self.is_lost() && self.count + 1 < FRAMES_MAX {
                self.count += 1;
            }
        }
    }

    /// Frames that are due arrive. One that a device does not take is lost.
    fn deliver(&mut self) {
        let now = Instant::now();
        while self.count > 0 && self.frames[self.first].due <= now {
            let frame = &self.frames[self.first];
            let _ = (&self.ends[frame.to]).write(&frame.bytes[..frame.length]);
            self.first = (self.first + 1) % FRAMES_MAX;
            self.count -= 1;
        }
    }

    /// Random numbers: xorshift.
    fn is_lost(&mut self) -> bool {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        ((self.chance >> 11) as f64 / (1u64 << 53) as f64) < self.faults.loss
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_and_delay_are_read_and_bounded() {
        let both: LinkFaults = "loss=2.5,delay=5".parse().unwrap();
        assert_eq!(both, LinkFaults { loss: 0.025, delay: Duration::from_millis(5) });
        for wrong in ["", "loss", "loss=51", "delay=-1", "delay=x", "jitter=3"] {
            assert!(wrong.parse::<LinkFaults>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn as_many_frames_are_lost_as_should_be() {
        let mut carrier = Carrier::new(Vec::new(), "loss=5".parse().unwrap());
        let lost = (0..100_000).filter(|_| carrier.is_lost()).count();
        assert!((4_500..5_500).contains(&lost), "{lost}");
    }
}
