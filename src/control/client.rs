//! The other end of the control socket: what `ebbtide drain` and `ebbtide status` do.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::addresses;
use crate::admin::status::Status;
use crate::config::ControlSocket;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody answers.
    #[error(
        "no ebbtide answers on {places} (is `ebbtide run` running in this container, with the same \
         EBBTIDE_CONTROL_SOCKET, or control_socket in the file of --config?)"
    )]
    Unreachable {
        /// Everywhere it was looked for.
        places: String,
        /// The last failure.
        #[source]
        source: io::Error,
    },
    /// The process refused.
    #[error("ebbtide answered: {0}")]
    Refused(String),
    /// Not what a process of this version says.
    #[error("an answer that can't be read: {0:?}")]
    Garbled(String),
}

/// The socket may not be there yet when the hook runs.
const RETRY_FOR: Duration = Duration::from_secs(1);
const RETRY_EVERY: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(5);
const LONGEST_ANSWER: u64 = 1 << 20;

/// Sends one verb and reads the state that comes back.
///
/// # Errors
/// If nobody answers within a second, or the answer is a refusal.
pub fn ask(socket: &ControlSocket, verb: &str) -> Result<Status, ControlError> {
    let answer =
        exchange(socket, verb).map_err(|source| ControlError::Unreachable { places: places(socket), source })?;
    if let Ok(status) = serde_json::from_str(&answer) {
        return Ok(status);
    }
    let refusal = serde_json::from_str::<serde_json::Value>(&answer).ok();
    match refusal.as_ref().and_then(|value| value.get("error")?.as_str()) {
        Some(text) => Err(ControlError::Refused(text.to_owned())),
        None => Err(ControlError::Garbled(answer.chars().take(200).collect())),
    }
}

fn places(socket: &ControlSocket) -> String {
    let places: Vec<_> = addresses(socket).unwrap_or_default().iter().map(super::describe).collect();
    match (places.is_empty(), socket) {
        (true, ControlSocket::Path(path)) => path.display().to_string(),
        (true, ControlSocket::Default) => super::DEFAULT_PATH.to_owned(),
        (false, _) => places.join(" or "),
    }
}

fn exchange(socket: &ControlSocket, verb: &str) -> io::Result<String> {
    let mut stream = connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("{verb}\n").as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream.take(LONGEST_ANSWER)).read_line(&mut answer)?;
    if answer.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(answer)
}

#[expect(clippy::disallowed_methods, reason = "a command-line client without a runtime")]
fn connect(socket: &ControlSocket) -> io::Result<UnixStream> {
    let mut waited = Duration::ZERO;
    loop {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses(socket)? {
            match UnixStream::connect_addr(&address) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        if waited >= RETRY_FOR {
            return Err(last);
        }
        std::thread::sleep(RETRY_EVERY);
        waited += RETRY_EVERY;
    }
}
