//! Owns what the app does with raw TCP: who speaks first, who ends first.

use std::io::ErrorKind;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::entry::Shared;
use super::server::Io;
use super::{Flow, GREETING};
use crate::harness::http::{Sum, pattern, pattern_byte};

/// Notes what has been received, and how the client ended.
pub(super) async fn serve(app: &Shared, stream: impl Io, flow: Flow, connection: u64) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut got = Received { bytes: 0, sum: Sum::new(), how: "open" };
    let work = async {
        match flow {
            Flow::Echo => got.read(&mut reader, Some(&mut writer)).await,
            Flow::Greet => {
                let _ = writer.write_all(GREETING).await;
                got.read(&mut reader, Some(&mut writer)).await;
            }
            Flow::ReplyAfterEnd { after, bytes } => {
                got.drain(&mut reader).await;
                tokio::time::sleep(after).await;
                let _ = writer.write_all(&pattern(bytes)).await;
            }
            Flow::EndFirst { bytes } => {
                let _ = writer.write_all(&pattern(bytes)).await;
                let _ = writer.shutdown().await;
                got.drain(&mut reader).await;
            }
            Flow::Bursts { bytes, every } => {
                tokio::select! {
                    () = got.drain(&mut reader) => {}
                    () = bursts(&mut writer, bytes, every) => {}
                }
            }
        }
    };
    work.await;
    app.pen.note("received", &format!("conn={connection} bytes={} sum={} how={}", got.bytes, got.sum.hex(), got.how));
    let _ = writer.shutdown().await;
}

struct Received {
    bytes: usize,
    sum: Sum,
    how: &'static str,
}

impl Received {
    async fn drain(&mut self, reader: &mut (impl AsyncRead + Unpin)) {
        self.read(reader, None::<&mut tokio::io::Sink>).await;
    }

    /// To the client's end; each piece goes back if there is a way back.
    async fn read(&mut self, reader: &mut (impl AsyncRead + Unpin), mut back: Option<&mut (impl AsyncWrite + Unpin)>) {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            // Nothing else makes a reader give way whose bytes are always there already.
            tokio::task::coop::consume_budget().await;
            match reader.read(&mut buffer).await {
                Ok(0) => return self.how = "fin",
                Ok(read) => {
                    self.bytes += read;
                    self.sum.add(&buffer[..read]);
                    if let Some(writer) = &mut back
                        && writer.write_all(&buffer[..read]).await.is_err()
                    {
                        return self.how = "reset";
                    }
                }
                // TLS, and a FIN without a `close_notify`.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return self.how = "bare",
                Err(_) => return self.how = "reset",
            }
        }
    }
}

async fn bursts(writer: &mut (impl AsyncWrite + Unpin), bytes: usize, every: Duration) {
    let mut at = 0;
    loop {
        let burst: Vec<u8> = (at..at + bytes as u64).map(pattern_byte).collect();
        at += bytes as u64;
        if writer.write_all(&burst).await.is_err() {
            return;
        }
        tokio::time::sleep(every).await;
    }
}
