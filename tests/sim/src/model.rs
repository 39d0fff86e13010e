//! What MPI says, as plainly as possible: two lists for each process (MPI-3.1 §3.5), and one book
//! for the job in which every message is entered when it is sent.

use crate::replay_model::Replay;
use crate::windows::calls::COUNT_TAG;
use rustbtl_fragments::host::DIRECT_TAGS;
use rustbtl_fragments::ids::{ContextId, ReceiveName};
use std::collections::{BTreeMap, BTreeSet};

/// Names a stream: context id (without instance), sender, receiver, lane (0 for all user tags,
/// else the tag).
pub type Stream = (u32, usize, usize, i32);

/// The lane of a tag.
pub fn lane(tag: i32) -> i32 {
    tag.min(0)
}

/// A message as its receiver sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// Its communicator.
    pub context: u32,
    /// Its stream.
    pub stream: Stream,
    /// Its number there.
    pub sequence: u64,
    /// Sender's rank in the communicator.
    pub source: u32,
    /// Tag.
    pub tag: i32,
    /// Length.
    pub bytes: u64,
    /// What its sender had observed before (0 where nothing depends on it).
    pub digest: u64,
}

/// Names content that is no function of its message's name.
pub fn content_digest(content: &[u8]) -> u64 {
    let first = 0x6A09_E667_F3BC_C908 ^ content.len() as u64;
    let mixed = content.iter().fold(first, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23)
    });
    mixed | 1
}

impl Message {
    /// Is its content its own, and not a function of its name? So it is with windows.
    pub fn has_content(&self) -> bool {
        self.tag == COUNT_TAG || DIRECT_TAGS.contains(&self.tag)
    }

    /// Are these the first bytes of its payload?
    pub fn begins_with(&self, bytes: &[u8]) -> bool {
        match self.has_content() && bytes.len() as u64 == self.bytes {
            true => content_digest(bytes) == self.digest,
            false => bytes == &self.payload()[..bytes.len()],
        }
    }

    /// The payload: a function of the message's name.
    pub fn payload(&self) -> Vec<u8> {
        let (context, from, to, lane) = self.stream;
        let name = [u64::from(context), from as u64, to as u64, lane as u64, self.sequence];
        let mut state = name.into_iter().fold(self.tag as u64 ^ self.digest, |state, word| {
            (state ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        });
        let mut out = Vec::with_capacity(self.bytes as usize + 8);
        while (out.len() as u64) < self.bytes {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            out.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
        }
        out.truncate(self.bytes as usize);
        out
    }
}

/// What a receive takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern {
    /// Context.
    pub context: u32,
    /// Rank in the communicator, or any.
    pub source: Option<u32>,
    /// Tag, or any that is not negative.
    pub tag: Option<i32>,
}

impl Pattern {
    pub(crate) fn takes(&self, message: &Message) -> bool {
        self.context == message.context
            && self.source.is_none_or(|source| source == message.source)
            && self.tag.map_or(message.tag >= 0, |tag| tag == message.tag)
    }
}

/// Matching of one process. Tokens name receives.
#[derive(Clone, Debug, Default)]
pub struct Matching {
    pub(crate) posted: Vec<(u32, Pattern)>,
    pub(crate) unexpected: Vec<Message>,
    /// Receives that were named so far.
    pub(crate) posts: BTreeMap<(u32, i32), u64>,
    pub(crate) names: BTreeMap<u32, ReceiveName>,
    /// What is known of the time after a checkpoint.
    pub(crate) replay: Option<Replay>,
    /// Matched receives that are not complete.
    pub matched: BTreeMap<u32, Message>,
    /// Claimed messages that were not received.
    pub claimed: BTreeMap<u32, Message>,
    /// Messages that have arrived, per stream.
    pub arrived: BTreeMap<Stream, u64>,
}

impl Matching {
    /// A message arrives. If a receive takes it: its token.
    pub fn arrive(&mut self, message: Message) -> Option<u32> {
        self.count_arrival(&message);
        if DIRECT_TAGS.contains(&message.tag) {
            return None;
        }
        if self.replay.is_some() {
            return self.arrive_in_replay(message);
        }
        self.arrive_free(message)
    }

    fn count_arrival(&mut self, message: &Message) {
        let count = self.arrived.entry(message.stream).or_default();
        assert_eq!(message.sequence, *count, "order, loss or duplicate: {message:?}");
        *count += 1;
    }

    /// Plain matching.
    pub(crate) fn arrive_free(&mut self, message: Message) -> Option<u32> {
        match self.find_free(&message) {
            Some(at) => {
                let (token, _) = self.posted.remove(at);
                self.matched.insert(token, message);
                Some(token)
            }
            None => {
                self.unexpected.push(message);
                None
            }
        }
    }

