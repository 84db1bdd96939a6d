//! Which protocol an app speaks, asked once per life of the app (`auto://`, `unix://`, `https://`).

use std::cell::Cell;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::connect::{DialError, Upstream, dial};
use crate::detect::frames::FrameHead;
use crate::detect::preface;
use crate::lifecycle::tick::Tick;
use crate::tls::client::Offer;

/// What an app speaks to HTTP/2 clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    /// HTTP/1.1 only.
    Http1,
    /// HTTP/2 by prior knowledge.
    Http2,
    /// It has said nothing: HTTP/1.1 for whoever can take it (contract §7).
    Silent,
}

/// What one worker knows of one app.
#[derive(Debug, Default)]
pub struct Known(Cell<Option<Learned>>);

#[derive(Debug, Clone, Copy)]
struct Learned {
    speaks: Speaks,
    /// The life of the app in which it was learned.
    life: u64,
    until: Option<Tick>,
}

/// An app that says nothing to a preface is taken for HTTP/1.1 (contract §7).
const ANSWER: Duration = Duration::from_secs(1);
/// It may only have been slow, or about to go, so it is asked again after this; a plain "no" holds until the app
/// restarts.
const SILENCE_HOLDS: Duration = Duration::from_secs(10);

// === impl Known ===

impl Known {
    /// What is known at `now`, in the app's life number `life`.
    pub fn get(&self, life: u64, now: Tick) -> Option<Speaks> {
        let learned = self.0.get()?;
        (learned.life == life && learned.until.is_none_or(|until| now < until)).then_some(learned.speaks)
    }

    /// The app has shown that it is another one by now.
    pub fn forget(&self) {
        self.0.set(None);
    }

    fn learn(&self, answer: Answer, life: u64, now: Tick) -> Speaks {
        let speaks = match answer {
            Answer::Settings => Speaks::Http2,
            Answer::Other | Answer::End => Speaks::Http1,
            Answer::Silence => Speaks::Silent,
        };
        let until = matches!(answer, Answer::End | Answer::Silence).then(|| now + SILENCE_HOLDS);
        self.0.set(Some(Learned { speaks, life, until }));
        speaks
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Settings,
    /// Bytes that are no SETTINGS.
    Other,
    /// The end of the connection.
    End,
    Silence,
}

/// Offers the preface on a connection of its own; inside TLS the handshake says it all (RFC 7301).
///
/// # Errors
/// As [`dial`] gives them.
pub async fn ask(upstream: &Upstream, known: &Known, life: u64, now: Tick) -> Result<Speaks, DialError> {
    /// SETTINGS without any, and GOAWAY(0, NO_ERROR).
    const SETTINGS: [u8; 9] = [0, 0, 0, FrameHead::SETTINGS, 0, 0, 0, 0, 0];
    const GOAWAY: [u8; 17] = [0, 0, 8, FrameHead::GOAWAY, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut stream = dial(upstream, Offer::Either).await?;
    if let Some(tls) = stream.tls() {
        // Nobody dials it by the way to see whether it is still the same app, so a "no" does not hold for ever.
        let answer = if tls.alpn() == Some(b"h2") { Answer::Settings } else { Answer::End };
        return Ok(known.learn(answer, life, now));
    }
    let answer = timeout(ANSWER, async {
        let offer = [preface::HTTP2, &SETTINGS].concat();
        let mut head = [0; FrameHead::LENGTH];
        if stream.write_all(&offer).await.is_err() || stream.read_exact(&mut head).await.is_err() {
            return Answer::End;
        }
        // A server's preface is a SETTINGS frame (RFC 9113 §3.4).
        if head[3] == FrameHead::SETTINGS && head[4..] == [0; 5] { Answer::Settings } else { Answer::Other }
    })
    .await
    .unwrap_or(Answer::Silence);
    if answer == Answer::Settings {
        // A farewell that nobody needs to hear.
        let _ = timeout(ANSWER, stream.write_all(&GOAWAY)).await;
    }
    tracing::info!(%upstream, answer = ?answer, "asked which protocol the app speaks");
    Ok(known.learn(answer, life, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_answer_holds_and_none_at_all_is_asked_again() {
        let known = Known::default();
        let at = Tick::from_millis;
        assert_eq!(known.get(1, at(0)), None);
        for (nothing, speaks) in [(Answer::Silence, Speaks::Silent), (Answer::End, Speaks::Http1)] {
            known.learn(nothing, 1, at(1000));
            assert_eq!((known.get(1, at(10_999)), known.get(1, at(11_000))), (Some(speaks), None));
        }
        known.learn(Answer::Other, 1, at(0));
        assert_eq!(known.get(1, at(99_999)), Some(Speaks::Http1));
        known.learn(Answer::Settings, 1, at(0));
        assert_eq!(known.get(1, at(99_999)), Some(Speaks::Http2));
        assert_eq!(known.get(2, at(0)), None, "the app has been away");
        known.forget();
        assert_eq!(known.get(1, at(0)), None);
    }
}
