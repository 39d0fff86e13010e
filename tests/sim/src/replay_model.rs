//! Matching while outcomes are forced, as lists: what the engine's `replay.rs` promises.

use crate::model::{Matching, Message, Pattern, Stream, lane};
use rustbtl_fragments::engine::ReplayDeterminants;
use rustbtl_fragments::ids::*;
use std::collections::{BTreeMap, BTreeSet};

/// A message's name.
type Name = (Stream, u64);

/// Why a posted receive takes no message that comes along.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Bound(Name),
    Inert,
    Undecided,
}

/// What is known of the time after a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    me: usize,
    matches: BTreeMap<ReceiveName, Name>,
    cancelled: BTreeSet<ReceiveName>,
    reserved: BTreeSet<Name>,
    fates: BTreeMap<u32, Fate>,
    aside: Vec<Message>,
    withheld: Vec<Message>,
    over: bool,
}

/// The name that the book and the model use.
pub fn name_of(me: usize, message: &MessageName) -> Name {
    let MessageName { from, context, lane, sequence } = *message;
    ((context, from.0 as usize, me, lane), sequence.0)
}

fn name(message: &Message) -> Name {
    (message.stream, message.sequence)
}

fn split<T>(all: &mut Vec<T>, test: impl Fn(&T) -> bool) -> Vec<T> {
    let (picked, rest) = core::mem::take(all).into_iter().partition(test);
    *all = rest;
    picked
}

impl Replay {
    fn withholds(&self, stream: &Stream) -> bool {
        self.withheld.iter().any(|message| message.stream == *stream)
    }
}

impl Matching {
    /// Name a receive that is posted now.
    pub fn name(&mut self, token: u32, pattern: Pattern) {
        let (context, lane) = (ContextId(pattern.context).number(), pattern.tag.map_or(0, lane));
        if lane < 0 && pattern.source.is_some() {
            return;
        }
        let count = self.posts.entry((context, lane)).or_default();
        *count += 1;
        self.names.insert(token, ReceiveName { context, lane, number: *count });
    }

    /// The process was restored. The messages that were withheld and are matched now.
    pub fn begin_replay(&mut self, me: usize, forced: &ReplayDeterminants) -> Vec<Message> {
        let mut replay = self.replay.take().unwrap_or_default();
        replay.me = me;
        replay.over = false;
        let matches = forced.matches.iter().map(|(receive, m)| (*receive, name_of(me, m)));
        replay.matches.extend(matches.clone());
        replay.cancelled.extend(forced.cancelled.iter().copied());
        replay.reserved.extend(matches.map(|(_, name)| name));
        replay.reserved.extend(forced.claimed.iter().map(|m| name_of(me, m)));
        let reserved = |message: &Message| replay.reserved.contains(&name(message));
        let mut aside = split(&mut self.unexpected, reserved);
        aside.extend(split(&mut replay.withheld, |m| replay.reserved.contains(&name(m))));
        replay.aside.extend(aside);
        self.replay = Some(replay);
        for (token, pattern) in self.posted.clone() {
            let fate = self.replay.as_ref().and_then(|replay| replay.fates.get(&token));
            if fate.is_none_or(|fate| *fate == Fate::Undecided) {
                self.find_fate(token, pattern);
            }
        }
        self.match_withheld()
    }

    /// What was withheld arrives as if it came now. The messages that are matched.
    fn match_withheld(&mut self) -> Vec<Message> {
        let Some(replay) = &mut self.replay else { return Vec::new() };
        let withheld = core::mem::take(&mut replay.withheld);
        withheld.into_iter().filter(|m| self.arrive_in_replay(*m).is_some()).collect()
    }

