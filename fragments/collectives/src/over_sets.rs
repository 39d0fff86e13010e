//! A call of a communicator whose members are of several sets: inside each set, between those that
//! stand for the sets, inside each set again.

use crate::copies;
use crate::member::{Host, Member};
use crate::plan::Kind;
use crate::sets::{Move, Moves, Side, Span, Way, other_half};
use crate::shape::{At, Place, Shape};
use core::borrow::Borrow;

/// What comes from other sets, and what a member does with its data beside the steps of its set.
pub trait SetsHost: Host {
    /// From now on, inside the set, data is read and goes where [`Shape::inside`] says: before, or
    /// after others were asked.
    fn enter(&mut self, after: bool);

    /// Nothing, where both are the same; else they do not overlap.
    fn copy(&mut self, from: At, into: At, bytes: u64);

    /// Copy a rank's block to where the result has it.
    fn give(&mut self, from: At, rank: u32, bytes: u64);

    /// `into = left op right`; `right` may be `into`.
    fn fold(&mut self, left: At, right: At, into: At, bytes: u64);

    /// Send to who stands for this set. It must not be changed before [`Self::are_sent`].
    fn send(&mut self, from: At, bytes: u64, set: u32);

    /// Has everything that was sent left?
    fn are_sent(&mut self) -> bool;

    /// Is what this set sends here, and in its place? The first question asks for it; when the
    /// answer is true, the next one is for the next message.
    fn is_here(&mut self, into: At, bytes: u64, set: u32) -> bool;
}

/// A call as a member takes part in it.
#[derive(Clone, Debug)]
pub struct Crossing<S: Borrow<Shape>> {
    shape: S,
    /// Of who stands for its set.
    moves: Option<Moves>,
    stage: Stage,
    current: Option<Move>,
    /// What is awaited has come.
    came: bool,
    /// Of a scan: something is folded of those before the own set.
    has_before: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Start,
    Before,
    Collected,
    Between,
    Settle,
    After,
    End,
    Over,
}

impl<S: Borrow<Shape>> Crossing<S> {
    /// It begins.
    pub fn new(shape: S) -> Self {
        let of: &Shape = shape.borrow();
        let moves = of.stands_for_set().then(|| Moves::new(of.way, of.sets.count(), of.set));
        let (stage, has_before) = (Stage::Start, false);
        Self { shape, moves, stage, current: None, came: false, has_before }
    }

    /// The call.
    pub fn shape(&self) -> &Shape {
        self.shape.borrow()
    }

    /// True: the call is over. False: somebody is awaited; call it again.
    pub fn advance<H: SetsHost>(&mut self, member: &mut Member, host: &mut H) -> bool {
        let stands = self.moves.is_some();
        loop {
            self.stage = match self.stage {
                Stage::Start => {
                    copies::start(self.shape(), host);
                    host.enter(false);
                    Stage::Before
                }
                Stage::Before => match &self.shape().before {
                    Some(inside) if !member.advance(&inside.plan, host) => return false,
                    _ => Stage::Collected,
                },
                Stage::Collected => {
                    if stands {
                        copies::collected(self.shape(), host);
                    }
                    Stage::Between
                }
                Stage::Between => match self.current.or_else(|| self.moves.as_mut()?.next()) {
                    None => Stage::Settle,
                    Some(next) => {
                        self.current = Some(next);
                        if !self.make(next, host) {
                            return false;
                        }
                        self.current = None;
                        Stage::Between
                    }
                },
                Stage::Settle => {
                    if stands {
                        // K9
                        if copies::changes_sent(self.shape()) && !host.are_sent() {
                            return false;
                        }
                        copies::settle(self.shape(), host);
                    }
                    // Who spreads it inside may do that before it has left: it is only read.
                    host.enter(true);
                    Stage::After
                }
                Stage::After => match &self.shape().after {
                    Some(inside) if !member.advance(&inside.plan, host) => return false,
                    _ => Stage::End,
                },
                Stage::End => {
                    copies::end(self.shape(), host);
                    Stage::Over
                }
                Stage::Over => return !stands || host.are_sent(),
            };
        }
    }

    fn make<H: SetsHost>(&mut self, next: Move, host: &mut H) -> bool {
        match next {
            Move::Send(set, span) => {
                let (from, bytes) = self.sent(span);
                host.send(from, bytes, set);
                true
            }
            Move::Take(set, span, side) => {
                let (into, bytes) = self.taken(span);
                // What nobody folds goes where it belongs.
                let folds = side != Side::Instead && self.shape().kind.folds();
                let asked = if folds { At(Place::Incoming, 0) } else { into };
                if !self.came {
                    self.came = host.is_here(asked, bytes, set);
                }
                // K9. Both are asked: they are awaited together.
                if !((!folds || host.are_sent()) & self.came) {
                    return false;
                }
                self.came = false;
                if folds {
                    self.fold(span, side, host);
                }
                true
            }
        }
    }

    /// What lies where of these sets, or for them, in what is collected.
    fn range(&self, place: Place, span @ (from, to): Span) -> (At, u64) {
        let shape = self.shape();
        let part = |(from, to): Span, copies: u64| {
            let start = shape.start(from);
            (At(place, start * copies), (shape.start(to) - start) * copies)
        };
        match shape.kind {
            Kind::Allgather | Kind::Allgatherv | Kind::Gather | Kind::Scatter => {
                part((from, to), 1)
            }
            Kind::Alltoall => part((from, to), u64::from(shape.size())),
            Kind::ReduceScatterBlock | Kind::ReduceScatter if shape.ordered() => {
                // At last each half needs what is for it.
                let rest = other_half(shape.sets.count(), span);
                part(rest.unwrap_or((0, shape.sets.count())), 1)
            }
            _ => (At(place, 0), shape.total),
        }
    }

    fn sent(&self, span: Span) -> (At, u64) {
        self.range(self.shape().place(), span)
    }

    fn taken(&self, span: Span) -> (At, u64) {
        let is_row = self.shape().kind == Kind::Alltoall;
        self.range(if is_row { Place::Other } else { self.shape().place() }, span)
    }

    /// Fold what has come of these sets.
    fn fold<H: SetsHost>(&mut self, span: Span, side: Side, host: &mut H) {
        let (place, bytes) = self.taken(span);
        let (came, before) = (At(Place::Incoming, 0), At(Place::Other, 0));
        if side == Side::Right {
            host.fold(place, came, came, bytes);
            return host.copy(came, place, bytes);
        }
        let mut goes_on = true;
        if self.shape().way == Way::After {
            match self.has_before {
                true => host.fold(came, before, before, bytes),
                false => host.copy(came, before, bytes),
            }
            self.has_before = true;
            // Nobody is after the right half.
            goes_on = other_half(self.shape().sets.count(), span).is_none();
        }
        if goes_on {
            host.fold(came, place, place, bytes);
        }
    }
}
