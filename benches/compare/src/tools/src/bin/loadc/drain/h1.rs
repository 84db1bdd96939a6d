//! Owns the HTTP/1 clients of a termination: each keeps a connection alive and obeys `Connection: close`.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use tokio::net::TcpStream;
use tokio::time::sleep;

use super::{Ask, World, tell};
use crate::net::{Fail, Idle, Rng, connect, exchange, look};

const PATH: &str = "/d20";

enum Slot {
    Empty,
    Busy,
    Open(TcpStream),
}

type Slots = Rc<RefCell<Vec<Slot>>>;

/// The connection of this client, unless the server has closed it meanwhile: that is no failure.
fn taken(world: &World, slots: &Slots, at: usize) -> Option<TcpStream> {
    let Slot::Open(stream) = std::mem::replace(&mut slots.borrow_mut()[at], Slot::Busy) else { return None };
    match look(&stream) {
        Idle::Open => return Some(stream),
        Idle::Fin => world.note("found_closed", 1),
        Idle::Rst => world.note("found_reset", 1),
    }
    None
}

async fn pooled(world: &World, slots: &Slots, at: usize, due: Instant) {
    let phase = world.phase();
    let open = taken(world, slots, at);
    let kind = if open.is_some() { "reused" } else { "new" };
    if open.is_none() && !world.is_known() {
        world.note("moved", 1);
        slots.borrow_mut()[at] = Slot::Empty;
        return;
    }
    let asked: Result<(TcpStream, bool), Fail> = async {
        let mut stream = match open {
            Some(stream) => stream,
            None => connect(world.proxy).await?,
        };
        sleep(world.rtt).await;
        let close = exchange(&mut stream, PATH, &mut Vec::with_capacity(1024)).await?;
        Ok((stream, close))
    }
    .await;
    let next = match asked {
        Ok((stream, close)) => {
            world.ok(phase, due);
            world.note("told", u64::from(close));
            if close { Slot::Empty } else { Slot::Open(stream) }
        }
        Err(fail) => {
            world.failed(phase, kind, fail);
            Slot::Empty
        }
    };
    slots.borrow_mut()[at] = next;
}

async fn fresh(world: &World, path: &str, kind: &'static str, due: Instant) {
    let phase = world.phase();
    let asked = async {
        let mut stream = connect(world.proxy).await?;
        exchange(&mut stream, path, &mut Vec::with_capacity(1024)).await
    };
    match asked.await {
        Ok(_) => world.ok(phase, due),
        Err(fail) => world.failed(phase, kind, fail),
    }
}

/// How many connections are open at the end.
pub(super) async fn run(world: &Rc<World>) -> usize {
    let slots: Slots = Slots::default();
    let mut buffer = Vec::with_capacity(4096);
    for _ in 0..world.conns {
        let slot = match connect(world.proxy).await {
            Ok(mut stream) => match exchange(&mut stream, "/small", &mut buffer).await {
                Ok(false) => Slot::Open(stream),
                _ => Slot::Empty,
            },
            Err(_) => Slot::Empty,
        };
        world.note("not_opened", u64::from(matches!(slot, Slot::Empty)));
        slots.borrow_mut().push(slot);
    }
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15);
    tell(world, 10, |ask, due| {
        let (world, slots) = (world.clone(), slots.clone());
        match ask {
            Ask::Slow => drop(tokio::task::spawn_local(async move { fresh(&world, "/slow", "slow", due).await })),
            Ask::Fresh => drop(tokio::task::spawn_local(async move { fresh(&world, PATH, "new", due).await })),
            Ask::Pooled => {
                let tries = (0..50).map(|_| rng.below(world.conns));
                let free = tries.into_iter().find(|at| !matches!(slots.borrow()[*at], Slot::Busy));
                if let Some(at) = free {
                    tokio::task::spawn_local(async move { pooled(&world, &slots, at, due).await });
                }
            }
        }
    })
    .await;
    let slots = slots.borrow();
    slots.iter().filter(|slot| matches!(slot, Slot::Open(stream) if look(stream) == Idle::Open)).count()
}
