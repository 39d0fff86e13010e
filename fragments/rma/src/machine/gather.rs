//! The short way of a put or accumulate that travels: it is appended to a message of others to the
//! same target, which nothing has sent yet. The bytes are those of the long way (`operations`), and
//! so is what is counted: which way was gone cannot be told, by the target neither.

use super::Rma;
use super::quick::Quick;
use crate::batch::append;
use crate::ids::{CommRank, ContextId};
use crate::layout::Layout;
use crate::memory::Part;
use crate::primitive::Primitive;
use crate::wire::{Action, Epoch, Operation, Place};

/// More is worth the long way.
const GATHERED_BYTES_MAX: usize = 1024;
/// An operation of elements in a row has no more bytes than its data and these.
const HEAD_BYTES_MAX: usize = 128;

impl Rma {
    /// An access to elements in a row whose answer is not awaited. `of`: window, target,
    /// displacement. False: nothing has changed, and nothing was counted. True: the caller makes
    /// the tick known ([`crate::direct::TargetArea::set_tick`]).
    pub fn quick_gather(
        &mut self,
        of: (ContextId, CommRank, i64),
        primitive: Primitive,
        quick: &Quick<'_>,
    ) -> bool {
        self.is_quiet() && quick.is_sound(primitive) && self.gather(of, primitive, quick).is_some()
    }

    fn gather(
        &mut self,
        (id, target, displacement): (ContextId, CommRank, i64),
        primitive: Primitive,
        quick: &Quick<'_>,
    ) -> Option<()> {
        let (op, data) = match quick {
            Quick::Put(data) => (None, *data),
            Quick::Combine { op, data, found: None } => (Some(*op), *data),
            _ => return None,
        };
        let full = self.batch_bytes_max();
        let found = self.windows.get_mut(&id)?;
        let travels = !found.neighbours.get(target.0 as usize).is_some_and(Option::is_some)
            && target != found.setup.me;
        let Ok((epoch, false)) = found.origin.epoch(target, found.target.fences) else {
            return None;
        };
        let layout =
            Layout::Contiguous { primitive, count: (data.len() / primitive.size()) as u64 };
        found.setup.check_range(target, displacement, &layout).ok()?;
        let towards = found.origin.towards.get_mut(&target)?;
        // The message that it would begin, or fill, is to be sent by others.
        let has_room = !towards.batch.is_empty()
            && towards.batch.len() + data.len() + HEAD_BYTES_MAX < full
            && data.len() <= GATHERED_BYTES_MAX.min(self.limits.part_bytes_max as usize);
        if !travels || !has_room {
            return None;
        }
        let part = Part { first: 0, bytes: data.len() as u64 };
        let place = Place { displacement, layout, part };
        let action = match op {
            None => Action::Put { place, data },
            Some(op) => Action::Accumulate { op, place, data },
        };
        append(&Operation { epoch, number: 0, action }, &mut towards.batch).ok()?;
        towards.is_unconfirmed = true;
        if let Epoch::Fence(_) = epoch {
            towards.of_fence += 1;
        }
        self.next_operation += 1;
        self.action_on_window();
        Some(())
    }
}
