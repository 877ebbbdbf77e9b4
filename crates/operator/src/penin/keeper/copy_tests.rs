//! Appending, going on after a crash at any byte, and every way to disagree.

use gantry_ledger::{Entry, Signer};
use proptest::prelude::*;
use rstest::rstest;

use super::*;

const NAME: &str = "penin/ns/demo";

/// A chain in parts of the given sizes.
fn chain(signer: &Signer, sizes: &[usize], word: &str) -> Vec<Segment> {
    let mut head = Head::genesis(NAME);
    (1..)
        .zip(sizes)
        .map(|(number, size)| {
            let mut lines = Vec::new();
            for step in 0..*size {
                let entry = Entry::next(&head, "now", json!({"step": step, "reason": format!("{word} Ω")}));
                head = entry.head();
                lines.push(entry.to_line());
            }
            Segment {
                number,
                lines,
                head: Some(signer.sign(NAME, &head)),
                public_key: Some(signer.public_key().to_pem()),
                ..Segment::default()
            }
        })
        .collect()
}

/// Appends what is due, as the volume does.
fn follow(copy: &mut Copy, segments: &[Segment]) -> Result<(), Disagreement> {
    let due = due(NAME, copy, segments)?;
    copy.key = due.key.or(copy.key.take());
    copy.entries.extend(due.entries);
    copy.heads.push_str(&due.heads);
    Ok(())
}

fn copied(segments: &[Segment]) -> Copy {
    let mut copy = Copy::default();
    follow(&mut copy, segments).unwrap();
    copy
}

fn lines(segments: &[Segment]) -> String {
    let lines = segments.iter().flat_map(|segment| &segment.lines);
    lines.map(|line| line.clone() + "\n").collect()
}

#[test]
fn a_copy_follows_its_chain_over_parts_and_is_whole_by_itself() {
    let signer = Signer::generate().unwrap();
    let mut copy = Copy::default();
    assert_eq!(due(NAME, &copy, &[]), Ok(Due::default()), "nothing yet");
    for sizes in [&[1][..], &[3], &[3, 2], &[3, 2, 1]] {
        let segments = chain(&signer, sizes, "a");
        follow(&mut copy, &segments).unwrap();
        assert_eq!(String::from_utf8_lossy(&copy.entries), lines(&segments));
        assert!(due(NAME, &copy, &segments).unwrap().is_empty(), "once only");
    }
    let known: Vec<u64> = heads(&copy.heads).unwrap().iter().map(|head| head.seq).collect();
    assert_eq!(known, [1, 3, 5, 6]);
    let (head, count) = check(NAME, &copy, &signer.public_key()).unwrap();
    assert_eq!((head.seq, count), (6, 4));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Killed at any byte of any file, also when the chain went on meanwhile: the copy is the same in the end, and no byte
    /// of it was ever taken back.
    #[test]
    fn a_crash_at_any_byte_is_made_good(first in 1_usize..4, more in 0_usize..3, at in 0.0..1.0_f64) {
        let signer = Signer::generate().unwrap();
        let before = chain(&signer, &[first], "a");
        let after = chain(&signer, &[first + more], "a");
        let written = due(NAME, &Copy::default(), &before).unwrap();
        let total = written.entries.len() + written.heads.len();
        let survived = (at * total as f64) as usize;
        // The files are written one after the other.
        let entries = survived.min(written.entries.len());
        let mut copy = Copy {
            entries: written.entries[..entries].to_vec(),
            heads: written.heads[..survived - entries].to_owned(),
            key: written.key,
        };
        let torn = copy.clone();
        follow(&mut copy, &after).unwrap();
        prop_assert_eq!(String::from_utf8_lossy(&copy.entries), lines(&after));
        prop_assert!(copy.entries.starts_with(&torn.entries) && copy.heads.starts_with(&torn.heads));
        let (head, _) = check(NAME, &copy, &signer.public_key()).unwrap();
        prop_assert_eq!(heads(&copy.heads).unwrap().last().map(|last| last.seq), Some(head.seq));
        prop_assert!(due(NAME, &copy, &after).unwrap().is_empty());
    }
}

type Edit = fn(&mut Copy, &mut Vec<Segment>);

fn text(copy: &mut Copy, edit: impl Fn(String) -> String) {
    copy.entries = edit(String::from_utf8_lossy(&copy.entries).into_owned()).into_bytes();
}

