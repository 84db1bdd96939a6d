use serde_json::{Value, json};

use super::*;

fn values(text: &str) -> Vec<Value> {
    let documents = read("x.yaml", text.as_bytes()).unwrap();
    documents.iter().map(|document| document.root.as_ref().map_or(Value::Null, Node::to_value)).collect()
}

fn refusal(text: &str) -> String {
    read("x.yaml", text.as_bytes()).unwrap_err().to_string()
}

#[test]
fn words_mean_what_they_mean_to_kubectl() {
    for (word, meant) in [
        ("yes", json!(true)),
        ("Off", json!(false)),
        ("~", json!(null)),
        ("0440", json!(288)),
        ("0o17", json!(15)),
        ("0x1F", json!(31)),
        ("1_000", json!(1000)),
        ("-7", json!(-7)),
        ("089", json!(89)),
        ("1e3", json!(1000)),
        ("0.5", json!(0.5)),
        (".5", json!(0.5)),
        ("18446744073709551615", json!(18_446_744_073_709_551_615_u64)),
        ("10s", json!("10s")),
        ("1.2.3", json!("1.2.3")),
        ("1.", json!(1)),
        (".", json!(".")),
        ("2001-12-14", json!("2001-12-14")),
        ("'yes'", json!("yes")),
        ("\"0440\"", json!("0440")),
        ("!!str 0440", json!("0440")),
        ("!!int '12'", json!(12)),
    ] {
        assert_eq!(values(&format!("a: {word}")), [json!({"a": meant})], "{word}");
    }
}

#[test]
fn documents_are_cut_at_their_markers_and_keep_their_text() {
    let text = "# head\n---\na: 1\n--- # two\n---\r\nb: |\n  x\n  --- no marker\n---x: 1\n";
    let documents = read("x.yaml", text.as_bytes()).unwrap();
    let all: String = documents.iter().map(|document| document.text.as_str()).collect();
    assert_eq!(all, text);
    assert_eq!(values(text), [json!({"a": 1}), Value::Null, json!({"b": "x\n--- no marker\n", "---x": 1})]);
}

#[test]
fn every_value_has_its_place() {
    let text = "---\na:\n  - b: 1\n    c/d: [x, y]\n---\ne: &e {f: 1}\ng: *e\n";
    let documents = read("x.yaml", text.as_bytes()).unwrap();
    let place = |document: usize, pointer: &str| {
        let place = documents[document].root.as_ref().unwrap().place_of(pointer);
        (place.line, place.column)
    };
    assert_eq!(place(0, ""), (2, 1));
    assert_eq!(place(0, "/a/0/b"), (3, 5));
    assert_eq!(place(0, "/a/0/c~1d/1"), (4, 14));
    assert_eq!(place(0, "/a/0/missing/x"), (3, 5), "the nearest that is there");
    assert_eq!(place(1, "/e/f"), (6, 8));
    assert_eq!(place(1, "/g/f"), (7, 4), "what an alias brings stands where the alias does");
}

#[test]
fn merge_keys_bring_what_is_not_there() {
    let text = "x: &x {a: 1, b: 2}\ny: &y {b: 3, c: 4}\nz: {<<: [*x, *y], a: 0}\nq: {\"<<\": 1}\n";
    let all = values(text);
    assert_eq!(all[0]["z"], json!({"a": 0, "b": 2, "c": 4}));
    assert_eq!(all[0]["q"], json!({"<<": 1}), "a quoted one is a key like any other");
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    for (text, expected) in [
        ("a: 1\n b: 2\n", "x.yaml:2:3: is not valid YAML: "),
        ("a: [1\n", "x.yaml:2:1: is not valid YAML: "),
        ("a: 1\nb: 2\na: 3\n", "x.yaml:3:1: the key a stands in this mapping already, in line 1"),
        ("a: &a [*a]\n", "x.yaml:1:8: this alias stands inside of what it stands for"),
        ("a: *b\n", "x.yaml:1:4: is not valid YAML: "),
        ("a: !x 1\n", "x.yaml:1:"),
        ("? [a]\n: 1\n", "x.yaml:1:3: a key must be a plain word"),
        ("a: {<<: 1}\n", "x.yaml:1:9: << takes a mapping or a list of mappings"),
        ("a: 1\n...\nb: 2\n", "x.yaml:3:1: a second document begins here: write --- before it"),
        ("---\na: 1\n---\nb: ]\n", "x.yaml:4:"),
    ] {
        let said = refusal(text);
        assert!(said.starts_with(expected), "{text:?}: {said}");
    }
}

#[test]
fn no_input_is_too_much() {
    let deep = "[".repeat(200) + &"]".repeat(200);
    assert!(refusal(&deep).contains("is nested more than 64 levels deep"), "{}", refusal(&deep));
    let bomb: String = std::iter::once("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned())
        .chain((1..20).map(|n| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(","))))
        .collect();
    assert!(refusal(&bomb).contains("holds more than 1000000 values"), "{}", refusal(&bomb));
    let long = "a: b\n".repeat(LARGEST / 5 + 1);
    assert!(refusal(&long).starts_with("x.yaml:1677722:4: is longer than 8 MiB"), "{}", refusal(&long));
    assert_eq!(
        read("x.yaml", b"a: 1\nb: \xff\n").unwrap_err().to_string(),
        "x.yaml:2:4: is no UTF-8 text from here on"
    );
}

#[test]
fn json_is_read_as_well() {
    assert_eq!(values("{\"a\": [1, \"x\", null, true]}"), [json!({"a": [1, "x", null, true]})]);
    assert_eq!(values("\u{feff}a: 1\r\nb: 2\r\n"), [json!({"a": 1, "b": 2})]);
}
