//! A control message that decodes encodes to the same bytes; a stream of garbage is survived.
#![no_main]

use rustbtl_coordination::control::{
    FrameBuffer, FromClock, FromNode, FromRank, Message, Reply, Request, ToClock, ToNode, ToRank,
};

fn same<M: Message>(frame: &[u8]) {
    if let Ok(message) = M::decode(frame) {
        assert_eq!(message.encode().as_deref(), Ok(frame));
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut buffer = FrameBuffer::new();
    buffer.add(data);
    while let Ok(Some(frame)) = buffer.next_frame() {
        same::<FromRank>(frame);
        same::<ToRank>(frame);
        same::<FromNode>(frame);
        same::<ToNode>(frame);
        same::<Request>(frame);
        same::<Reply>(frame);
        same::<FromClock>(frame);
        same::<ToClock>(frame);
    }
});
