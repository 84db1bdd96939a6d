//! Owns a simulation frame by frame: many clients, each with a script of its own drawn from a seed, are told to go;
//! every stream up to the final id is answered whole, and none above it reaches the app.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use tokio::task::JoinSet;

use super::races::seed;
use super::{MILLIS, SECONDS, Stage, assert_two_phases, times};
use crate::harness::client::{Ending, Failure};
use crate::harness::h2::{Frame, PREFACE, RawH2, code, request};
use crate::harness::heavy;
use crate::harness::http::pattern;
use crate::harness::wait::Mono;

/// Everybody is told within the first second; the drain begins when the last connection has long been told.
const DRAIN: &str = "grace_period: 40s, hold: {min: 1s, quiet: 4s, max: 20s}, notice_after: 0%, close: 1s, \
                     close_spread: 500ms, quiet: 300ms, margin: 500ms";
const CLIENTS: u64 = 120;
const ROUNDS: u64 = 4;

/// One client and what it has done.
struct Client {
    random: Rng,
    raw: RawH2,
    name: String,
    /// What each stream expects in its answer.
    sent: BTreeMap<u32, Vec<u8>>,
    reset: Vec<u32>,
    /// Bytes at a time; 0 is everything at once.
    cut: usize,
    story: Vec<String>,
}

/// What became of it.
struct Outcome {
    name: String,
    raw: RawH2,
    sent: BTreeMap<u32, Vec<u8>>,
    reset: Vec<u32>,
    ending: Ending,
    story: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    answered: usize,
    between: usize,
    above: usize,
    reset: usize,
}

// === impl Client ===

impl Client {
    async fn connect(stage: &Stage, seed: u64, number: u64) -> Self {
        let mut random = Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(number));
        let mut raw = RawH2::connect(stage.address).await.expect("ebbtide accepts");
        raw.acks_settings = random.u8(..10) < 8;
        raw.acks_pings = random.u8(..10) < 7;
        let cut = if random.u8(..10) < 5 { 0 } else { random.usize(1..200) };
        let name = format!("sim-{seed}-{number}");
        let story = vec![format!("acks pings {}, settings {}, cut {cut}", raw.acks_pings, raw.acks_settings)];
        Self { random, raw, name, sent: BTreeMap::new(), reset: Vec::new(), cut, story }
    }

    /// In pieces, so that ebbtide's reads end anywhere in a frame.
    async fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.cut == 0 {
            return self.raw.bytes(bytes).await;
        }
        let mut left = bytes;
        let mut pieces = 0;
        while !left.is_empty() {
            // Long bodies would take for ever byte by byte.
            let most = if pieces < 8 { self.cut } else { left.len() };
            let (piece, rest) = left.split_at(self.random.usize(1..=most).min(left.len()));
            left = rest;
            pieces += 1;
            self.raw.bytes(piece).await?;
            if self.random.u8(..4) == 0 {
                tokio::time::sleep(Duration::from_micros(self.random.u64(1..3000))).await;
            }
        }
        Ok(())
    }

    /// One or more requests, in one go.
    async fn begin(&mut self, most: u32) -> Result<(), Failure> {
        let mut bytes = Vec::new();
        for _ in 0..self.random.u32(1..=most) {
            let stream = self.raw.fresh_stream();
            let id = format!("{}-{stream}", self.name);
            let expected = if self.random.bool() {
                let path = format!("/slow?ms={}", self.random.u64(0..300));
                bytes.extend(request(stream, "GET", &path, &[("x-id", &id)]).end_stream().encode());
                b"slow\n".to_vec()
            } else {
                let body = pattern(self.random.usize(1..30_000));
                bytes.extend(request(stream, "POST", "/echo", &[("x-id", &id)]).encode());
                let mut pieces = body.chunks(self.random.usize(1..16_000).max(body.len() / 8)).peekable();
                while let Some(piece) = pieces.next() {
                    let data = Frame::data(stream, piece);
                    bytes.extend(if pieces.peek().is_some() { data } else { data.end_stream() }.encode());
                }
                body
            };
            self.story.push(format!("begins {stream} after {} GOAWAY", self.raw.seen.goaways().len()));
            self.sent.insert(stream, expected);
        }
        self.write(&bytes).await
    }

    async fn give_up_one(&mut self) -> Result<(), Failure> {
        let open: Vec<u32> = self.sent.keys().copied().filter(|stream| !self.raw.seen.is_over(*stream)).collect();
        let Some(stream) = self.random.choice(&open).copied() else { return Ok(()) };
        self.story.push(format!("resets {stream}"));
        self.reset.push(stream);
        self.write(&Frame::reset(stream, code::CANCEL).encode()).await
    }

    async fn read_for(&mut self, time: Duration) {
        let end = Mono::now() + time;
        while Mono::now() < end && self.raw.next(end.since(Mono::now())).await.is_ok() {}
    }

    async fn act(&mut self) -> Result<(), Failure> {
        match self.random.u8(..10) {
            0..=3 => self.begin(3).await,
            4 => self.give_up_one().await,
            5 => self.write(&Frame::ping(*b"just one").encode()).await,
            6 => {
                // Nothing is read meanwhile, GOAWAY and PING neither.
                let time = self.random.u64(0..150);
                tokio::time::sleep(MILLIS(time)).await;
                Ok(())
            }
            _ => {
                let time = self.random.u64(1..60);
                self.read_for(MILLIS(time)).await;
                Ok(())
            }
        }
    }

    /// Acts until the final GOAWAY has been read, a little longer, and then reads to the end.
    async fn run(mut self) -> Outcome {
        let settings = [&PREFACE[..], &Frame::settings(&[(4, 1 << 20)]).encode()].concat();
        let _ = self.write(&settings).await;
        // Bodies rely on the window that the server opens behind its SETTINGS.
        self.raw.round_trip().await.expect("ebbtide is there");
        let mut more = self.random.u32(0..4);
        loop {
            let told = self.raw.seen.goaways().len() == 2;
            if told && more == 0 {
                break;
            }
            more -= u32::from(told);
            if self.act().await.is_err() {
                break;
            }
        }
        let ending = self.raw.ending(SECONDS(20)).await;
        let Self { name, raw, sent, reset, story, .. } = self;
        Outcome { name, raw, sent, reset, ending, story }
    }
}

