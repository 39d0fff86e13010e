//! What the engine holds back while a checkpoint is taken, and in which order everything leaves.

use rustbtl_fragments::checkpoint_frame::{CheckpointFrame, CheckpointStep};
use rustbtl_fragments::engine::*;
use rustbtl_fragments::ids::*;
use rustbtl_fragments::payload_digest::PayloadDigest;
use rustbtl_fragments::wire::{FrameType, Header};
use rustbtl_sim::decoder::Deaf;

/// Process 0; 1 is in its set, 2 and 3 are another.
struct Zero {
    engine: Engine<Deaf>,
    host: Deaf,
    comm: CommId,
}

const TOKEN: CheckpointFrame =
    CheckpointFrame { checkpoint: 4, what: CheckpointStep::Token { global: false } };

impl Zero {
    fn new() -> Self {
        let mut engine = Engine::new(PeerId(0), SetId(0), Incarnation(0));
        let comm = engine.add_comm(ContextId(0), CommRank(0), 4, 0);
        Self { engine, host: Deaf::default(), comm }
    }

    fn send(&mut self, to: u32, bytes: usize, mode: Mode) -> SendOutcome {
        let (buffer, to) = (vec![9; bytes], CommRank(to));
        let Self { engine, host, comm } = self;
        let sent = engine.send(host, *comm, to, bytes as i32, mode, buffer, bytes as u64, 5);
        self.engine.check();
        sent.unwrap()
    }

    fn gets(&mut self, from: u32, frame: &[u8]) {
        self.engine.on_frame(&mut self.host, PeerId(from), frame).unwrap();
        self.engine.check();
    }

    /// An announcement from a peer whose payload is all inline and that waits for news.
    fn announce(&mut self, from: u32, sequence: u64, bytes: u64) {
        let header = Header {
            length: 48,
            kind: FrameType::Announce,
            flags: 2,
            context: 0,
            source: from,
            tag: 3,
            from: Incarnation(0),
            to: Incarnation(0),
            sequence,
            digest: PayloadDigest::NONE,
        };
        self.gets(from, &header.encode_announce(bytes, SendId(77 + sequence)));
    }

    fn receive(&mut self, from: u32) {
        let (source, tag) = (Source::Rank(CommRank(from)), TagMatch::Is(3));
        self.engine.receive(&mut self.host, self.comm, source, tag, vec![0; 8], 1);
        self.engine.check();
    }

    fn flush(&mut self) {
        self.engine.flush(&mut self.host);
        self.engine.check();
    }

    /// What has left: kinds, and tags of messages.
    fn left(&mut self) -> String {
        let frames = core::mem::take(&mut self.host.frames);
        let names = frames.iter().map(|frame| match Header::decode(frame).unwrap() {
            Header { kind: FrameType::Eager, tag, .. } => format!("eager {tag}"),
            Header { kind: FrameType::Announce, tag, .. } => format!("announce {tag}"),
            header => format!("{:?}", header.kind).to_lowercase(),
        });
        names.collect::<Vec<_>>().join(", ")
    }
}

#[test]
fn a_token_follows_what_has_left_and_passes_what_waits_for_room() {
    let mut zero = Zero::new();
    assert_eq!(zero.send(1, 1, Mode::Standard), SendOutcome::Complete);
    zero.host.full = Some(0);
    zero.send(1, 2, Mode::Standard);
    zero.send(1, 3, Mode::Synchronous);
    zero.engine.hold(Side::Internal);
    zero.engine.send_checkpoint_frame(&mut zero.host, PeerId(1), TOKEN);
    zero.host.full = None;
    zero.flush();
    assert_eq!(zero.left(), "eager 1, checkpoint", "what waits for room is part of the checkpoint");
    assert!(matches!(zero.send(1, 4, Mode::Standard), SendOutcome::Pending(_)));
    zero.flush();
    assert_eq!((zero.left().as_str(), zero.engine.held_frames()), ("", 3));
    assert!(zero.engine.is_rendezvous_quiescent() && !zero.engine.is_flushed());
    zero.engine.release(&mut zero.host, Side::Internal);
    zero.engine.check();
    assert_eq!(zero.left(), "eager 2, announce 3, eager 4", "in their order");
    assert_eq!(zero.send(1, 5, Mode::Standard), SendOutcome::Complete);
    assert!(zero.engine.is_flushed());
}

#[test]
fn a_half_taken_frame_is_finished_before_the_token() {
    let mut zero = Zero::new();
    zero.host.full = Some(7);
    zero.send(1, 2, Mode::Standard);
    zero.send(1, 3, Mode::Standard);
    zero.engine.hold(Side::Internal);
    zero.engine.send_checkpoint_frame(&mut zero.host, PeerId(1), TOKEN);
    assert!(!zero.engine.is_rendezvous_quiescent(), "a frame is half taken");
    zero.host.full = None;
    zero.flush();
    assert_eq!(zero.left(), "eager 2, checkpoint");
    assert_eq!(zero.engine.held_frames(), 1);
}

