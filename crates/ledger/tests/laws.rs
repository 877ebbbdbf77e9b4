//! Whatever is done to a record is found, and the right thing is said about it.

use gantry_ledger::{Entry, Fault, Head, LineFault, Signer, verify, verify_lines};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

const NAME: &str = "penin/demo";

/// A record of the given bodies.
fn record(bodies: &[Value]) -> Vec<Entry> {
    let mut head = Head::genesis(NAME);
    bodies
        .iter()
        .enumerate()
        .map(|(place, body)| {
            let entry = Entry::next(&head, format!("2026-01-01T00:00:{place:02}Z"), body.clone());
            head = entry.head();
            entry
        })
        .collect()
}

fn lines(record: &[Entry]) -> Vec<String> {
    record.iter().map(Entry::to_line).collect()
}

/// What both ways to verify say; they must agree.
fn check(record: &[Entry], known: &[Head]) -> Result<Head, Fault> {
    let start = Head::genesis(NAME);
    let outcome = verify(&start, record.to_vec(), known);
    let text = lines(record);
    assert_eq!(
        verify_lines(&start, text.iter().map(String::as_str), known),
        outcome
    );
    outcome
}

fn any_body() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(".{0,6}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn any_record(least: usize) -> impl Strategy<Value = Vec<Entry>> {
    vec(any_body(), least..7).prop_map(|bodies| record(&bodies))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_record_that_nobody_touched_is_whole(entries in any_record(0)) {
        let head = entries.last().map_or(Head::genesis(NAME), Entry::head);
        let known: Vec<Head> = entries.iter().map(Entry::head).collect();
        prop_assert_eq!(check(&entries, &known), Ok(head));
        // And from every head that was checked before.
        for (place, start) in known.iter().enumerate() {
            prop_assert_eq!(verify(start, entries[place + 1..].to_vec(), &known[place..]), Ok(head));
        }
    }

    #[test]
    fn a_changed_byte_is_found(entries in any_record(1), place in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = lines(&entries).join("\n").into_bytes();
        let place = place.index(bytes.len());
        prop_assume!(bytes[place] != byte);
        bytes[place] = byte;
        let known = [entries.last().unwrap().head()];
        // What is no longer text is found by whoever reads the text.
        if let Ok(text) = String::from_utf8(bytes) {
            let outcome = verify_lines(&Head::genesis(NAME), text.split('\n'), &known);
            prop_assert!(outcome.is_err(), "not found: {text}");
        }
    }

    #[test]
    fn a_changed_byte_is_found_without_a_known_head(entries in any_record(1), place in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = lines(&entries).join("\n").into_bytes();
        let place = place.index(bytes.len());
        prop_assume!(bytes[place] != byte);
        bytes[place] = byte;
        if let Ok(text) = String::from_utf8(bytes) {
            let outcome = verify_lines(&Head::genesis(NAME), text.split('\n'), &[]);
            prop_assert!(outcome.is_err(), "not found: {text}");
        }
    }

    #[test]
    fn a_missing_entry_is_named(mut entries in any_record(2), place in any::<prop::sample::Index>()) {
        let place = place.index(entries.len() - 1);
        let seq = entries.remove(place).seq;
        prop_assert_eq!(check(&entries, &[]), Err(Fault::Gap { first: seq, last: seq }));
    }

    #[test]
    fn a_cut_record_is_found_by_whoever_kept_a_head(mut entries in any_record(1), keep in any::<prop::sample::Index>()) {
        let head = entries.last().unwrap().head();
        let keep = keep.index(entries.len());
        entries.truncate(keep);
        prop_assert_eq!(
            check(&entries, &[head]),
            Err(Fault::Truncated { last: keep as u64, known: head.seq })
        );
    }

    #[test]
    fn moved_entries_are_found(mut entries in any_record(2), one in any::<prop::sample::Index>(), two in any::<prop::sample::Index>()) {
        let (one, two) = (one.index(entries.len()), two.index(entries.len()));
        prop_assume!(one != two);
        let (low, high) = (one.min(two), one.max(two));
        entries.swap(low, high);
        prop_assert_eq!(
            check(&entries, &[]),
            Err(Fault::Reordered { expected: low as u64 + 1, found: high as u64 + 1 })
        );
    }

    #[test]
    fn a_repeated_entry_is_found(mut entries in any_record(1), place in any::<prop::sample::Index>()) {
        let place = place.index(entries.len());
        entries.insert(place, entries[place].clone());
        let seq = place as u64 + 1;
        prop_assert_eq!(
            check(&entries, &[]),
            Err(Fault::Reordered { expected: seq + 1, found: seq })
        );
    }

    #[test]
    fn altered_content_is_named(mut entries in any_record(1), place in any::<prop::sample::Index>(), body in any_body()) {
        let place = place.index(entries.len());
        prop_assume!(Entry::next(&Head::genesis(NAME), "", body.clone()).body != entries[place].body);
        entries[place].body = body;
        let seq = entries[place].seq;
        let known = [entries.last().unwrap().head()];
        prop_assert_eq!(verify(&Head::genesis(NAME), entries, &known), Err(Fault::Altered { seq }));
    }

    /// The forger knows how the ledger works and recomputes everything: from the altered entry on, each hash is right.
    #[test]
    fn a_rewritten_record_is_found_by_whoever_kept_a_head(
        entries in any_record(1), place in any::<prop::sample::Index>(), kept in any::<prop::sample::Index>(),
    ) {
        let place = place.index(entries.len());
        let bodies: Vec<Value> = entries
            .iter()
            .enumerate()
            .map(|(at, entry)| if at == place { json!({"forged": entry.body}) } else { entry.body.clone() })
            .collect();
        let forged = record(&bodies);
        prop_assert!(check(&forged, &[]).is_ok(), "by itself it looks whole");
        let kept = kept.index(entries.len());
        let head = entries[kept].head();
        let outcome = check(&forged, &[head]);
        if kept < place {
            prop_assert!(outcome.is_ok(), "a head from before says nothing about what came after");
        } else {
            prop_assert_eq!(outcome, Err(Fault::OtherHead { seq: head.seq }));
        }
        // Put into the middle of the true record, it does not continue it.
        let mut spliced = entries.clone();
        spliced[place] = forged[place].clone();
        if place + 1 < spliced.len() {
            prop_assert_eq!(check(&spliced, &[]), Err(Fault::Rewritten { seq: place as u64 + 2 }));
        }
    }

    #[test]
    fn the_record_of_another_ledger_is_not_this_one(entries in any_record(1)) {
        prop_assert_eq!(
            verify(&Head::genesis("penin/other"), entries, &[]),
            Err(Fault::Rewritten { seq: 1 })
        );
    }
}

