//! A barrier of the processes of a set by dissemination: in each round a process notifies seven
//! others, 1 to 7 times 8^round places further, that it and all it knows of have arrived. After
//! round r it knows of the 8^(r+1) processes before it, so ⌈log₈ n⌉ rounds are enough.
//!
//! Source: D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier synchronization",
//! International Journal of Parallel Programming 17 (1988), with eight in place of two: a frame
//! costs little, to wait for one costs much, above all where processes share processors.
//!
//! Invariants:
//! 1. Frames of a round are sent when all of the rounds before it are in, once.
//! 2. A barrier that is complete here was begun by all.

use core::ops::Range;

const BASE: usize = 8;
/// Frames in a round.
const WIDTH: u8 = BASE as u8 - 1;

/// What the barriers of sets of one size have in common.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Frames by number: those of round r are 7r to 7r + 6; the last round may have fewer.
    frames: u8,
}

impl Shape {
    /// Of a set of `n` processes, at least 1.
    pub fn of(n: usize) -> Self {
        let (mut frames, mut unit) = (0, 1);
        while unit < n {
            frames += ((n - 1) / unit).min(WIDTH.into()) as u8;
            unit *= BASE;
        }
        Self { frames }
    }

    /// How many places further the receiver of this frame is.
    pub fn distance(frame: u8) -> usize {
        (1 + usize::from(frame % WIDTH)) * BASE.pow(u32::from(frame / WIDTH))
    }

    /// One bit for each frame.
    fn all(self) -> u64 {
        (1 << self.frames) - 1
    }
}

/// One process's part in one barrier.
#[derive(Clone, Copy, Debug, Default)]
pub struct Barrier {
    /// Frames that are in.
    come: u64,
    /// Frames that were sent: the first ones.
    sent: u8,
}

impl Barrier {
    /// A frame has come. False: there is none with this number.
    pub fn take(&mut self, shape: Shape, frame: u8) -> bool {
        if frame >= shape.frames {
            return false;
        }
        self.come |= 1 << frame;
        true
    }

    /// The frames that are to be sent now.
    pub fn advance(&mut self, shape: Shape) -> Range<u8> {
        let whole = self.come.trailing_ones() as u8 / WIDTH;
        let end = ((whole + 1) * WIDTH).min(shape.frames).max(self.sent);
        let first = core::mem::replace(&mut self.sent, end);
        first..end
    }

    /// All frames are in.
    pub fn is_complete(self, shape: Shape) -> bool {
        self.come == shape.all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeSet, VecDeque};

    #[test]
    fn frames_are_few_and_fit_their_number() {
        let frames = |n| Shape::of(n).frames;
        let table = [(1, 0), (2, 1), (4, 3), (8, 7), (9, 8), (16, 8), (48, 12), (64, 14), (65, 15)];
        table.iter().for_each(|(n, wanted)| assert_eq!(frames(*n), *wanted, "{n}"));
        assert!(frames(1 << 24) < 64, "as many as a job can have");
        assert_eq!([0, 6, 7, 8, 14].map(Shape::distance), [1, 7, 8, 16, 64]);
    }

    /// Invariant 2, for every size, with the frames in an order that favours some processes.
    #[test]
    fn invariant_2_nobody_leaves_before_all_have_arrive() {
        for n in (1..80usize).chain([511, 512, 513, 600]) {
            let shape = Shape::of(n);
            let mut barriers = vec![Barrier::default(); n];
            let mut known: Vec<BTreeSet<usize>> = (0..n).map(|me| [me].into()).collect();
            let mut wire: VecDeque<(usize, u8, BTreeSet<usize>)> = VecDeque::new();
            for me in (0..n).rev() {
                let frames = barriers[me].advance(shape);
                wire.extend(frames.map(|f| ((me + Shape::distance(f)) % n, f, known[me].clone())));
            }
            let mut turn = 0;
            while let Some((to, frame, news)) =
                if turn % 3 == 0 { wire.pop_back() } else { wire.pop_front() }
            {
                turn += 1;
                assert!(barriers[to].take(shape, frame));
                known[to].extend(news);
                let frames = barriers[to].advance(shape);
                wire.extend(frames.map(|f| ((to + Shape::distance(f)) % n, f, known[to].clone())));
                if barriers[to].is_complete(shape) {
                    assert_eq!(known[to].len(), n, "{to} of {n}");
                }
            }
            assert!(barriers.iter().all(|barrier| barrier.is_complete(shape)), "{n}");
            assert!(!barriers[0].take(shape, shape.frames), "a frame too many");
        }
    }
}
