use super::*;
use crate::lifecycle::tick::Window;

fn frame(kind: u8, flags: u8) -> [u8; 9] {
    [0, 0, 0, kind, flags, 0, 0, 0, 1]
}

fn connection() -> Http2 {
    let http2 = Http2::new();
    http2.read(crate::detect::preface::HTTP2, Tick::default());
    http2
}

#[test]
fn an_owed_ack_waits_for_the_end_of_the_frame_and_comes_once() {
    let http2 = connection();
    assert!(!http2.take_owed_ack(), "nothing is owed");
    http2.read(&[0, 0, 4, FrameHead::DATA, 0, 0, 0, 0, 1, b'a', b'b'], Tick::default());
    assert!(http2.ack_overdue());
    assert!(!http2.ack_overdue(), "decided once");
    assert!(!http2.take_owed_ack(), "in the middle of a frame");
    http2.read(b"cd", Tick::default());
    assert!(http2.take_owed_ack());
    assert!(!http2.take_owed_ack(), "once");
}

#[test]
fn an_open_header_block_is_timed_from_its_beginning() {
    let http2 = connection();
    http2.read(&frame(FrameHead::HEADERS, 0), Tick::from_millis(100));
    http2.read(&frame(9, 0), Tick::from_millis(900));
    let longest = Duration::from_secs(1);
    assert!(!http2.is_block_late(longest, Tick::from_millis(1099)));
    assert!(http2.is_block_late(longest, Tick::from_millis(1100)));
    http2.read(&frame(9, 4), Tick::from_millis(1100));
    assert!(!http2.is_block_late(longest, Tick::from_millis(9999)));
}

#[test]
fn a_storm_of_resets_is_told_from_a_busy_second() {
    let http2 = connection();
    for _ in 0..MOST_RESETS {
        http2.read(&frame(FrameHead::HEADERS, 4), Tick::default());
        http2.read(&frame(FrameHead::RST_STREAM, 0), Tick::default());
    }
    assert!(!http2.floods());
    http2.read(&frame(FrameHead::RST_STREAM, 0), Tick::default());
    assert!(http2.floods());
    http2.read(&frame(FrameHead::HEADERS, 4), Tick::from_millis(1000));
    assert!(!http2.floods(), "a new second");
}

#[test]
fn closing_in_any_order_leaves_the_others() {
    let http2 = connection();
    let streams: Vec<_> = (0..4).map(|_| http2.open(0.5, Tick::default(), None)).collect();
    for (index, left) in [(1, 3), (0, 2), (3, 1), (2, 0)] {
        assert_eq!(http2.close(&streams[index]), left == 0);
        assert_eq!(http2.streams.borrow().len(), left);
    }
}

#[test]
fn only_a_long_stream_is_asked_before_the_deadline_and_a_call_is_forced_half_a_second_later() {
    let at = Tick::from_millis;
    let window = Some(Window { start: at(10_000), end: at(12_000) });
    let snapshot =
        Snapshot { stream_close: window, event_close: window, force_at: Some(at(13_000)), ..Snapshot::starting() };
    let http2 = connection();
    let open = || http2.open(0.5, at(0), None);
    let (plain, call, events) = (open(), open(), open());
    call.long.set(Some(Long { kind: Kind::Call, since: at(0) }));
    events.long.set(Some(Long { kind: Kind::Events, since: at(0) }));
    for (now, expected) in [
        (10_999, (Ask::NOTHING, Ask::NOTHING, Ask::NOTHING)),
        (11_000, (Ask::NOTHING, Ask::CLOSE, Ask::CLOSE)),
        (11_499, (Ask::NOTHING, Ask::CLOSE, Ask::CLOSE)),
        (11_500, (Ask::NOTHING, Ask::FORCE, Ask::CLOSE)),
        (13_000, (Ask::FORCE, Ask::FORCE, Ask::FORCE)),
    ] {
        http2.sweep_streams(&snapshot, at(now));
        assert_eq!((plain.asked(), call.asked(), events.asked()), expected, "at {now}");
    }
}
