//! Label values of the metrics, as the data path names them.

macro_rules! label_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }
        impl $name {
            /// Label values in the order of the variants.
            pub const NAMES: &'static [&'static str] = &[$($text,)+];
            /// The label value.
            pub const fn name(self) -> &'static str { Self::NAMES[self as usize] }
        }
    };
}

label_enum! {
    /// How a request ended, for `ebbtide_requests_total`.
    RequestOutcome {
        /// The app agreed to an upgrade.
        Upgraded => "upgraded",
        /// The app answered 2xx.
        App2xx => "app_2xx",
        /// The app answered 3xx.
        App3xx => "app_3xx",
        /// The app answered 4xx.
        App4xx => "app_4xx",
        /// The app answered 5xx.
        App5xx => "app_5xx",
        /// 503 by ebbtide: nothing has reached the app.
        Unavailable => "unavailable",
        /// 502 by ebbtide: the app's connection broke before its answer.
        BadGateway => "bad_gateway",
        /// 504 by ebbtide at the drain deadline: sent to the app, no answer in time.
        GatewayTimeout => "gateway_timeout",
        /// 4xx or 501 by ebbtide: the request was not acceptable.
        Rejected => "rejected",
        /// The app's connection broke in the middle of the answer.
        Broken => "broken",
        /// Cut by ebbtide at the drain deadline in the middle of the answer.
        Cut => "cut",
        /// An event stream, ended by ebbtide between two events.
        Ended => "ended",
        /// The client's connection broke before the answer was written in full. That a client has hung up shows only
        /// when something is written to it.
        Abandoned => "abandoned",
        /// The client reset the stream, or went, after its connection had been told to go.
        AbandonedAfterNotice => "abandoned_after_notice",
    }
}

label_enum! {
    /// What a downstream connection spoke, for `ebbtide_connections_total`.
    Protocol {
        /// HTTP/1.0 or 1.1.
        Http1 => "http1",
        /// An HTTP/2 preface.
        Http2 => "http2",
        /// Closed without a byte.
        Silent => "silent",
        /// Bytes, on an inbound listener with `protocol: tcp`.
        Tcp => "tcp",
        /// Bytes, on an outbound listener.
        Outbound => "outbound",
    }
}

label_enum! {
    /// How clients were told to go, for `ebbtide_notices_total`.
    Notice {
        /// `Connection: close` on a response.
        ConnectionClose => "connection_close",
        /// An idle connection was closed.
        IdleClose => "idle_close",
        /// A TCP connection, or another opaque one, was closed at a quiet moment.
        TunnelClose => "tunnel_close",
        /// A Close frame on a WebSocket.
        WebsocketClose => "websocket_close",
        /// An event stream was ended between two events.
        EventsEnd => "events_end",
        /// GOAWAY on an HTTP/2 connection.
        Goaway => "goaway",
    }
}

label_enum! {
    /// What was ended by force, for `ebbtide_forced_endings_total`.
    Forced {
        /// 503: nothing had reached the app.
        RequestUnsent => "request_unsent",
        /// 504: the app had not answered.
        RequestUnanswered => "request_unanswered",
        /// A response was broken off.
        Response => "response",
        /// A gRPC call was ended between two messages, with status 14.
        GrpcStream => "grpc_stream",
        /// A gRPC call was reset inside a message that did not come to its end.
        GrpcMessage => "grpc_message",
        /// A TCP connection, or another opaque one, was cut in the middle of traffic.
        Tunnel => "tunnel",
        /// A WebSocket session was cut inside a frame, or its client did not answer the Close.
        Session => "session",
        /// A request head had not come in full: 408.
        RequestHead => "request_head",
        /// A client that did not read was dropped.
        Stalled => "stalled",
    }
}

label_enum! {
    /// What a request's client speaks, for `ebbtide_requests_total`.
    Spoken {
        /// HTTP/1.0 or 1.1.
        Http1 => "http1",
        /// HTTP/2.
        Http2 => "http2",
        /// gRPC over HTTP/2.
        Grpc => "grpc",
    }
}

