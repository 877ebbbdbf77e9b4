//! How long texts can be that a pattern matches, in characters.

use regex_syntax::hir::{Hir, HirKind, Look};

use super::{pattern, pattern::Budget, schema::Count};

/// What the whole text has to have, whatever is around the match. When in doubt, any length.
pub fn of(pattern: &str, budget: &mut Budget) -> Count {
    let Some(hir) = pattern::parse(pattern, budget) else {
        return Count::default();
    };
    let looks = hir.properties();
    let anchored =
        looks.look_set_prefix().contains(Look::Start) && looks.look_set_suffix().contains(Look::End);
    let Count { min, max } = span(&hir);
    Count {
        min,
        max: max.filter(|_| anchored),
    }
}

/// The length of a match alone.
fn span(hir: &Hir) -> Count {
    let exactly = |length: u64| Count {
        min: length,
        max: Some(length),
    };
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => exactly(0),
        HirKind::Class(_) => exactly(1),
        HirKind::Literal(literal) => match std::str::from_utf8(&literal.0) {
            Ok(text) => exactly(text.chars().count() as u64),
            Err(_) => Count::default(),
        },
        HirKind::Capture(group) => span(&group.sub),
        HirKind::Repetition(repeated) => {
            let once = span(&repeated.sub);
            let most = repeated.max.map(u64::from);
            Count {
                min: once.min.saturating_mul(repeated.min.into()),
                max: once
                    .max
                    .zip(most)
                    .map(|(length, times)| length.saturating_mul(times)),
            }
        }
        HirKind::Concat(parts) => parts.iter().map(span).fold(exactly(0), |all, part| Count {
            min: all.min.saturating_add(part.min),
            max: all.max.zip(part.max).map(|(all, part)| all.saturating_add(part)),
        }),
        HirKind::Alternation(branches) => {
            let spans = branches.iter().map(span);
            let widest = spans.reduce(|one, other| Count {
                min: one.min.min(other.min),
                max: one.max.zip(other.max).map(|(one, other)| one.max(other)),
            });
            widest.unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("^[a-z]{3,10}$", 3, Some(10))]
    #[case("[a-z]{3,10}", 3, None)]
    #[case("^(ab|c)+é$", 2, None)]
    #[case("^(?:äö|c)x?$", 1, Some(3))]
    #[case("^a$|^bcd$", 1, Some(3))]
    #[case("^a|bcd$", 1, None)]
    #[case("(?m)^ab$", 2, None)]
    #[case("(^)?ab$", 2, None)]
    #[case("(", 0, None)]
    fn lengths(#[case] pattern: &str, #[case] min: u64, #[case] max: Option<u64>) {
        assert_eq!(of(pattern, &mut Budget::default()), Count { min, max });
    }
}
