//! L4 relay with splice(2); pipes are borrowed from a pool only while bytes are in flight.
//! usage: l4splice LISTEN UPSTREAM
use std::{cell::RefCell, io, os::fd::AsRawFd};
use tokio::{
    io::Interest,
    net::{TcpSocket, TcpStream},
};

thread_local!(static PIPES: RefCell<Vec<[i32; 2]>> = const { RefCell::new(vec![]) });

fn splice(from: i32, to: i32, n: usize) -> io::Result<usize> {
    let r = unsafe {
        libc::splice(
            from,
            std::ptr::null_mut(),
            to,
            std::ptr::null_mut(),
            n,
            libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE,
        )
    };
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(r as usize) }
}

async fn one_way(a: &TcpStream, b: &TcpStream) -> io::Result<()> {
    loop {
        a.readable().await?;
        let p = PIPES.with(|v| v.borrow_mut().pop()).map_or_else(
            || {
                let mut p = [0; 2];
                if unsafe { libc::pipe2(p.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC) } < 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(p)
            },
            Ok,
        )?;
        // a short count means the socket is drained: say WouldBlock so that tokio waits for the next
        // edge instead of paying for a splice that returns EAGAIN (only when far from 16 pipe slots)
        let mut got = 0;
        let r = a.try_io(Interest::READABLE, || {
            got = splice(a.as_raw_fd(), p[1], 65536)?;
            if got > 0 && got < 1024 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(got) }
        });
        let r = match if got > 0 { Ok(got) } else { r } {
            Ok(0) => Some(0),
            Ok(mut n) => loop {
                match b.try_io(Interest::WRITABLE, || splice(p[0], b.as_raw_fd(), n)) {
                    Ok(k) => n -= k,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => b.writable().await?,
                    Err(e) => return Err(e), // the pipe leaks; fine for a bench
                }
                if n == 0 {
                    break None;
                }
            },
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => None,
            Err(e) => return Err(e),
        };
        PIPES.with(|v| v.borrow_mut().push(p));
        if r == Some(0) {
            unsafe { libc::shutdown(b.as_raw_fd(), libc::SHUT_WR) };
            return Ok(());
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let a: Vec<String> = std::env::args().collect();
    let s = TcpSocket::new_v4()?;
    s.set_reuseaddr(true)?;
    s.bind(a[1].parse().unwrap())?;
    let l = s.listen(4096)?;
    let up: std::net::SocketAddr = a[2].parse().unwrap();
    loop {
        let Ok((d, _)) = l.accept().await else { continue };
        tokio::spawn(async move {
            let _ = d.set_nodelay(true);
            if let Ok(u) = TcpStream::connect(up).await {
                let _ = u.set_nodelay(true);
                let _ = tokio::join!(one_way(&d, &u), one_way(&u, &d));
            }
        });
    }
}