label_enum! {
    /// How gRPC calls ended, for `ebbtide_grpc_calls_total`; in the order of the codes' numbers.
    GrpcCode {
        /// 0.
        Ok => "OK",
        /// 1.
        Cancelled => "CANCELLED",
        /// 2, and numbers that gRPC does not have.
        Unknown => "UNKNOWN",
        /// 3.
        InvalidArgument => "INVALID_ARGUMENT",
        /// 4.
        DeadlineExceeded => "DEADLINE_EXCEEDED",
        /// 5.
        NotFound => "NOT_FOUND",
        /// 6.
        AlreadyExists => "ALREADY_EXISTS",
        /// 7.
        PermissionDenied => "PERMISSION_DENIED",
        /// 8.
        ResourceExhausted => "RESOURCE_EXHAUSTED",
        /// 9.
        FailedPrecondition => "FAILED_PRECONDITION",
        /// 10.
        Aborted => "ABORTED",
        /// 11.
        OutOfRange => "OUT_OF_RANGE",
        /// 12.
        Unimplemented => "UNIMPLEMENTED",
        /// 13.
        Internal => "INTERNAL",
        /// 14.
        Unavailable => "UNAVAILABLE",
        /// 15.
        DataLoss => "DATA_LOSS",
        /// 16.
        Unauthenticated => "UNAUTHENTICATED",
        /// Ended without any: reset, broken off, or no gRPC answer.
        None => "none",
    }
}

impl GrpcCode {
    const ALL: [Self; 18] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
        Self::None,
    ];

    /// The code of a `grpc-status`.
    pub fn of(number: Option<usize>) -> Self {
        match number {
            None => Self::None,
            Some(number @ 0..=16) => Self::ALL[number],
            Some(_) => Self::Unknown,
        }
    }
}

label_enum! {
    /// What became of a parked request, for `ebbtide_parked_requests_total`.
    Parked {
        /// The app accepted again.
        Forwarded => "forwarded",
        /// `parking.wait_timeout` went by.
        TimedOut => "timed_out",
        /// `parking.max_requests` were waiting already.
        Full => "full",
        /// The termination began while it waited.
        Released => "released",
        /// The client's connection broke while it waited; one that only hung up is served as if it were still there.
        Abandoned => "abandoned",
    }
}

label_enum! {
    /// Dials, for `ebbtide_upstream_connects_total` and `ebbtide_outbound_connects_total`.
    Dial {
        /// Accepted.
        Ok => "ok",
        /// Refused.
        Refused => "refused",
        /// Any other failure.
        Failed => "failed",
    }
}

label_enum! {
    /// How a WebSocket session ended, for `ebbtide_websocket_sessions_total`.
    SessionEnd {
        /// The client or the app closed it, and the other one agreed; or it spoke no WebSocket, and both ended it.
        Closed => "closed",
        /// ebbtide closed it, and the client agreed.
        ClosedByNotice => "closed_by_notice",
        /// ebbtide closed it, and the client did not answer in time.
        Unanswered => "unanswered",
        /// The app's connection ended without a Close frame; the client was told 1012.
        AppDied => "app_died",
        /// The client's connection ended without a Close frame.
        ClientGone => "client_gone",
        /// Cut at the end of the budget.
        Cut => "cut",
    }
}

label_enum! {
    /// Why a downstream connection was closed by ebbtide before its time, for `ebbtide_connections_rejected_total`.
    Reject {
        /// The head did not come within `limits.header_timeout`.
        HeaderTimeout => "header_timeout",
        /// Not a valid HTTP/1 head.
        BadRequest => "bad_request",
        /// A head beyond `limits.header_bytes`.
        HeadTooLarge => "head_too_large",
        /// No PROXY protocol header, or a malformed one, from a source that must send one.
        ProxyHeader => "proxy_header",
        /// Anything but TLS where TLS is spoken.
        NotTls => "not_tls",
        /// TLS on a listener without certificates.
        UnexpectedTls => "unexpected_tls",
        /// The two sides came to no agreement: garbage, no common version, a certificate that one of them refused.
        TlsHandshake => "tls_handshake",
        /// The handshake did not end within `limits.header_timeout`.
        TlsTimeout => "tls_timeout",
        /// Silent for longer than `idle_timeout` or `half_closed_timeout`.
        TcpSilence => "tcp_silence",
        /// An HTTP/2 client reset more streams than a client has reason to.
        StreamResets => "stream_resets",
    }
}

label_enum! {
    /// How a client's TLS handshake ended, for `ebbtide_tls_handshakes_total`.
    Handshake {
        /// From the beginning.
        Full => "full",
        /// Shortened by an earlier one.
        Resumed => "resumed",
        /// Not at all; `ebbtide_connections_rejected_total` has the reason.
        Failed => "failed",
    }
}

label_enum! {
    /// What became of certificate files that had changed, for `ebbtide_tls_reloads_total`.
    Reload {
        /// In use from then on.
        Ok => "ok",
        /// Not usable: the old ones stay.
        Refused => "refused",
    }
}
