//! Rules about whether the app hears that it shall stop.

use serde_json::{Value, json};

use crate::k8s::check::{Input, Report, Rule, Severity, facts};
use crate::k8s::hook;
use crate::k8s::shell::{self, Command, End};
use crate::k8s::workload::{Place, Workload, image_name};

pub(super) static EB005: Rule = Rule {
    id: "EB005",
    name: "nobody-passes-sigterm-on",
    severity: Severity::Warning,
    summary: "The container's first process is a shell or a package manager, which does not pass SIGTERM on.",
    why: "SIGTERM goes to the container's first process alone. A shell as PID 1 ignores it while a command runs, npm \
          and its kind pass it on unreliably: the app learns nothing, works until the grace period is over, and is \
          killed with all that it has in flight.",
    fix: "Start the app itself, or exec it from the shell (`setup && exec server`), or put an init such as tini or \
          dumb-init in front.",
    run: nobody_passes,
};

fn nobody_passes(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in input.workloads.iter().filter(|workload| !facts::is_job(workload)) {
        for place in workload.apps() {
            let Some(command) = facts::command(place.container) else { continue };
            if let [manager, verb, ..] = command.as_slice()
                && runs_scripts(manager, verb)
            {
                let message = format!(
                    "container {} starts its app by `{}`, which is then the process that gets SIGTERM",
                    place.container.name,
                    command.join(" "),
                );
                report.add(workload, &workload.in_container(place, "/command"), message);
            } else if let Some((index, script)) = shell::script(&command) {
                look_at_script(workload, place, command[0], index, script, report);
            }
        }
    }
}

fn look_at_script(
    workload: &Workload<'_>,
    place: Place<'_>,
    shell: &str,
    index: usize,
    script: &str,
    report: &mut Report<'_>,
) {
    let commands = shell::commands(script);
    if is_handed_over(&commands) {
        return;
    }
    let app = app_of_chain(script, &commands);
    let name = &place.container.name;
    let shell = hook::base_name(shell);
    let what = app.map_or_else(|| "its script".to_owned(), |app| format!("`{}`", app.text));
    let message = if workload.spec.share_process_namespace == Some(true) {
        format!(
            "container {name} runs {what} under {shell}, which ends at SIGTERM and takes the app with it by SIGKILL (shareProcessNamespace)"
        )
    } else {
        format!(
            "container {name} runs {what} under {shell} as PID 1; unless this {shell} happens to exec its last command, the app never gets SIGTERM"
        )
    };
    let words = place.container.command.as_ref().map_or(0, Vec::len);
    let path = match index.checked_sub(words) {
        None => format!("/command/{index}"),
        Some(index) => format!("/args/{index}"),
    };
    let path = workload.in_container(place, &path);
    let finding = report.add(workload, &path, message);
    if let Some(app) = app {
        let better = format!("{}exec {}", &script[..app.at], &script[app.at..]);
        finding.fix(workload.object, |object| {
            if let Some(text) = object.pointer_mut(&path) {
                *text = better.into();
            }
        });
    }
}

/// `npm start`, `yarn run serve`
fn runs_scripts(manager: &str, verb: &str) -> bool {
    let name = hook::base_name(manager);
    matches!(name, "npm" | "pnpm" | "yarn" | "bun" | "npx")
        && (name == "npx" || matches!(verb, "run" | "start" | "run-script" | "serve" | "exec"))
}

/// Whether a shell hands itself over, cares for signals, or has one command only, which every current shell execs.
fn is_handed_over(commands: &[Command<'_>]) -> bool {
    let cares = |command: &Command<'_>| match command.program() {
        // With redirections alone the shell stays.
        "exec" => {
            let next = command.text.split_whitespace().skip_while(|word| *word != "exec").nth(1);
            next.is_some_and(|word| !word.contains(['>', '<']))
        }
        "trap" | "tini" | "dumb-init" | "catatonit" | "s6-svscan" => true,
        _ => false,
    };
    // `set -e` and the like run nothing.
    let is_option = |command: &&Command<'_>| command.program() == "set" && matches!(command.end, End::Then | End::And);
    let run = commands.iter().skip_while(is_option).count();
    run <= 1 || commands.iter().any(cares)
}

/// The last command, if `exec` before it, and nothing else, is what is missing: all before it is over by then, and it is
/// a program.
fn app_of_chain<'s>(script: &str, commands: &[Command<'s>]) -> Option<Command<'s>> {
    let is_chain = commands.iter().all(|command| matches!(command.end, End::Then | End::And));
    if !is_chain || script.contains(['|', '>', '<', '\\', '\'', '"', '`', '#', '(', ')', '{', '}', '[', '!']) {
        return None;
    }
    if commands.iter().any(|command| first_word(command).is_none_or(|word| KEYWORDS.contains(&word))) {
        return None;
    }
    let last = commands.last()?;
    first_word(last).filter(|word| !word.contains('=') && !BUILTINS.contains(word))?;
    Some(*last)
}

fn first_word<'s>(command: &Command<'s>) -> Option<&'s str> {
    command.text.split_whitespace().next()
}

/// With which more begins or ends than one command.
const KEYWORDS: &[&str] = &[
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "select", "function",
    "time", "coproc",
];

/// What a shell does itself, and programs that are no app.
const BUILTINS: &[&str] = &[
    ".", ":", "alias", "break", "cd", "command", "continue", "echo", "eval", "exit", "export", "false", "fg", "kill",
    "let", "local", "printf", "pwd", "read", "readonly", "return", "set", "shift", "sleep", "source", "tail", "test",
    "trap", "true", "ulimit", "umask", "unset", "wait",
];

