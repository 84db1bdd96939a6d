//! What a response's pieces are, so that it can be ended between two of them.

use bytes::Bytes;
use http_body::Frame;

use crate::proxy::boundary::Boundary;
use crate::proxy::events::Events;
use crate::proxy::grpc::{self, Messages};

/// What the pieces of a response are.
#[derive(Debug)]
pub(super) enum Follows {
    Nothing,
    Call(Call),
    Events(Events),
    /// One that began when its like had been asked to end already: the first event is the last.
    OneEvent(Events),
}

/// The response of a gRPC call.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub(super) messages: Messages,
    pub(super) status: Option<usize>,
    /// Cut off behind the last whole message: the status comes next, whatever the app has sent.
    pub(super) cut_short: bool,
}

// === impl Follows ===

impl Follows {
    /// Keeps messages, status and events in view; what was asked to end gets nothing behind the end of one of them.
    pub(super) fn follow(&mut self, frame: Frame<Bytes>, ends: bool) -> Frame<Bytes> {
        let call = match self {
            Self::Nothing => return frame,
            Self::Events(events) => return follow_events(events, frame, ends),
            Self::OneEvent(events) => return follow_events(events, frame, true),
            Self::Call(call) => call,
        };
        if let Some(trailers) = frame.trailers_ref() {
            call.status = grpc::status_in(trailers);
            return frame;
        }
        match frame.into_data() {
            Ok(mut data) if ends => {
                if let Some(end) = call.messages.advance_to_boundary(&data) {
                    data.truncate(end);
                    call.cut_short = true;
                }
                Frame::data(data)
            }
            Ok(data) => {
                call.messages.advance(&data);
                Frame::data(data)
            }
            Err(frame) => frame,
        }
    }

    /// The one event that it was allowed has passed.
    pub(super) fn has_had_its_event(&self) -> bool {
        matches!(self, Self::OneEvent(events) if events.any() && events.at_boundary())
    }
}

/// A stream that has to end, or should have ended before it began, does so behind the next event.
fn follow_events(events: &mut Events, frame: Frame<Bytes>, ends: bool) -> Frame<Bytes> {
    match frame.into_data() {
        Ok(mut data) => {
            let mut seen = 0;
            while seen < data.len() {
                seen += events.step(&data[seen..]);
                if ends && events.any() && events.at_boundary() {
                    data.truncate(seen);
                }
            }
            Frame::data(data)
        }
        Err(frame) => frame,
    }
}
