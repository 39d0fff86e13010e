//! Replies of targets to this process's operations.

use super::{Fault, Lane, Output, Rma};
use crate::error::RmaError;
use crate::ids::{CommRank, ContextId};
use crate::origin::{Awaited, wire_number};
use crate::wire::{Answer, Reply};

impl Rma {
    /// A message of the lane of replies. The engine hands in each once, in order. In a replay it
    /// may come before the program has asked for it again: then it is kept.
    ///
    /// # Errors
    /// A broken protocol; the machine is as before.
    pub fn on_reply(
        &mut self,
        window: ContextId,
        from: CommRank,
        message: &[u8],
    ) -> Result<(), Fault> {
        Reply::decode(message)?;
        if self.replay.is_some() {
            let Some(found) = self.windows.get_mut(&window) else {
                let early = self.early.entry(window).or_default();
                early.push((from, Lane::Replies, message.to_vec()));
                return Ok(());
            };
            if !found.setup.knows(from) {
                return Err(Fault::UnknownRank);
            }
            let towards = found.origin.towards(from);
            if towards.awaited.is_empty() {
                towards.early.push_back(message.to_vec());
                return Ok(());
            }
        }
        self.take_reply(window, from, message)
    }

    /// Replies that came early, as far as they are awaited by now.
    pub(super) fn take_early_replies(
        &mut self,
        window: ContextId,
        from: CommRank,
    ) -> Result<(), Fault> {
        while let Some(found) = self.windows.get_mut(&window) {
            let Some(towards) = found.origin.towards.get_mut(&from) else { break };
            if towards.awaited.is_empty() {
                break;
            }
            let Some(message) = towards.early.pop_front() else { break };
            self.take_reply(window, from, &message)?;
        }
        Ok(())
    }

    fn take_reply(
        &mut self,
        window: ContextId,
        from: CommRank,
        message: &[u8],
    ) -> Result<(), Fault> {
        let reply = Reply::decode(message)?;
        let found = self.windows.get_mut(&window).ok_or(Fault::UnexpectedReply)?;
        let towards = found.origin.towards.get_mut(&from).ok_or(Fault::UnexpectedReply)?;
        let awaited = *towards.awaited.front().ok_or(Fault::UnexpectedReply)?;
        let fits = matches!(
            (awaited, reply.answer),
            (Awaited::Data { .. }, Answer::Data(_))
                | (Awaited::Done, Answer::Done)
                | (Awaited::Granted, Answer::Granted)
        );
        if !fits || reply.number != wire_number(towards.came + 1) {
            return Err(Fault::UnexpectedReply);
        }
        towards.awaited.pop_front();
        towards.came += 1;
        let error: Option<RmaError> = reply.error;
        towards.error = towards.error.or(error);
        if let (Awaited::Data { operation, first, is_last }, Answer::Data(data)) =
            (awaited, reply.answer)
        {
            if error.is_none() {
                let data = data.to_vec();
                self.outputs.push_back(Output::Data { operation, first, data });
            }
            if is_last {
                self.outputs.push_back(Output::Completed { operation, error });
            }
        }
        Ok(())
    }
}