#[test]
fn what_serves_matched_messages_goes_on_inside_the_set() {
    let mut zero = Zero::new();
    zero.announce(1, 0, 8);
    zero.announce(1, 1, 0);
    zero.engine.hold(Side::Internal);
    assert!(zero.engine.is_rendezvous_quiescent(), "nothing is matched");
    zero.receive(1);
    zero.flush();
    assert_eq!(zero.left(), "grant");
    assert!(!zero.engine.is_rendezvous_quiescent());
    let mut data = Header::control(FrameType::Data, Incarnation(0), Incarnation(0), 1 << 32, 0);
    data.length = 40;
    let frame = [data.encode().as_slice(), &[1; 8]].concat();
    zero.gets(1, &frame);
    assert!(zero.engine.is_rendezvous_quiescent());
    assert_eq!(zero.engine.take_done_recipients(), [], "a grant is followed by its payload");
    zero.receive(1);
    zero.flush();
    assert_eq!(zero.left(), "done");
    assert_eq!(zero.engine.take_done_recipients(), [PeerId(1)]);
    assert_eq!(zero.engine.take_done_recipients(), [], "once");
}

#[test]
fn nothing_but_payloads_leaves_the_set_while_a_global_checkpoint_is_taken() {
    let mut zero = Zero::new();
    zero.announce(2, 0, 0);
    zero.announce(2, 1, 8);
    zero.engine.hold(Side::Outgoing);
    assert_eq!(zero.send(2, 1, Mode::Standard), SendOutcome::Complete, "it is in the log");
    assert_eq!(zero.send(3, 1, Mode::Standard), SendOutcome::Complete, "to one it never talked to");
    assert!(matches!(zero.send(3, 6, Mode::Synchronous), SendOutcome::Pending(_)));
    assert_eq!(zero.send(1, 2, Mode::Standard), SendOutcome::Complete, "the set is not held");
    zero.receive(2);
    zero.receive(2);
    zero.flush();
    assert_eq!(zero.left(), "eager 2");
    assert!(zero.engine.is_rendezvous_quiescent(), "which is of the set alone");
    zero.engine.peer_down(&mut zero.host, PeerId(3));
    zero.engine.peer_up(&mut zero.host, PeerId(3), Incarnation(1));
    zero.engine.check();
    assert_eq!(zero.left(), "", "received vectors name matches, too");
    zero.engine.release(&mut zero.host, Side::Outgoing);
    zero.engine.check();
    assert_eq!(zero.left(), "eager 1, done, grant, resync");
}

/// A checkpoint's snapshot has the holds; a restored engine has none, and its waiting frames are of
/// the new incarnation. The old checkpoint's frames are gone.
#[test]
fn a_restored_engine_is_released() {
    let mut zero = Zero::new();
    zero.host.full = Some(0);
    zero.send(1, 2, Mode::Standard);
    zero.engine.hold(Side::Internal);
    zero.engine.hold(Side::Outgoing);
    zero.host.full = Some(9);
    zero.engine.send_checkpoint_frame(&mut zero.host, PeerId(1), TOKEN);
    zero.send(1, 3, Mode::Standard);
    let mut engine = zero.engine.clone();
    engine.restarted(Incarnation(6));
    engine.check();
    assert!(!engine.is_held(Side::Internal) && !engine.is_held(Side::Outgoing));
    zero.engine = engine;
    zero.host.full = None;
    zero.flush();
    let headers: Vec<Header> =
        zero.host.frames.iter().map(|frame| Header::decode(frame).unwrap()).collect();
    assert!(headers.iter().all(|h| (h.from, h.to) == (Incarnation(6), Incarnation(6))));
    assert_eq!(zero.left(), "eager 2, eager 3");
}

#[test]
fn frames_of_checkpoints_come_out_of_the_host_and_only_from_the_set() {
    let mut zero = Zero::new();
    let frame = TOKEN.header(Incarnation(0), Incarnation(0)).encode();
    zero.gets(1, &frame);
    assert_eq!(zero.host.checkpoint_frames, [TOKEN]);
    let refused = zero.engine.on_frame(&mut zero.host, PeerId(2), &frame);
    assert!(matches!(refused, Err(FrameError::Unexpected(_))));
    let mut strange = frame;
    strange[24] = 9;
    let refused = zero.engine.on_frame(&mut zero.host, PeerId(1), &strange);
    assert!(matches!(refused, Err(FrameError::Unexpected(_))));
    assert_eq!(zero.host.checkpoint_frames, [TOKEN]);
}
