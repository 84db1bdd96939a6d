//! What a container's preStop hook does.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::shell::{self, End};

/// A container's preStop hook; one without an action is none.
#[must_use]
pub fn of(container: &Container) -> Option<&LifecycleHandler> {
    let hook = container.lifecycle.as_ref()?.pre_stop.as_ref()?;
    let acts = hook.exec.is_some() || hook.http_get.is_some() || hook.sleep.is_some() || hook.tcp_socket.is_some();
    acts.then_some(hook)
}

/// How long a hook sleeps that does nothing else: the sleep action, `sleep 5`, `sh -c "sleep 5"`.
#[must_use]
pub fn sleep(hook: &LifecycleHandler) -> Option<Duration> {
    if let Some(action) = &hook.sleep {
        return Some(Duration::from_secs(u64::try_from(action.seconds).ok()?));
    }
    let command: Vec<&str> = hook.exec.as_ref()?.command.iter().flatten().map(String::as_str).collect();
    let script;
    let words: Vec<&str> = match command.as_slice() {
        [shell, flag, text] if is_shell(shell) && flag.starts_with('-') && flag.ends_with('c') => {
            script = text.trim().trim_end_matches(';').trim();
            script.split_whitespace().collect()
        }
        words => words.to_vec(),
    };
    sleep_of(&words)
}

fn sleep_of(words: &[&str]) -> Option<Duration> {
    let words = match words {
        ["exec", rest @ ..] => rest,
        words => words,
    };
    match words {
        [program, length] if base_name(program) == "sleep" => seconds(length),
        _ => None,
    }
}

/// How long a hook takes at least, by the sleeps of known length in it, whatever else it does:
/// `sh -c "sleep 20; nginx -s quit; sleep 5"`.
#[must_use]
pub fn at_least(hook: &LifecycleHandler) -> Duration {
    if let Some(only) = sleep(hook) {
        return only;
    }
    let words: Vec<&str> =
        hook.exec.iter().flat_map(|exec| exec.command.iter().flatten()).map(String::as_str).collect();
    let words = match words.as_slice() {
        [busybox, rest @ ..] if base_name(busybox) == "busybox" => rest,
        words => words,
    };
    let Some((_, script)) = shell::script(words) else {
        return sleep_of(words).unwrap_or_default();
    };
    let mut sum = Duration::ZERO;
    for command in shell::commands(script) {
        let words: Vec<&str> = command.text.split_whitespace().collect();
        // What stands behind another kind of command need not be run.
        let goes_on = match words.as_slice() {
            ["exit" | "return" | "exec" | "if" | "for" | "while" | "until" | "case" | "{", ..] => false,
            [first, ..] => !first.starts_with('('),
            [] => true,
        };
        if matches!(command.end, End::Then | End::And | End::Or) {
            sum = sum.saturating_add(sleep_of(&words).unwrap_or_default());
        }
        if !goes_on || !matches!(command.end, End::Then | End::And) {
            break;
        }
    }
    sum
}

/// Whether a hook is ebbtide's blocking one.
#[must_use]
pub fn is_app_stop(hook: &LifecycleHandler) -> bool {
    let path = hook.http_get.as_ref().and_then(|get| get.path.as_deref()).unwrap_or_default();
    path == APP_STOP || path.strip_prefix(APP_STOP).is_some_and(|rest| rest.starts_with('?'))
}

/// The number of a hook's or probe's port; `None` for a name.
#[must_use]
pub fn number(port: &IntOrString) -> Option<i32> {
    match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(text) => text.parse().ok(),
    }
}

/// Whether a command is a shell.
#[must_use]
pub fn is_shell(program: &str) -> bool {
    matches!(base_name(program), "sh" | "bash" | "ash" | "dash" | "zsh" | "ksh" | "busybox")
}

/// `sleep` of `/bin/sleep`.
#[must_use]
pub fn base_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or_default()
}

/// As coreutils' sleep reads it: `5`, `0.5`, `5s`, `1m`.
fn seconds(text: &str) -> Option<Duration> {
    let (number, unit) = match text.char_indices().last()? {
        (at, unit @ ('s' | 'm' | 'h')) => (&text[..at], unit),
        _ => (text, 's'),
    };
    let factor = match unit {
        'm' => 60.0,
        'h' => 3600.0,
        _ => 1.0,
    };
    let number: f64 = number.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)?;
    Duration::try_from_secs_f64(number * factor).ok()
}

/// The admin port's path of the blocking hook.
pub const APP_STOP: &str = "/app-stop";
