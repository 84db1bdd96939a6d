//! Owns one container of a pod: its program, its hook, its current process.

use std::path::Path;
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use tokio::process::Command;

use super::hook::Hook;
use super::timeline::{Event, Timeline, Who};
use crate::harness::app::AppOptions;
use crate::harness::ebbtide::Config;
use crate::harness::process::Process;

/// What a container runs.
#[derive(Clone, Debug)]
pub(crate) enum Program {
    Ebbtide(Config),
    Toy(Box<AppOptions>),
    Command(Vec<String>),
}

/// What the pod spec says about a container, and its current life.
#[derive(Debug)]
pub(super) struct Container {
    pub(super) who: Who,
    pub(super) program: Program,
    pub(super) hook: Hook,
    pub(super) stop_signal: Signal,
    /// A native sidecar waits for its turn; an ordinary container does not.
    pub(super) is_sidecar: bool,
    life: Mutex<Option<Arc<Process>>>,
}

// === impl Container ===

impl Container {
    pub(super) fn new(who: Who, program: Program, hook: Hook, is_sidecar: bool) -> Self {
        Self { who, program, hook, stop_signal: Signal::TERM, is_sidecar, life: Mutex::new(None) }
    }

    /// Starts the process; its exit goes to the timeline whenever it comes.
    pub(super) async fn start(&self, dir: &Path, timeline: &Arc<Timeline>) {
        let name = self.who.to_string();
        timeline.push(Event::Started(self.who));
        let (record, who) = (timeline.clone(), self.who);
        let on_exit = move |at, exit| {
            record.push_at(at, Event::Exited(who, exit), String::new());
        };
        let process = match &self.program {
            Program::Ebbtide(config) => config.spawn(on_exit),
            Program::Toy(options) => options.start_watched(&name, dir, on_exit).await.process,
            Program::Command(words) => {
                let (program, arguments) = words.split_first().expect("a command has a word");
                let mut command = Command::new(program);
                command.args(arguments);
                Process::spawn(&name, command, &dir.join(format!("{name}.log")), on_exit)
            }
        };
        *self.life.lock().expect("no holder panics") = Some(Arc::new(process));
    }

    /// The last process, running or not.
    pub(super) fn process(&self) -> Option<Arc<Process>> {
        self.life.lock().expect("no holder panics").clone()
    }

    pub(super) fn running(&self) -> Option<Arc<Process>> {
        self.process().filter(|process| process.is_running())
    }

    /// Signals the running process and records it; answers whether there was one.
    pub(super) fn signal(&self, signal: Signal, timeline: &Timeline) -> bool {
        // The record comes first, else the exit it causes could stand before it.
        let Some(process) = self.running() else {
            return false;
        };
        timeline.push(Event::Signalled(self.who, signal));
        process.signal(signal)
    }

    pub(super) fn kill(&self) {
        if let Some(process) = self.running() {
            process.signal(Signal::KILL);
        }
    }
}
