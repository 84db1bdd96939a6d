//! Rules about whether the app hears that it shall stop.

use serde_json::{Value, json};

use crate::k8s::check::{Input, Report, Rule, Severity, facts};
use crate::k8s::hook;
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
            let path = workload.in_container(place, "/command");
            match command.as_slice() {
                [manager, verb, ..] if runs_scripts(manager, verb) => {
                    let message = format!(
                        "container {} starts its app by `{}`, which is then the process that gets SIGTERM",
                        place.container.name,
                        command.join(" "),
                    );
                    report.add(workload, &path, message);
                }
                [shell, rest @ ..] if hook::is_shell(shell) => {
                    if let Some((index, script)) = script(rest) {
                        look_at_script(workload, place, shell, index + 1, script, report);
                    }
                }
                _ => {}
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
    let Some(last) = left_to_shell(script) else { return };
    let name = &place.container.name;
    let shell = hook::base_name(shell);
    let what = if is_simple(last) { format!("`{last}`") } else { "its script".to_owned() };
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
    if is_simple(last) {
        let at = script.rfind(last).unwrap_or_default();
        let better = format!("{}exec {}", &script[..at], &script[at..]);
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

/// The script behind a shell's `-c`, and its index.
fn script<'a>(arguments: &[&'a str]) -> Option<(usize, &'a str)> {
    let is_flag = |argument: &&str| {
        let letters = argument.strip_prefix('-').unwrap_or_default();
        letters.contains('c') && letters.chars().all(|c| c.is_ascii_lowercase())
    };
    let index = arguments.iter().position(is_flag)? + 1;
    Some((index, arguments.get(index)?))
}

/// The last command of a script that the shell runs as its child; `None` if it hands itself over, cares for signals,
/// or has one command only, which every current shell execs.
fn left_to_shell(script: &str) -> Option<&str> {
    let mut words = script.split(|c: char| c.is_whitespace() || matches!(c, ';' | '(' | '&' | '|'));
    let cares = |word: &str| {
        matches!(hook::base_name(word), "exec" | "trap" | "tini" | "dumb-init" | "catatonit" | "s6-svscan")
    };
    if words.any(cares) {
        return None;
    }
    let script = script.trim().trim_end_matches(';').trim_end();
    let mut commands = script.split(['\n', ';', '&', '|']).map(str::trim);
    let mut commands = commands.by_ref().filter(|command| !command.is_empty() && !command.starts_with('#'));
    let first = commands.next()?;
    let last = commands.last()?;
    // `set -e` and the like run nothing.
    let rest_is_nothing =
        first.starts_with("set ") && !script.contains(['&', '|']) && script.matches(['\n', ';']).count() == 1;
    if rest_is_nothing { None } else { Some(last) }
}

/// Whether `exec` before it, and nothing else, is what is missing.
fn is_simple(command: &str) -> bool {
    let first = command.split_whitespace().next().unwrap_or_default();
    let is_word = !first.contains('=') && !matches!(first, "done" | "fi" | "esac" | "wait" | "}" | "cd" | "export");
    is_word && !command.contains(['(', ')', '{', '}', '`', '"', '\'', '<', '>'])
}

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
