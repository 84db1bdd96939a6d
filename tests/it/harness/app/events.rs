//! Owns the app's event streams: numbered events behind the last one that the client has seen.

use tokio::time::sleep;

use super::routes::{Exchange, Next};
use super::server::Io;
use crate::harness::http::{Fault, chunk};
use crate::harness::wait::Mono;

impl<S: Io> Exchange<'_, S> {
    /// `/events?n=&every_ms=&first_ms=&split_ms=&eol=lf|crlf|cr&retry=&size=&encoding=&status=&type=&end=clean|cut|half`,
    /// `silent=1` is a head alone. The data of an event are its number, the time, and a filling.
    pub(super) async fn events(&mut self) -> Result<Next, Fault> {
        let last: u64 = self.head.get("last-event-id").and_then(|text| text.parse().ok()).unwrap_or(0);
        let id = self.head.get("x-id").unwrap_or("-");
        self.app.pen.note("events", &format!("id={id} after={last}"));
        let status = self.number("status", 200);
        if status != 200 {
            return self.reply(status, &[], b"no events\n").await;
        }
        let kind = self.text("type").unwrap_or("text/event-stream").to_owned();
        let mut fields = vec![("Content-Type", kind), ("Cache-Control", "no-store".to_owned())];
        if let Some(encoding) = self.text("encoding") {
            fields.push(("Content-Encoding", encoding.to_owned()));
        }
        let mut head = self.reply_head(200, &fields);
        head.push_str("Transfer-Encoding: chunked\r\n\r\n");
        self.write(head.as_bytes()).await?;
        if self.number("silent", 0) == 1 {
            // Only the client's end is left to wait for.
            while self.wire.more().await? > 0 {}
            return Ok(Next::Close);
        }
        self.numbered(last).await?;
        self.last_of_all(last).await
    }

    async fn numbered(&mut self, last: u64) -> Result<(), Fault> {
        sleep(self.millis("first_ms")).await;
        let count = self.number("n", u64::MAX);
        for place in 0..count {
            let mut event = self.event(last + 1 + place);
            if place == 0
                && let Some(retry) = self.text("retry")
            {
                event.insert_str(0, &format!("retry: {retry}{}", self.line_end()));
            }
            if self.text("split_ms").is_some() {
                let second = event.split_off(event.len() / 2);
                self.write(&chunk(event.as_bytes())).await?;
                sleep(self.millis("split_ms")).await;
                event = second;
            }
            self.write(&chunk(event.as_bytes())).await?;
            if place + 1 < count {
                sleep(self.millis("every_ms")).await;
            }
        }
        Ok(())
    }

    async fn last_of_all(&mut self, last: u64) -> Result<Next, Fault> {
        match self.text("end") {
            Some("cut") => return Ok(Next::Close),
            Some("half") => {
                let event = self.event(last + 1 + self.number("n", 0));
                self.write(&chunk(&event.as_bytes()[..event.len() / 2])).await?;
            }
            _ => {}
        }
        self.write(b"0\r\n\r\n").await?;
        Ok(self.next())
    }

    fn event(&self, number: u64) -> String {
        let (end, filling) = (self.line_end(), ".".repeat(self.number("size", 0)));
        format!("id: {number}{end}data: {number} {} {filling}{end}{end}", Mono::now().nanos())
    }

    fn line_end(&self) -> &'static str {
        match self.text("eol") {
            Some("crlf") => "\r\n",
            Some("cr") => "\r",
            _ => "\n",
        }
    }
}
