//! Owns HTTP/2 and gRPC for toys: frames, a raw connection, a compliant client and its load.

pub(crate) mod frame;

pub(crate) mod grpc;

mod raw;

mod seen;

mod call;

mod client;

mod hold;

mod load;

mod summary;

pub(crate) use self::call::Call;
pub(crate) use self::client::H2Client;
pub(crate) use self::frame::{Frame, Kind, code, setting};
pub(crate) use self::hold::Held;
pub(crate) use self::load::{H2Load, H2Plan};
pub(crate) use self::raw::{RawH2, request};
pub(crate) use self::seen::{Answer, Control, Seen};
pub(crate) use self::summary::{H2Ending, H2Record, H2Summary, Loss};

/// What a client says first, RFC 9113 §3.4.
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The last-stream-id of a GOAWAY that says no more than "be prepared to go".
pub(crate) const NO_LAST: u32 = (1 << 31) - 1;