#[rstest]
#[case::an_entry_of_the_chain_altered(
    |_: &mut Copy, chain: &mut Vec<Segment>| chain[0].lines[1] = chain[0].lines[1].replace("now", "then"),
    "ConfigMaps are not what they were: entry 2 was altered"
)]
#[case::a_part_of_the_chain_removed(
    |_: &mut Copy, chain: &mut Vec<Segment>| { chain.remove(0); },
    "ConfigMaps are not what they were: entries 1 to 3 are missing"
)]
#[case::a_head_of_the_chain_removed(|_: &mut Copy, chain: &mut Vec<Segment>| chain[1].head = None, "no signed head")]
#[case::the_chain_cut_by_somebody_without_the_key(
    |_: &mut Copy, chain: &mut Vec<Segment>| { chain[1].lines.pop(); },
    "the record was cut: it ends with entry 4"
)]
#[case::the_newest_part_removed(|_: &mut Copy, chain: &mut Vec<Segment>| { chain.pop(); }, "was cut: it ends with entry 3, and the copy with entry 5")]
#[case::the_whole_chain_removed(|_: &mut Copy, chain: &mut Vec<Segment>| chain.clear(), "was cut: it ends with entry 0, and the copy with entry 5")]
#[case::an_entry_of_the_copy_altered(
    |copy: &mut Copy, _: &mut Vec<Segment>| text(copy, |all| all.replacen("now", "then", 1)),
    "the copy on the volume is not what it was: entry 1 was altered"
)]
#[case::the_copy_cut(
    |copy: &mut Copy, _: &mut Vec<Segment>| text(copy, |all| all.lines().take(2).map(|line| line.to_owned() + "\n").collect()),
    "the copy on the volume is not what it was: the record was cut: it ends with entry 2"
)]
#[case::rubbish_at_the_end_of_the_copy(|copy: &mut Copy, _: &mut Vec<Segment>| copy.entries.extend([0, 0, 0]), "line 6, after entry 5, is neither")]
#[case::a_line_of_rubbish_in_the_copy(|copy: &mut Copy, _: &mut Vec<Segment>| copy.entries.extend(b"x\n"), "line 6, after entry 5")]
#[case::a_head_of_the_copy_altered(
    |copy: &mut Copy, _: &mut Vec<Segment>| copy.heads = copy.heads.replace("\"seq\":5", "\"seq\":4"),
    "the head at entry 4 proves nothing"
)]
#[case::rubbish_among_the_heads(|copy: &mut Copy, _: &mut Vec<Segment>| copy.heads.push_str("x\n"), "line 3 of its heads")]
#[case::another_key_in_the_copy(|copy: &mut Copy, _: &mut Vec<Segment>| copy.key = Some("x".into()), "public key cannot be read")]
fn what_disagrees_is_named_and_nothing_is_appended(#[case] edit: Edit, #[case] expected: &str) {
    let signer = Signer::generate().unwrap();
    let mut segments = chain(&signer, &[3, 2], "a");
    let mut copy = copied(&segments);
    edit(&mut copy, &mut segments);
    let found = due(NAME, &copy, &segments).unwrap_err();
    assert!(found.to_string().contains(expected), "{found}");
    assert!(found.cure("/data/x").contains("/data/x"));
}

/// By itself each of these is whole; only the copy tells.
#[test]
fn what_the_holder_of_the_key_did_is_found() {
    let signer = Signer::generate().unwrap();
    let copy = copied(&chain(&signer, &[3, 2], "a"));
    let shorter = due(NAME, &copy, &chain(&signer, &[3, 1], "a")).unwrap_err();
    assert_eq!(shorter, Disagreement::Cut { chain: 4, copy: 5 });
    let other = due(NAME, &copy, &chain(&signer, &[3, 3], "b")).unwrap_err();
    assert_eq!(other, Disagreement::Rewritten(1));
    let new_key = Signer::generate().unwrap();
    let found = due(NAME, &copy, &chain(&new_key, &[3, 3], "a")).unwrap_err();
    assert!(found.to_string().contains("signed it, not"), "{found}");
}

/// A disk that lost power can leave bytes that nobody wrote; they are not overwritten.
#[test]
fn a_torn_line_that_is_no_beginning_is_left_alone() {
    let signer = Signer::generate().unwrap();
    let mut copy = copied(&chain(&signer, &[2], "a"));
    copy.entries.extend([0; 8]);
    let found = due(NAME, &copy, &chain(&signer, &[3], "a")).unwrap_err();
    assert!(found.to_string().contains("line 3, after entry 2"), "{found}");
}
