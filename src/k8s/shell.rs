//! How a shell takes a script apart into commands, as far as the short ones in manifests go.

use super::hook;

/// One command of a script, with its words and redirections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command<'a> {
    /// As it stands there.
    pub text: &'a str,
    /// Where in the script.
    pub at: usize,
    /// What stands behind it.
    pub end: End,
}

/// How a command is joined to the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// `;`, the end of the line or of the script.
    Then,
    /// `&&`
    And,
    /// `||`
    Or,
    /// `|`
    Pipe,
    /// `&`
    Background,
}

/// The commands of a script. What stands in quotes or parentheses belongs to the command around it.
#[must_use]
pub fn commands(script: &str) -> Vec<Command<'_>> {
    let mut found = Vec::new();
    let (mut start, mut before, mut depth) = (0, '\n', 0_usize);
    let mut quote: Option<char> = None;
    let mut chars = script.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map(|(_, c)| *c);
        let end = match (quote, c) {
            (Some(open), c) if c == open => {
                quote = None;
                None
            }
            (None | Some('"' | '`'), '\\') => {
                chars.next();
                None
            }
            (Some(_), _) => None,
            (None, '\'' | '"' | '`') => {
                quote = Some(c);
                None
            }
            (None, '(') => {
                depth += 1;
                None
            }
            (None, ')') => {
                depth = depth.saturating_sub(1);
                None
            }
            (None, _) if depth > 0 => None,
            (None, '#') if before.is_whitespace() || matches!(before, ';' | '&' | '|') => Some(End::Then),
            (None, '\n' | ';') => Some(End::Then),
            (None, '&') if next == Some('&') => Some(End::And),
            // Of a redirection: `2>&1`, `&>log`.
            (None, '&') if matches!(before, '>' | '<') || next == Some('>') => None,
            (None, '&') => Some(End::Background),
            (None, '|') if next == Some('|') => Some(End::Or),
            (None, '|') if before == '>' => None,
            (None, '|') => Some(End::Pipe),
            (None, _) => None,
        };
        before = c;
        let Some(end) = end else { continue };
        found.extend(command(script, start, at, end));
        match c {
            '#' => while chars.next_if(|(_, c)| *c != '\n').is_some() {},
            '&' | '|' => drop(chars.next_if(|(_, c)| matches!(c, '&' | '|'))),
            _ => {}
        }
        start = chars.peek().map_or(script.len(), |(at, _)| *at);
    }
    found.extend(command(script, start, script.len(), End::Then));
    found
}

fn command(script: &str, start: usize, stop: usize, end: End) -> Option<Command<'_>> {
    let text = script.get(start..stop)?;
    let at = start + (text.len() - text.trim_start().len());
    let text = text.trim();
    (!text.is_empty()).then_some(Command { text, at, end })
}

/// The script behind a shell's `-c`, and its index in the command line, whose first word is the shell.
#[must_use]
pub fn script<'a>(words: &[&'a str]) -> Option<(usize, &'a str)> {
    let is_flag = |word: &&str| {
        let letters = word.strip_prefix('-').unwrap_or_default();
        letters.contains('c') && letters.chars().all(|c| c.is_ascii_lowercase())
    };
    let index = words.iter().skip(1).position(is_flag)? + 2;
    words.first().filter(|shell| hook::is_shell(shell))?;
    Some((index, words.get(index)?))
}

// === impl Command ===

impl<'a> Command<'a> {
    /// What is run: the first word that is no keyword of the shell.
    #[must_use]
    pub fn program(&self) -> &'a str {
        let words = self.text.split_whitespace().map(|word| word.trim_start_matches('('));
        let mut words = words.filter(|word| !matches!(*word, "" | "then" | "else" | "do" | "{" | "!" | "time"));
        hook::base_name(words.next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_taken_apart_where_a_shell_does() {
        use End::{And, Background, Or, Pipe, Then};
        for (script, expected) in [
            ("", &[][..]),
            ("server", &[("server", Then)]),
            ("server > log 2>&1", &[("server > log 2>&1", Then)]),
            ("server &> log", &[("server &> log", Then)]),
            ("setup && server;", &[("setup", And), ("server", Then)]),
            ("setup &&\n  server\n", &[("setup", And), ("server", Then)]),
            ("setup; server &", &[("setup", Then), ("server", Background)]),
            ("server || echo no", &[("server", Or), ("echo no", Then)]),
            ("server 2>&1 | tee log", &[("server 2>&1", Pipe), ("tee log", Then)]),
            ("server |& tee log", &[("server", Pipe), ("tee log", Then)]),
            ("echo 'a; b' \"c && d\" `e; f`; server", &[("echo 'a; b' \"c && d\" `e; f`", Then), ("server", Then)]),
            ("echo it\\'s; server", &[("echo it\\'s", Then), ("server", Then)]),
            ("server --a \\\n  --b", &[("server --a \\\n  --b", Then)]),
            ("# exec it; later\nserver # now; or never", &[("server", Then)]),
            ("server --tag a#b; x", &[("server --tag a#b", Then), ("x", Then)]),
            ("server $(a; b | c)", &[("server $(a; b | c)", Then)]),
        ] {
            let found = commands(script);
            let told: Vec<(&str, End)> = found.iter().map(|one| (one.text, one.end)).collect();
            assert_eq!(told, expected, "{script:?}");
            assert!(found.iter().all(|one| script[one.at..].starts_with(one.text)), "{script:?}: {found:?}");
        }
    }
}
