//! Owns the tests of the HTTP/1 data path over real sockets: app, ebbtide and clients, without a pod.

mod stage;

mod notices;

mod closing;

mod forced;

mod upstream;

mod bad_input;

mod mutation;

mod forwarding;

mod streaming;

mod upgrade;