// === impl Outcome ===

impl Outcome {
    fn check(&self, seen: &BTreeMap<String, usize>) -> Result<Tally, String> {
        if self.ending != Ending::Fin {
            return Err(format!("ended by {:?}", self.ending));
        }
        let last = assert_two_phases(&self.raw);
        let mut tally = Tally::default();
        for (stream, expected) in &self.sent {
            let answer = self.raw.seen.answer(*stream);
            let times = times(seen, &format!("{}-{stream}", self.name));
            if *stream > last {
                tally.above += 1;
                let refused = answer.reset.is_none_or(|code| code == code::REFUSED_STREAM);
                if times > 0 || !answer.head.is_empty() || !refused {
                    return Err(format!("stream {stream} above the final id {last}: seen {times} times, {answer:?}"));
                }
            } else if self.reset.contains(stream) {
                tally.reset += 1;
                if times > 1 {
                    return Err(format!("stream {stream}, reset by its client, was seen {times} times"));
                }
            } else {
                tally.answered += 1;
                let first = self.raw.seen.goaway_at(0);
                tally.between += usize::from(answer.over_at > first);
                if times != 1 || answer.status() != 200 || !answer.is_whole() || answer.body != *expected {
                    let (status, reset, length) = (answer.status(), answer.reset, answer.body.len());
                    return Err(format!(
                        "stream {stream} of {last}: seen {times} times, status {status}, reset {reset:?}, {length} of {} \
                         bytes, whole {}",
                        expected.len(),
                        answer.is_whole()
                    ));
                }
            }
        }
        Ok(tally)
    }
}

async fn play(seed: u64) -> Tally {
    let stage = Stage::start(DRAIN).await;
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(Client::connect(&stage, seed, number).await.run());
    }
    stage.has_seen(CLIENTS as usize).await;
    stage.terminate().await;
    let mut outcomes = Vec::new();
    while let Some(outcome) = clients.join_next().await {
        outcomes.push(outcome.expect("no client panics"));
    }
    let seen = stage.app.journal.seen();
    let mut all = Tally::default();
    for outcome in &outcomes {
        match outcome.check(&seen) {
            Ok(tally) => {
                all.answered += tally.answered;
                all.between += tally.between;
                all.above += tally.above;
                all.reset += tally.reset;
            }
            Err(fault) => panic!("SIM_SEED={seed}: {}: {fault}\n{}", outcome.name, outcome.story.join("\n")),
        }
    }
    eprintln!("SIM_SEED={seed}: {all:?}");
    all
}

#[tokio::test]
async fn whatever_clients_do_around_the_two_goaways_the_final_id_is_the_truth() {
    let _heavy = heavy().await;
    let first = seed();
    let rounds = if std::env::var_os("SIM_SEED").is_some() { 1 } else { ROUNDS };
    for round in 0..rounds {
        let tally = tokio::time::timeout(SECONDS(60), play(first.wrapping_add(round))).await;
        let tally = tally.unwrap_or_else(|_| panic!("SIM_SEED={}: no end", first.wrapping_add(round)));
        // Scripts that meet nothing would prove nothing.
        assert!(tally.answered > 1000 && tally.between > 100 && tally.above > 50 && tally.reset > 50, "{tally:?}");
    }
}
