//! Owns the tests of the app's side where HTTP/2 is on either end: translation, connections, back-pressure.

pub(crate) mod script;

mod auto;

mod backpressure;

mod goaway;

mod park;

mod replay;

mod resets;

mod small_frames;

mod translate;
