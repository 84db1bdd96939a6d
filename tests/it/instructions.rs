//! Owns tests of the rule that hot paths need more instructions only with a note. They are counted in
//! `benches/instructions`.

#[path = "../../benches/instructions/baseline.rs"]
mod baseline;

use baseline::{Baseline, Recorded, TOLERANCE, Verdict, growth};

use crate::tidy::read;

fn one(count: u64) -> Baseline {
    let row = Recorded { name: "h1".into(), count, note: "as \"it\" is".into() };
    Baseline { facts: vec![("glibc".into(), "2.36".into())], rows: vec![row] }
}

#[test]
fn what_is_written_can_be_read() {
    let baseline = one(1000);
    assert_eq!(Baseline::parse(&baseline.render()), Ok(baseline));
}

#[test]
fn the_file_is_as_it_would_be_written() {
    let text = read("benches/instructions/baseline.toml");
    assert_eq!(Baseline::parse(&text).unwrap().render(), text);
}

#[test]
fn faults_are_told_with_their_line() {
    for (text, fault) in [
        ("[a]\ncount = 1\nnote = \"why\"\n[a]", "line 4: the second of this name: [a]"),
        ("[a]\ncount = many", "line 2: not a number: count = many"),
        ("[a]\nnote = why", "line 2: not a string: note = why"),
        ("count = 1", "line 1: unknown key: count = 1"),
        ("[a]\ncount", "line 2: neither [name] nor key = value: count"),
        ("[a]\ncount = 1", "a: a row has a count and a note"),
        ("[a]\nnote = \"why\"", "a: a row has a count and a note"),
        ("[a]\ncount = 1\nnote = \" \"", "a: a row has a count and a note"),
    ] {
        assert_eq!(Baseline::parse(text), Err(fault.to_owned()), "{text}");
    }
}

#[test]
fn growth_beyond_the_tolerance_fails() {
    let baseline = one(1000);
    for (count, verdict) in [
        (1000, Verdict::Same),
        (1050, Verdict::Same),
        (1051, Verdict::Grown),
        (950, Verdict::Same),
        (949, Verdict::Shrunk),
    ] {
        assert_eq!(baseline.judge("h1", count), verdict, "{count}");
    }
    assert_eq!(baseline.judge("h2", 1000), Verdict::New);
    assert!(growth(1000, 1051) > TOLERANCE && growth(1000, 1050) <= TOLERANCE);
}

#[test]
fn a_count_is_raised_with_a_note_alone() {
    let mut baseline = one(1000);
    let said = baseline.update("h1", 1100, None);
    assert_eq!((baseline.rows[0].count, said.contains("--note")), (1000, true), "{said}");
    baseline.update("h1", 1100, Some("a check more"));
    assert_eq!(baseline.row("h1").map(|row| (row.count, row.note.as_str())), Some((1100, "a check more")));
}

#[test]
fn small_steps_do_not_add_up() {
    let mut baseline = one(1000);
    for count in [1020, 1040, 1060] {
        baseline.update("h1", count, None);
    }
    assert_eq!(baseline.judge("h1", 1060), Verdict::Grown);
}

#[test]
fn a_count_is_lowered_without_a_note() {
    let mut baseline = one(1000);
    baseline.update("h1", 995, None);
    assert_eq!(baseline.rows[0].count, 1000, "that is noise");
    baseline.update("h1", 900, None);
    assert_eq!((baseline.rows[0].count, baseline.rows[0].note.as_str()), (900, "as \"it\" is"));
    baseline.update("h2", 5, None);
    assert_eq!(baseline.row("h2").map(|row| row.count), Some(5));
}
