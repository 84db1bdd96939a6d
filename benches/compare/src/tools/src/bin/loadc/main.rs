//! The load client for what wrk and h2load cannot do.
//!
//! ```text
//! loadc idle ADDR N [tls]             open N connections, one request on each, hold them until stdin ends
//! loadc ws ADDR CONNS SECS SIZE       WebSocket echo, one message at a time on each connection
//! loadc rate ADDR CONNS RPS SECS      HTTP/1 keep-alive at a fixed rate, latency from the moment a request was due
//! loadc drain-h1 ADDR CONNS RPS RTT APP   the same through a termination; so do drain-h2, drain-grpc, drain-ws, drain-tcp
//! ```
//!
//! It says `READY ...` when the load runs, and one line of JSON at the end. What the drains hear: see `drain`.

mod drain;
mod idle;
mod net;
mod rate;
mod ws;

use std::net::SocketAddr;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |at: usize| args.get(at).and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
    let address = |at: usize| -> SocketAddr {
        let text = args.get(at).unwrap_or_else(|| panic!("argument {at}: an address is missing"));
        text.parse().unwrap_or_else(|_| panic!("{text} is no address"))
    };
    let to = address(2);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, async {
        match args[1].as_str() {
            "idle" => idle::run(to, number(3), args.get(4).is_some_and(|word| word == "tls")).await,
            "ws" => ws::run(to, number(3), number(4) as u64, number(5)).await,
            "rate" => rate::run(to, number(3), number(4), number(5) as u64).await,
            name => {
                let kind = name.strip_prefix("drain-").unwrap_or_else(|| panic!("no mode {name}"));
                drain::run(kind, to, address(6), number(3), number(4), number(5) as u64).await;
            }
        }
    });
    // A reader parked on stdin must not keep the process.
    std::process::exit(0);
}
