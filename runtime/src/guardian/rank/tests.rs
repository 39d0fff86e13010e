//! What is kept, repeated and dropped of a rank.

use super::*;
use rustbtl_coordination::verbs_drain::{CONNECTED, MADE};
use rustbtl_fragments::ids::SetId;

const CHECKPOINT: CheckpointId = CheckpointId(4);

fn rank() -> (GuardedRank, std::os::unix::net::UnixStream) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    (GuardedRank::new(1, Link::new(ours).unwrap(), None, None), theirs)
}

fn frozen() -> FromRank {
    FromRank::Frozen {
        checkpoint: CHECKPOINT,
        snapshot: SnapshotMemory::InPause,
        description: vec![1],
        coordination_ns: 0,
        pause_ns: 0,
    }
}

#[test]
fn a_snapshot_that_is_faster_than_its_order_waits_for_it() {
    let (mut rank, _theirs) = rank();
    assert_eq!(rank.frozen(frozen(), PeerId(2)), None);
    assert!(rank.next_image().is_none());
    let sent = rank.prepare(CHECKPOINT, "/x".into(), PeerId(2));
    assert!(matches!(sent, Some(FromNode::Frozen { checkpoint: CHECKPOINT, .. })));
    assert_eq!(rank.next_image().unwrap().directory, PathBuf::from("/x"));
    assert_eq!(rank.prepare(CheckpointId(5), "/y".into(), PeerId(2)), None);
}

#[test]
fn an_image_that_is_being_written_when_the_program_ends_is_removed() {
    let (mut rank, _theirs) = rank();
    let folder = std::env::temp_dir().join(format!("rbt-rank-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    rank.prepare(CHECKPOINT, folder.clone(), PeerId(2));
    assert!(rank.frozen(frozen(), PeerId(2)).is_some());
    for file in ["rank-2.img.tmp", "rank-2.img.tmp.tmp", "rank-2.out"] {
        std::fs::write(folder.join(file), "").unwrap();
    }
    rank.drop_snapshots(PeerId(2));
    assert!(!folder.exists());
}

#[test]
fn a_snapshot_of_a_checkpoint_that_is_aborted_before_its_order_is_released() {
    let (mut rank, _theirs) = rank();
    assert_eq!(rank.frozen(frozen(), PeerId(2)), None);
    rank.handle_order(ToRank::Abort { checkpoint: CHECKPOINT, reason: String::new() });
    assert!(rank.early_snapshot.is_none());
    assert_eq!(rank.prepare(CHECKPOINT, "/x".into(), PeerId(2)), None);
    // One that comes after the end of its checkpoint is refused.
    let sent = rank.frozen(frozen(), PeerId(2));
    assert!(matches!(sent, Some(FromNode::StoreFailed { checkpoint: CHECKPOINT, .. })));
    assert!(rank.next_image().is_none());
}

fn settings() -> Settings {
    Settings {
        failure_timeout: crate::settings::FailureTimeout::read(None),
        job: String::new(),
        secret: Default::default(),
        coordinator: Vec::new(),
        restore: None,
        incarnation: Incarnation(0),
        alone: false,
        folder: None,
        local: None,
        printed: None,
        prints: false,
        rank: PeerId(2),
        size: 4,
        tmp: PathBuf::new(),
    }
}

#[test]
fn what_a_rank_gives_after_a_restart_is_kept_until_all_run() {
    type End = fn(&mut GuardedRank);
    let ends: [(&str, End); 4] = [
        ("a checkpoint", |rank| {
            rank.handle_order(ToRank::StopOutgoing { checkpoint: CHECKPOINT });
        }),
        ("the end of the job", |rank| rank.handle_order(ToRank::MayFinish {})),
        ("the end of protection", GuardedRank::disable_protection),
        ("a restart", |rank| {
            let (ours, _) = std::os::unix::net::UnixStream::pair().unwrap();
            rank.restarted(1, Link::new(ours).unwrap(), None);
        }),
    ];
    for (what, end) in ends {
        let (mut rank, _theirs) = rank();
        let part = |checkpoint, step| FromRank::VerbsPart {
            checkpoint: CheckpointId(checkpoint),
            step,
            part: vec![7],
        };
        for message in [part(2, MADE), part(3, MADE), part(3, CONNECTED), part(4, 0)] {
            rank.handle(message, &settings(), false);
        }
        rank.handle_order(ToRank::Abort { checkpoint: CHECKPOINT, reason: String::new() });
        let kept = [part(3, MADE), part(3, CONNECTED)];
        assert_eq!(rank.messages_to_repeat(), kept, "{what}");
        end(&mut rank);
        assert_eq!(rank.messages_to_repeat(), [], "{what}");
    }
}

#[test]
fn who_asks_for_a_name_without_a_coordinator_does_not_wait() {
    let (mut rank, theirs) = rank();
    let mut program = Link::new(theirs).unwrap();
    let ask = || FromRank::FindVerbsName { number: 3, name: vec![1], generation: 0 };
    assert!(rank.handle(ask(), &settings(), false).is_some());
    assert_eq!(rank.handle(ask(), &settings(), true), None);
    program.read().unwrap();
    let nobody = ToRank::VerbsNameFound { number: 3, value: NOBODY.to_vec() };
    assert_eq!(program.next_message().unwrap(), Some(nobody));
    assert_eq!(program.next_message::<ToRank>().unwrap(), None);
}

/// The coordinator asks again for what is lost on the way.
#[test]
fn fences_and_piggybacked_determinants_are_forwarded_and_not_repeated() {
    let settings = settings();
    let (mut rank, theirs) = rank();
    let mut program = Link::new(theirs).unwrap();
    let (set, before, incarnation) = (SetId(1), Incarnation(1), Incarnation(0));
    rank.handle_order(ToRank::Fence { set, before });
    program.read().unwrap();
    assert_eq!(program.next_message().unwrap(), Some(ToRank::Fence { set, before }));
    let piggybacked = FromRank::Piggybacked { incarnation, at: 3, bytes: vec![7] };
    let fenced = FromRank::Fenced { set, before, incarnation, recorded: 4 };
    let sent = [piggybacked, fenced];
    sent.iter().for_each(|message| program.send(message).unwrap());
    let of = |message| FromNode::Rank { rank: PeerId(2), message };
    assert_eq!(rank.receive(&settings, false), sent.map(of));
    assert_eq!(rank.messages_to_repeat(), []);
}