#[test]
fn a_signed_head_finds_what_a_forger_without_the_key_did() {
    let signer = Signer::generate().unwrap();
    let entries = record(&[json!("a"), json!("b"), json!("c")]);
    let signed = signer.sign(NAME, &entries[2].head());
    let known = signer.public_key().check(NAME, &signed).unwrap();
    assert_eq!(check(&entries, &[known]), Ok(known));
    assert_eq!(
        check(&entries[..2], &[known]),
        Err(Fault::Truncated { last: 2, known: 3 })
    );
    let forged = record(&[json!("a"), json!("B"), json!("c")]);
    assert_eq!(check(&forged, &[known]), Err(Fault::OtherHead { seq: 3 }));
}

#[test]
fn a_head_from_before_the_start_is_not_passed_over() {
    let entries = record(&[json!(1), json!(2), json!(3)]);
    assert_eq!(
        verify(&entries[1].head(), entries[2..].to_vec(), &[entries[0].head()]),
        Err(Fault::BeforeStart { start: 2, known: 1 })
    );
}

#[test]
fn a_line_that_is_none_is_named() {
    let entries = record(&[json!(1), json!(2)]);
    let text = [entries[0].to_line(), "{}".to_owned()];
    let fault = verify_lines(&Head::genesis(NAME), text.iter().map(String::as_str), &[]).unwrap_err();
    assert!(
        matches!(
            &fault,
            Fault::Line {
                line: 2,
                after: 1,
                fault: LineFault::Unreadable(_)
            }
        ),
        "{fault}"
    );
    assert!(
        fault
            .to_string()
            .starts_with("line 2, after entry 1: not an entry: "),
        "{fault}"
    );
}