pub(super) static EB008: Rule = Rule {
    id: "EB008",
    name: "abrupt-stop",
    severity: Severity::Warning,
    summary: "The app is stopped by a signal or a command that makes it drop what it is doing.",
    why: "Some servers take one signal for \"finish your work\" and another for \"stop now\". nginx and php-fpm drop \
          their requests at SIGTERM and finish them at SIGQUIT; Apache finishes at SIGWINCH, HAProxy at SIGUSR1. The \
          official images say so by STOPSIGNAL; a manifest or an old image that says otherwise loses requests.",
    fix: "Leave lifecycle.stopSignal out, or set it to the graceful one; in hooks use the graceful command.",
    run: abrupt,
};

fn abrupt(input: &Input<'_>, report: &mut Report<'_>) {
    for workload in &input.workloads {
        for place in workload.apps() {
            stop_signal(input, workload, place, report);
            abrupt_hook(workload, place, report);
            old_nginx(workload, place, report);
        }
    }
}

fn stop_signal(input: &Input<'_>, workload: &Workload<'_>, place: Place<'_>, report: &mut Report<'_>) {
    let Some(signal) = place.container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_deref()) else {
        return;
    };
    let name = &place.container.name;
    let path = workload.in_container(place, "/lifecycle/stopSignal");
    let image = place.container.image.as_deref().unwrap_or_default();
    if let Some((wanted, then)) = graceful(image).filter(|(wanted, _)| *wanted != signal) {
        let message = format!("container {name} is stopped by {signal}, at which {} {then}", image_name(image));
        report.add(workload, &path, message).fix(workload.object, |object| {
            if let Some(text) = object.pointer_mut(&path) {
                *text = wanted.into();
            }
        });
    }
    if workload.spec.os.is_none() {
        let message = format!("container {name} sets stopSignal, which the API server refuses without spec.os.name");
        report.add(workload, &path, message).severity(Severity::Error).fix(workload.object, |object| {
            facts::set(workload, object, "os", json!({"name": "linux"}));
        });
    }
    if let Some(version) = input.options.kube_version.filter(|version| version.minor < 33) {
        let message = format!("container {name} sets stopSignal, which Kubernetes {version} does not know");
        report.add(workload, &path, message).severity(Severity::Error);
    }
}

/// The signal at which an official image's server finishes its work, and what it does at others.
fn graceful(image: &str) -> Option<(&'static str, &'static str)> {
    let tag = image.rsplit('/').next().and_then(|last| last.split_once(':')).map_or("", |(_, tag)| tag);
    match image_name(image) {
        "nginx" | "nginx-unprivileged" => Some(("SIGQUIT", "drops its requests; SIGQUIT lets it finish them")),
        "php" if tag.contains("fpm") => Some(("SIGQUIT", "drops its requests; SIGQUIT lets it finish them")),
        "httpd" => Some(("SIGWINCH", "drops its requests; SIGWINCH lets it finish them")),
        "haproxy" => Some(("SIGUSR1", "drops its connections; SIGUSR1 lets it finish them")),
        _ => None,
    }
}

fn abrupt_hook(workload: &Workload<'_>, place: Place<'_>, report: &mut Report<'_>) {
    let command = hook::of(place.container).and_then(|hook| hook.exec.as_ref()?.command.as_ref());
    for (abrupt, graceful) in [
        ("nginx -s stop", "nginx -s quit"),
        ("apachectl stop", "apachectl graceful-stop"),
        ("apachectl -k stop", "apachectl -k graceful-stop"),
        ("httpd -k stop", "httpd -k graceful-stop"),
        ("apache2ctl stop", "apache2ctl graceful-stop"),
    ] {
        let Some(command) = command.filter(|command| command.join(" ").contains(abrupt)) else { continue };
        let path = workload.in_container(place, "/lifecycle/preStop/exec/command");
        let message = format!(
            "the preStop hook of container {} runs `{abrupt}`, which drops the requests in flight; `{graceful}` lets \
             them finish",
            place.container.name
        );
        let (word, better) = (abrupt.rsplit(' ').next().unwrap_or_default(), graceful.rsplit(' ').next());
        let better: Value = command
            .iter()
            .map(|part| match part.as_str() {
                part if part == word => better.unwrap_or_default().to_owned(),
                part => part.replace(abrupt, graceful),
            })
            .collect();
        report.add(workload, &path, message).fix(workload.object, |object| {
            if let Some(command) = object.pointer_mut(&path) {
                *command = better;
            }
        });
    }
}

/// The official image says STOPSIGNAL SIGQUIT since 1.19.5; 1.18 was built anew with it.
fn old_nginx(workload: &Workload<'_>, place: Place<'_>, report: &mut Report<'_>) {
    let image = place.container.image.as_deref().unwrap_or_default();
    let is_official = matches!(
        image.rsplit_once(':').map(|(name, _)| name),
        Some("nginx" | "docker.io/nginx" | "library/nginx" | "docker.io/library/nginx")
    );
    let minor = image.rsplit_once(":1.").and_then(|(_, tag)| tag.split(['.', '-']).next()?.parse::<u32>().ok());
    if is_official && minor.is_some_and(|minor| minor < 18) && hook::of(place.container).is_none() {
        let message = format!(
            "container {} runs {image}, which is stopped by SIGTERM, at which nginx drops its requests; later images \
             are stopped by SIGQUIT",
            place.container.name
        );
        report.add(workload, &workload.in_container(place, "/image"), message);
    }
}