    /// The fate of a receive that is in `posted`. If its message is here: it takes it.
    fn find_fate(&mut self, token: u32, pattern: Pattern) -> Option<Message> {
        let known = self.names.get(&token).copied();
        let replay = self.replay.as_mut()?;
        replay.fates.remove(&token);
        if let Some(name) = known.and_then(|known| replay.matches.remove(&known)) {
            let at = replay.aside.iter().position(|m| (m.stream, m.sequence) == name);
            let Some(at) = at else {
                replay.fates.insert(token, Fate::Bound(name));
                return None;
            };
            let message = replay.aside.remove(at);
            replay.reserved.remove(&name);
            self.posted.retain(|(posted, _)| *posted != token);
            self.matched.insert(token, message);
            return Some(message);
        }
        if known.is_some_and(|known| replay.cancelled.remove(&known)) {
            replay.fates.insert(token, Fate::Inert);
        } else if pattern.source.is_none() && !replay.over {
            replay.fates.insert(token, Fate::Undecided);
            let mut withheld: Vec<Message> = Vec::new();
            for message in core::mem::take(&mut self.unexpected) {
                let follows = withheld.iter().any(|before| before.stream == message.stream);
                if pattern.takes(&message) || follows {
                    withheld.push(message);
                } else {
                    self.unexpected.push(message);
                }
            }
            // What was withheld before arrived later, if it is of the same stream.
            withheld.append(&mut replay.withheld);
            replay.withheld = withheld;
        }
        None
    }

    /// Post a receive.
    pub(crate) fn post_in_replay(&mut self, token: u32, pattern: Pattern) -> Option<Message> {
        self.posted.push((token, pattern));
        let found = self.find_fate(token, pattern);
        let free = self.replay.as_ref().is_some_and(|r| !r.fates.contains_key(&token));
        if found.is_none() && free {
            self.posted.pop();
            return self.post_free(token, pattern);
        }
        found
    }

    /// A message arrives.
    pub(crate) fn arrive_in_replay(&mut self, message: Message) -> Option<u32> {
        let name = name(&message);
        let replay = self.replay.as_mut()?;
        let bound = replay.fates.iter().find(|(_, fate)| **fate == Fate::Bound(name));
        if let Some(token) = bound.map(|(token, _)| *token) {
            replay.fates.remove(&token);
            replay.reserved.remove(&name);
            self.posted.retain(|(posted, _)| *posted != token);
            self.matched.insert(token, message);
            return Some(token);
        }
        if replay.reserved.contains(&name) {
            replay.aside.push(message);
            return None;
        }
        let first = self.posted.iter().find(|(token, pattern)| {
            let fate = replay.fates.get(token);
            pattern.takes(&message) && fate.is_none_or(|fate| *fate == Fate::Undecided)
        });
        let undecided = first.is_some_and(|(token, _)| replay.fates.contains_key(token));
        if undecided || replay.withholds(&message.stream) {
            replay.withheld.push(message);
            return None;
        }
        self.arrive_free(message)
    }

    /// The oldest receive that takes a message, of those that take part.
    pub(crate) fn find_free(&self, message: &Message) -> Option<usize> {
        let fated = |token| self.replay.as_ref().is_some_and(|r| r.fates.contains_key(token));
        self.posted.iter().position(|(token, p)| p.takes(message) && !fated(token))
    }

    /// Outcomes have run out. The messages that are matched now.
    pub fn end_replay(&mut self) -> Vec<Message> {
        let Some(replay) = &mut self.replay else { return Vec::new() };
        replay.over = true;
        replay.fates.retain(|_, fate| *fate != Fate::Undecided);
        self.match_withheld()
    }

    /// What a probe for a named source finds.
    pub(crate) fn probe_in_replay(&self, pattern: Pattern) -> Option<Message> {
        let aside = self.replay.iter().flat_map(|replay| &replay.aside);
        let takes = |message: &&Message| pattern.takes(message);
        let found = self.unexpected.iter().find(takes);
        aside.filter(takes).chain(found).min_by_key(|message| message.sequence).copied()
    }

    /// Take a message by its name out of matching.
    pub fn claim_named(&mut self, token: u32, claimed: &MessageName) {
        let Some(replay) = &mut self.replay else { panic!("nothing is forced") };
        let claimed = name_of(replay.me, claimed);
        let Some(at) = replay.aside.iter().position(|m| name(m) == claimed) else {
            panic!("{claimed:?} is not here")
        };
        replay.reserved.remove(&claimed);
        self.claimed.insert(token, replay.aside.remove(at));
    }

    /// May this receive be cancelled?
    pub(crate) fn is_bound(&self, token: u32) -> bool {
        let fate = self.replay.as_ref().and_then(|replay| replay.fates.get(&token));
        matches!(fate, Some(Fate::Bound(_)))
    }

    /// Messages that wait apart from the others.
    pub(crate) fn kept_messages(&self) -> impl Iterator<Item = &Message> {
        self.replay.iter().flat_map(|replay| replay.aside.iter().chain(&replay.withheld))
    }
}