    /// Post a receive. The message it takes at once, if any.
    pub fn post(&mut self, token: u32, pattern: Pattern) -> Option<Message> {
        self.name(token, pattern);
        if self.replay.is_some() {
            return self.post_in_replay(token, pattern);
        }
        self.post_free(token, pattern)
    }

    pub(crate) fn post_free(&mut self, token: u32, pattern: Pattern) -> Option<Message> {
        let Some(at) = self.unexpected.iter().position(|message| pattern.takes(message)) else {
            self.posted.push((token, pattern));
            return None;
        };
        let message = self.unexpected.remove(at);
        self.matched.insert(token, message);
        Some(message)
    }

    /// The message that a receive would take.
    pub fn probe(&self, pattern: Pattern) -> Option<Message> {
        if self.replay.is_some() {
            return self.probe_in_replay(pattern);
        }
        self.unexpected.iter().find(|message| pattern.takes(message)).copied()
    }

    /// Take it out of matching.
    pub fn claim(&mut self, token: u32, pattern: Pattern) -> Option<Message> {
        let at = self.unexpected.iter().position(|message| pattern.takes(message))?;
        let message = self.unexpected.remove(at);
        self.claimed.insert(token, message);
        Some(message)
    }

    /// Receive what was claimed.
    pub fn receive_claimed(&mut self, token: u32) -> Message {
        let Some(message) = self.claimed.remove(&token) else { panic!("{token} not claimed") };
        self.matched.insert(token, message);
        message
    }

    /// Take a receive back; false if it has matched.
    pub fn cancel(&mut self, token: u32) -> bool {
        if self.is_bound(token) {
            return false;
        }
        let before = self.posted.len();
        self.posted.retain(|(posted, _)| *posted != token);
        before != self.posted.len()
    }

    /// Receives that are not complete.
    pub fn receives(&self) -> usize {
        self.posted.len() + self.matched.len()
    }

    /// Messages without a receive.
    pub fn messages(&self) -> usize {
        self.unexpected.len() + self.claimed.len() + self.kept_messages().count()
    }

    /// Every message from a sender that is here but not received.
    pub fn waiting(&self) -> impl Iterator<Item = &Message> {
        self.unexpected.iter().chain(self.claimed.values()).chain(self.kept_messages())
    }
}

/// What a sender has said of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    /// The message.
    pub message: Message,
    /// MPI_Ssend.
    pub synchronous: bool,
}

/// All messages of the job.
#[derive(Debug, Default)]
pub struct Book {
    /// Per stream, in order.
    pub sent: BTreeMap<Stream, Vec<Sent>>,
    /// Messages that have been matched at some time.
    pub matched: BTreeSet<(Stream, u64)>,
    /// How many messages of each stream its receiver has accepted, as it stands.
    pub accepted: BTreeMap<Stream, u64>,
    /// Sends that were not the same when they were executed again, and nobody had seen the first.
    pub differed: u64,
}

impl Book {
    /// A message is sent: for the first time, or again after a restart and then the same.
    pub fn send(&mut self, sent: Sent) {
        let stream = self.sent.entry(sent.message.stream).or_default();
        let at = sent.message.sequence as usize;
        assert!(at <= stream.len(), "a gap in what is sent: {sent:?}");
        match stream.get(at) {
            Some(before) if *before != sent => {
                let seen = self.accepted.get(&sent.message.stream).copied().unwrap_or(0);
                let at = at as u64;
                assert!(seen <= at, "somebody has seen {before:?}, and now it is {sent:?}");
                assert_ne!(before.message.digest, sent.message.digest, "not deterministic");
                self.differed += 1;
                stream[at as usize] = sent;
            }
            Some(_) => {}
            None => stream.push(sent),
        }
    }

    /// The message that an arriving envelope must be.
    pub fn find(&self, stream: Stream, sequence: u64) -> Message {
        let sent = self.sent.get(&stream).and_then(|stream| stream.get(sequence as usize));
        let Some(sent) = sent else { panic!("never sent: {stream:?} number {sequence}") };
        sent.message
    }

    /// The same of those that are of this instance of the context.
    pub fn find_in(&self, stream: Stream, context: ContextId, number: u64) -> Message {
        let is_of = |sent: &Sent| sent.message.context == context.0;
        let first = self.sent.get(&stream).and_then(|stream| stream.iter().position(is_of));
        let Some(first) = first else { panic!("never sent: {stream:?} in {context:?}") };
        self.find(stream, first as u64 + number)
    }

    /// A receive has taken it.
    pub fn note_match(&mut self, message: &Message) {
        self.matched.insert((message.stream, message.sequence));
    }

    /// Messages and bytes of all messages that `test` picks.
    pub fn total(&self, test: impl Fn(&Stream) -> bool) -> (u64, u64) {
        let picked = self.sent.iter().filter(|(stream, _)| test(stream));
        picked
            .flat_map(|(_, stream)| stream)
            .fold((0, 0), |(messages, bytes), sent| (messages + 1, bytes + sent.message.bytes))
    }
}
