//! Owns the TCP clients of a termination: a protocol of questions and answers (HTTP, but the proxy does not know).
//!
//! Nobody can ask such a client to leave, so there are two kinds, half of the connections each. Workers make a
//! transaction every half second and close after one to five seconds, since their work is done: a proxy that waits
//! loses none. Clients with a pool keep their connection and use it every ten seconds: it can only be closed on them,
//! which is well as long as it is a FIN between two transactions. RST has failed, even there.

use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::time::sleep;

use super::{Ask, World, tell};
use crate::net::{Fail, Idle, Rng, connect, exchange, look};

#[derive(Clone, Copy)]
struct Habit {
    kind: &'static str,
    pause: Duration,
    /// None: as long as the server leaves it open.
    life: Option<Duration>,
}

/// One connection from its opening to its end.
async fn connection(world: &World, habit: Habit) -> Result<(), Fail> {
    let opened = Instant::now();
    let mut stream = connect(world.proxy).await?;
    let mut buffer = Vec::with_capacity(1024);
    loop {
        let (phase, due) = (world.phase(), Instant::now());
        sleep(world.rtt).await;
        exchange(&mut stream, "/d20", &mut buffer).await?;
        world.ok(phase, due);
        let until = Instant::now() + habit.pause;
        while Instant::now() < until && !world.is_over() {
            if !is_open(world, &stream)? {
                return Ok(());
            }
            sleep(Duration::from_millis(100).min(habit.pause)).await;
        }
        if !is_open(world, &stream)? || habit.life.is_some_and(|life| opened.elapsed() > life) {
            return Ok(());
        }
        if world.is_over() {
            world.note("still_open", 1);
            return Ok(());
        }
    }
}

fn is_open(world: &World, stream: &TcpStream) -> Result<bool, Fail> {
    match look(stream) {
        Idle::Open => Ok(true),
        Idle::Fin => {
            world.note("found_closed", 1);
            Ok(false)
        }
        Idle::Rst => Err(Fail::Reset),
    }
}

async fn client(world: Rc<World>, index: usize) {
    let mut rng = Rng(0x9E37_79B9_7F4A_7C15 ^ (index as u64 + 1));
    let pool = index.is_multiple_of(2);
    // Not all at once.
    sleep(Duration::from_millis(rng.below(500) as u64)).await;
    while world.is_known() {
        let phase = world.phase();
        let habit = Habit {
            kind: if pool { "pool" } else { "worker" },
            pause: if pool { Duration::from_secs(10) } else { Duration::from_millis(500) },
            life: (!pool).then(|| Duration::from_millis(1000 + rng.below(4000) as u64)),
        };
        if let Err(fail) = connection(&world, habit).await {
            let phase = if fail == Fail::Refused { phase } else { world.phase() };
            world.failed(phase, habit.kind, fail);
            sleep(Duration::from_millis(500)).await;
        }
    }
}

async fn slow(world: Rc<World>) {
    let phase = world.phase();
    let due = Instant::now();
    let asked = async {
        let mut stream = connect(world.proxy).await?;
        exchange(&mut stream, "/slow", &mut Vec::with_capacity(1024)).await
    };
    match asked.await {
        Ok(_) => world.ok(phase, due),
        Err(fail) => world.failed(phase, "slow", fail),
    }
}

/// How many connections are open at the end.
pub(super) async fn run(world: &Rc<World>) -> usize {
    for index in 0..world.conns {
        tokio::task::spawn_local(client(world.clone(), index));
    }
    tell(world, 0, |wanted, _| {
        // The clients have their own pace.
        if wanted == Ask::Slow {
            tokio::task::spawn_local(slow(world.clone()));
        }
    })
    .await;
    world.stats.borrow_mut().notes.remove("still_open").unwrap_or(0) as usize
}
