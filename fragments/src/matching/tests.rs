//! Matching against the plainest model of it: two lists that are searched from the front.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Post(Key),
    Arrive(Key),
    CancelOldest,
    Forget(u32),
    Force(bool),
    Oldest(Key),
    PutBack,
}

fn matches(pattern: &Key, message: &Key) -> bool {
    pattern.takes(message)
}

fn key(wild: bool) -> impl Strategy<Value = Key> {
    let source = prop_oneof![4 => 0u32..3, 1 => Just(ANY_SOURCE)];
    let tag = prop_oneof![4 => -3i32..4, 1 => Just(ANY_TAG)];
    (0u32..2, source, tag).prop_map(move |(context, source, tag)| Key {
        context,
        source: if !wild && source == ANY_SOURCE { 1 } else { source },
        tag: if !wild && tag == ANY_TAG { 2 } else { tag },
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => key(true).prop_map(Step::Post),
        8 => key(false).prop_map(Step::Arrive),
        1 => Just(Step::CancelOldest),
        1 => (0u32..2).prop_map(Step::Forget),
        1 => any::<bool>().prop_map(Step::Force),
        1 => key(false).prop_map(Step::Oldest),
        1 => Just(Step::PutBack),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// MPI-3.1 §3.5: the oldest matching receive, the oldest matching message.
    #[test]
    fn matching_agrees_with_two_lists(steps in prop::collection::vec(step(), 0..200)) {
        let (mut posted, mut unexpected) = (Posted::default(), Unexpected::default());
        let mut receives: Vec<(u32, Key)> = Vec::new();
        let mut messages: Vec<(u32, Key)> = Vec::new();
        for (slot, step) in (0u32..).zip(steps) {
            match step {
                Step::Post(pattern) => {
                    let want = messages.iter().position(|(_, m)| matches(&pattern, m));
                    let got = unexpected.find(pattern);
                    prop_assert_eq!(got, want.map(|at| messages[at].0));
                    if let Some(at) = want {
                        unexpected.remove(messages.remove(at).0);
                    } else {
                        posted.insert(slot, pattern);
                        receives.push((slot, pattern));
                    }
                }
                Step::Arrive(message) => {
                    let want = receives.iter().position(|(_, p)| matches(p, &message));
                    let got = if posted.is_plain() {
                        posted.take_plain(message)
                    } else {
                        posted.take(message)
                    };
                    prop_assert_eq!(got, want.map(|at| receives[at].0));
                    if let Some(at) = want {
                        receives.remove(at);
                    } else {
                        unexpected.insert(slot, message);
                        messages.push((slot, message));
                    }
                }
                Step::CancelOldest if !receives.is_empty() => {
                    let (slot, pattern) = receives.remove(0);
                    prop_assert!(posted.remove(slot, &pattern));
                    prop_assert!(!posted.remove(slot, &pattern));
                }
                Step::CancelOldest => {}
                Step::Force(forced) => posted.force(forced),
                Step::Oldest(message) => {
                    let want = receives.iter().find(|(_, p)| matches(p, &message));
                    let want = want.map(|(slot, _)| posted.order(*slot));
                    prop_assert_eq!(posted.oldest(message), want);
                }
                Step::PutBack => {
                    if let Some((slot, pattern)) = receives.last() {
                        let order = posted.order(*slot);
                        prop_assert!(posted.remove(*slot, pattern));
                        posted.insert_at(*slot, *pattern, order);
                    }
                }
                Step::Forget(context) => {
                    let want: Vec<u32> = messages.iter().filter(|(_, m)| m.context == context)
                        .map(|(slot, _)| *slot).collect();
                    prop_assert_eq!(unexpected.of_context(context), want.clone());
                    want.iter().for_each(|&slot| unexpected.remove(slot));
                    messages.retain(|(_, m)| m.context != context);
                }
            }
            posted.check();
            unexpected.check();
            prop_assert_eq!(posted.len(), receives.len());
            prop_assert_eq!(unexpected.len(), messages.len());
        }
    }
}

#[test]
fn ten_thousand_receives_do_not_lengthen_the_search() {
    let mut posted = Posted::default();
    let key = |tag| Key { context: 0, source: 1, tag };
    (0..10_000).for_each(|tag| posted.insert(tag as u32, key(tag)));
    for tag in (0..10_000).rev() {
        assert_eq!(posted.take(key(tag)), Some(tag as u32));
    }
    assert!(posted.is_empty());
}
