//! The `demo` command: one pod deletion played twice, without ebbtide and with it, under the same load.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

mod app;
mod balancer;
mod grpc;
mod websocket;
mod http;
mod kubelet;
mod load;
mod outcome;
mod pod;
mod progress;
mod scenario;
mod table;
mod workdir;

pub use app::app_main;
pub use outcome::{Counts, Failure, Flows, LoadKind, Outcome, Side, SidecarEnd};

use progress::{Events, Progress};
use scenario::Plan;
use workdir::WorkDir;

/// What `ebbtide demo` can be asked for.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Requests per second, all kinds together
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(20..=2000))]
    pub rate: u32,

    /// How long ebbtide goes on taking new work after the deletion
    #[arg(long, value_name = "SECS", default_value_t = 6, value_parser = |text: &str| whole_seconds(text, 1))]
    pub hold: u64,

    /// How late the balancer learns of the deletion
    #[arg(long, value_name = "SECS", default_value_t = 3, value_parser = |text: &str| whole_seconds(text, 1))]
    pub lag: u64,

    /// Give the app without ebbtide a `preStop: sleep` of this length (0: no hook)
    #[arg(long, value_name = "SECS", default_value_t = 0, value_parser = |text: &str| whole_seconds(text, 0))]
    pub baseline_sleep: u64,

    /// Text for people, or one JSON document at the end (progress goes to stderr)
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Form of the result on stdout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// Progress, table, report and verdict.
    Text,
    /// One JSON document.
    Json,
}

/// Why the demo could not be played to its end.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The async runtime or the signal handlers could not be set up.
    #[error("could not start the demo's runtime")]
    Runtime(#[source] io::Error),
    /// No private directory for sockets and logs.
    #[error("could not create the directory {}", path.display())]
    WorkDir {
        /// The directory that was tried last.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No loopback port could be bound.
    #[error("could not bind a loopback port")]
    Port(#[source] io::Error),
    /// A child process could not be spawned at all.
    #[error("could not run {name}")]
    Spawn {
        /// Which process, in the words of the progress lines.
        name: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A child process ended, or did not become ready in time.
    #[error("{name} {what}\n{log}")]
    NotReady {
        /// Which process.
        name: String,
        /// What happened instead.
        what: String,
        /// The last lines of its log.
        log: String,
    },
    /// A child process could not be signalled or waited for.
    #[error("could not stop {name}")]
    Stop {
        /// Which process.
        name: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The embedded app could not serve.
    #[error("the demo's app could not serve on its address")]
    App(#[source] io::Error),
    /// Nobody reads the output any more, or it can't be written.
    #[error("could not write the output")]
    Output(#[source] io::Error),
    /// SIGINT or SIGTERM.
    #[error("interrupted")]
    Interrupted,
}

/// Plays both sides and writes the result; blocks for the whole demo, and must not be called from inside a runtime.
///
/// `stderr` gets the progress if the result is JSON, else nothing.
pub fn run(options: &Options, stdout: &mut dyn Write, stderr: &mut dyn Write) -> Result<Outcome, DemoError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(DemoError::Runtime)?;
    let outcome = match options.output {
        Output::Text => {
            let progress = Progress::new(stdout, io::stdout().is_terminal());
            runtime.block_on(play_both(options, progress))?
        }
        Output::Json => {
            let progress = Progress::new(stderr, io::stderr().is_terminal());
            runtime.block_on(play_both(options, progress))?
        }
    };
    match options.output {
        Output::Text => table::write_text(stdout, &outcome),
        Output::Json => table::write_json(stdout, &outcome),
    }
    .and_then(|()| stdout.flush())
    .map_err(DemoError::Output)?;
    Ok(outcome)
}

async fn play_both(options: &Options, mut progress: Progress<'_>) -> Result<Outcome, DemoError> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(DemoError::Runtime)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(DemoError::Runtime)?;
    let mut second = interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);

    let plan = Plan::new(options);
    progress.line(&opening(&plan)).map_err(DemoError::Output)?;

    let dir = WorkDir::create()?;
    let (sender, mut received) = mpsc::unbounded_channel();
    let events = Events::new(sender);
    let sides = async {
        let without_ebbtide = scenario::play(&plan, scenario::Which::WithoutEbbtide, &dir, &events).await?;
        let with_ebbtide = scenario::play(&plan, scenario::Which::WithEbbtide, &dir, &events).await?;
        Ok(Outcome { without_ebbtide, with_ebbtide })
    };
    tokio::pin!(sides);

    // Dropping `sides`, on whichever way out, kills the children it owns.
    let result = loop {
        tokio::select! {
            biased;
            _ = interrupt.recv() => break Err(DemoError::Interrupted),
            _ = terminate.recv() => break Err(DemoError::Interrupted),
            Some(event) = received.recv() => progress.event(event).map_err(DemoError::Output)?,
            result = &mut sides => break result,
            _ = second.tick() => progress.tick().map_err(DemoError::Output)?,
        }
    };
    while let Ok(event) = received.try_recv() {
        progress.event(event).map_err(DemoError::Output)?;
    }
    progress.end().map_err(DemoError::Output)?;
    result
}

/// `6` or `6s`, at most 15.
fn whole_seconds(text: &str, min: u64) -> Result<u64, String> {
    match text.strip_suffix('s').unwrap_or(text).parse() {
        Ok(seconds) if (min..=15).contains(&seconds) => Ok(seconds),
        _ => Err(format!("give {min} to 15 whole seconds, like 6 or 6s")),
    }
}

fn opening(plan: &Plan) -> String {
    format!(
        "A pod is deleted twice under load, once without ebbtide and once with it. Takes about {} s.\n\
         Two pods stand behind a balancer; pod A is deleted, and the balancer learns of it {} s late.\n\
         The app dies the moment it gets SIGTERM. About {} requests/s, and no client retries: over HTTP/2 only what the\n\
         server says it has not looked at is sent again.",
        // To the next five seconds: the rest depends on the machine.
        (plan.estimate().as_secs() + 2) / 5 * 5,
        plan.lag.as_secs(),
        plan.rate,
    )
}

const EXAMPLES: &str = "\
Examples:
  ebbtide demo                                  both sides, about 40 s; exit code 0 if ebbtide lost nothing
  ebbtide demo --baseline-sleep 5               compare with the usual `preStop: sleep 5`
  ebbtide demo --output json 2>/dev/null | jq .lost_nothing";

#[cfg(test)]
mod tests {
    use super::whole_seconds;

    #[test]
    fn seconds_may_have_their_unit() {
        assert_eq!((whole_seconds("6", 1), whole_seconds("6s", 1)), (Ok(6), Ok(6)));
        for text in ["0", "16s", "6ms", "1.5s", "-1"] {
            assert!(whole_seconds(text, 1).is_err(), "{text}");
        }
    }
}
