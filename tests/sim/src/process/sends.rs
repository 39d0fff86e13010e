//! What a process sends: put into the book, then handed to the engine.

use super::*;

impl Process {
    #[allow(clippy::too_many_arguments)]
    pub(super) fn send(
        &mut self,
        shared: &mut Shared,
        comm: usize,
        to: u32,
        tag: i32,
        bytes: u64,
        synchronous: bool,
        request: Request,
    ) {
        let info = &shared.script.comms[comm];
        let Some(rank) = info.members.iter().position(|&rank| rank == self.me) else {
            panic!("not a member of {comm}")
        };
        let receiver = info.members[to as usize];
        let (context, source) = (info.context.0, rank as u32);
        self.before_action(shared, tag < 0);
        let (mut bytes, mut digest) = (bytes, 0);
        let info = &shared.script.comms[comm];
        if shared.options.determinants && tag >= 0 {
            if shared.options.records(self.me) {
                self.read_date(shared);
                self.host.drain();
            }
            digest = self.program.digest;
            bytes += digest % 3;
        }
        let stream = (info.context.number(), self.me, receiver, lane(tag));
        let next = self.program.sent.entry(stream).or_default();
        let message = Message { context, stream, sequence: *next, source, tag, bytes, digest };
        *next += 1;
        shared.book.send(SentRecord { message, synchronous });
        self.host.memory.buffers.insert(request, message.payload());
        self.program.open.insert(request, Open::Send { message, synchronous });
        if digest > 0 || shared.options.determinants && tag >= 0 {
            let wild = is_wild(&shared.options, &message);
            self.program.pending.push(Pending { request, wild });
        }
        self.post_send(shared, (comm, to), &message, synchronous, (Buffer(request), bytes));
    }

    /// A message that is in the book is sent.
    pub(crate) fn post_send(
        &mut self,
        shared: &mut Shared,
        (comm, to): (usize, u32),
        message: &Message,
        synchronous: bool,
        (buffer, bytes): (Buffer, u64),
    ) {
        let Message { stream, tag, .. } = *message;
        let (receiver, Buffer(request)) = (stream.2, buffer);
        if receiver == self.me {
            self.arrive(shared, *message);
        }
        let early = shared.options.planted == Some(Planted::SynchronousEarly);
        let mode = match synchronous && !early {
            true => Mode::Synchronous,
            false => Mode::Standard,
        };
        let comm = self.program.comms[&comm];
        let to = CommRank(to);
        if let Some(planted) = shared.options.planted.filter(|planted| planted.alters_sends()) {
            // What somebody has, so that nobody gets the other one.
            let seen = shared.book.accepted.get(&stream).copied().unwrap_or(0);
            let outgoing = !shared.options.same_set(self.me, receiver);
            let again = outgoing && message.sequence < seen && self.host.incarnation() > 0;
            self.host.alters =
                planted.alters_contents() && again && message.sequence.is_multiple_of(3);
            // Long enough to be unlike any other.
            let alone = again && !synchronous && bytes > 8;
            if planted == Planted::SendsFewer && alone && message.sequence + 1 == seen {
                return self.send_is_complete(shared, request);
            }
            // What follows the last one that somebody has is new, whatever it is.
            // Tags of nonblocking collectives have one sum together: found later.
            if planted == Planted::SendsMore && alone && tag > -64 && message.sequence + 1 < seen {
                let mode = Mode::Standard;
                match self.engine.send(&mut self.host, comm, to, tag, mode, buffer, bytes, request)
                {
                    Ok(SendOutcome::Pending(id)) => assert!(self.engine.detach_send(id)),
                    other => assert_eq!(other, Ok(SendOutcome::Complete)),
                }
            }
        }
        match self.engine.send(&mut self.host, comm, to, tag, mode, buffer, bytes, request) {
            Ok(SendOutcome::Complete) => self.send_is_complete(shared, request),
            Ok(SendOutcome::Pending(id)) => {
                if message.sequence.is_multiple_of(2) && self.engine.detach_send(id) {
                    self.send_is_complete(shared, request);
                }
            }
            Err(error) => panic!("the log refused a message: {error:?}"),
        }
        self.settle(shared);
    }
}
