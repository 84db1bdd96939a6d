//! Owns the open loop: HTTP/1 requests at a fixed rate, whatever the answers take.
//!
//! A request has a moment at which it is due, and its latency counts from there. It goes out on any connection that
//! waits for nothing; if there is none it stands in a queue. So a proxy that stalls is not spared the requests that
//! would have come meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::io::unix::AsyncFd;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::net::{Rng, connect, exchange, head, percentile, request, stdin, stdin_line};

struct Load {
    request: Vec<u8>,
    /// Per connection; none: it has no request under way.
    under_way: RefCell<Vec<Option<Instant>>>,
    streams: Vec<OwnedWriteHalf>,
    queue: RefCell<VecDeque<Instant>>,
    latencies: RefCell<Vec<u32>>,
    errors: Cell<u64>,
    broken: RefCell<Vec<bool>>,
}

impl Load {
    fn send(&self, at: usize, due: Instant) {
        self.under_way.borrow_mut()[at] = Some(due);
        // A request is far smaller than a socket's empty buffer.
        if !matches!(self.streams[at].try_write(&self.request), Ok(sent) if sent == self.request.len()) {
            self.fail(at);
        }
    }

    fn fail(&self, at: usize) {
        self.errors.set(self.errors.get() + 1);
        self.broken.borrow_mut()[at] = true;
        self.under_way.borrow_mut()[at] = None;
    }

    fn done(&self, at: usize) {
        if let Some(due) = self.under_way.borrow_mut()[at].take() {
            self.latencies.borrow_mut().push(due.elapsed().as_micros() as u32);
        }
        let next = self.queue.borrow_mut().pop_front();
        if let Some(due) = next {
            self.send(at, due);
        }
    }

    fn is_free(&self, at: usize) -> bool {
        self.under_way.borrow()[at].is_none() && !self.broken.borrow()[at]
    }
}

/// Takes the answers of one connection; ends with it.
async fn reader(load: Rc<Load>, at: usize, mut stream: OwnedReadHalf) {
    let mut buffer = vec![0u8; 2048];
    let mut filled = 0;
    loop {
        match stream.read(&mut buffer[filled..]).await {
            Ok(read) if read > 0 => filled += read,
            _ => break,
        }
        let whole = match head(&buffer[..filled]) {
            Ok(Some(head)) => head.body.map(|body| head.end + body),
            Ok(None) => continue,
            Err(_) => break,
        };
        match whole {
            Some(length) if filled >= length => {
                filled = 0;
                load.done(at);
            }
            Some(length) if length <= buffer.len() => {}
            _ => break,
        }
    }
    load.fail(at);
}

/// The runtime's timer has steps of a millisecond: too coarse for requests that come evenly.
struct Ticker(AsyncFd<OwnedFd>);

impl Ticker {
    fn every(period: Duration) -> io::Result<Self> {
        let span = libc::timespec { tv_sec: 0, tv_nsec: period.subsec_nanos().into() };
        let times = libc::itimerspec { it_interval: span, it_value: span };
        // SAFETY: plain system calls; the descriptor is owned by nobody else, and stays where it is.
        unsafe {
            let timer = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC);
            if timer < 0 {
                return Err(io::Error::last_os_error());
            }
            let timer = OwnedFd::from_raw_fd(timer);
            if libc::timerfd_settime(timer.as_raw_fd(), 0, &times, std::ptr::null_mut()) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(AsyncFd::register(timer)?))
        }
    }

    async fn next(&mut self) {
        loop {
            let Ok(mut ready) = self.0.readable().await else { return };
            let read = ready.try_io(|timer| {
                let mut count = [0u8; 8];
                // SAFETY: the buffer has the eight bytes that a timer tells.
                let read = unsafe { libc::read(timer.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
                if read < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
            });
            if read.is_ok() {
                return;
            }
        }
    }
}

pub async fn run(to: SocketAddr, conns: usize, rate: usize, secs: u64) {
    let (mut reading, mut streams) = (Vec::new(), Vec::new());
    let mut buffer = Vec::with_capacity(4096);
    for _ in 0..conns {
        let Ok(mut stream) = connect(to).await else { continue };
        if exchange(&mut stream, "/small", &mut buffer).await == Ok(false) {
            let (read, write) = stream.into_split();
            reading.push(read);
            streams.push(write);
        }
    }
    let count = streams.len();
    println!("READY {count} bad={}", conns - count);
    if count == 0 {
        println!(r#"{{"done":0,"secs":{secs},"p50":0,"p99":0,"errors":{conns}}}"#);
        return;
    }
    let load = Rc::new(Load {
        request: request("/small"),
        under_way: RefCell::new(vec![None; count]),
        streams,
        queue: RefCell::default(),
        latencies: RefCell::new(Vec::with_capacity(rate * secs as usize)),
        errors: Cell::new((conns - count) as u64),
        broken: RefCell::new(vec![false; count]),
    });
    for (at, stream) in reading.into_iter().enumerate() {
        tokio::task::spawn_local(reader(load.clone(), at, stream));
    }
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
    let mut ticker = Ticker::every(Duration::from_micros(100)).expect("a timer");
    let start = Instant::now();
    let mut sent = 0;
    while start.elapsed() < Duration::from_secs(secs) {
        let now = Instant::now();
        let due = ((now - start).as_secs_f64() * rate as f64) as usize;
        while sent < due {
            let moment = start + Duration::from_secs_f64(sent as f64 / rate as f64);
            sent += 1;
            let from = rng.below(count);
            match (from..count).chain(0..from).take(64).find(|at| load.is_free(*at)) {
                Some(at) => load.send(at, moment),
                None => load.queue.borrow_mut().push_back(moment),
            }
        }
        ticker.next().await;
    }
    let took = start.elapsed().as_secs_f64();
    tokio::time::sleep(Duration::from_millis(200)).await;
    // What has had no answer by now counts as it stands.
    let late: Vec<Instant> = load.under_way.borrow().iter().flatten().copied().collect();
    let queued = load.queue.borrow().iter().copied().collect::<Vec<_>>();
    let mut latencies = load.latencies.take();
    let done = latencies.len();
    latencies.extend(late.iter().chain(&queued).map(|due| due.elapsed().as_micros() as u32));
    let (p50, p99) = (percentile(&mut latencies, 0.5), percentile(&mut latencies, 0.99));
    let (errors, unsent) = (load.errors.get(), queued.len());
    println!(r#"{{"done":{done},"secs":{took:.3},"p50":{p50},"p99":{p99},"errors":{errors},"unsent":{unsent}}}"#);
    // The connections stay open until the proxy's figures have been read.
    let _ = timeout(Duration::from_secs(10), stdin_line(&mut stdin())).await;
}
