//! Checks that several entities share. A check adds to a list, so that a caller hears of everything at once.

use std::collections::BTreeMap;

use serde::Serialize;

pub type Labels = BTreeMap<String, String>;

/// One field that cannot be as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Complaint {
    pub field: String,
    pub message: String,
}

/// What is wrong with a request, all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Complaints(pub Vec<Complaint>);

impl Complaints {
    pub fn add(&mut self, field: &str, message: impl Into<String>) {
        self.0.push(Complaint {
            field: field.to_owned(),
            message: message.into(),
        });
    }

    pub fn or<T>(self, value: T) -> Result<T, Self> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }

    /// A name as Kubernetes has it: it becomes part of objects' names and labels.
    pub fn dns_label(&mut self, field: &str, text: &str) {
        if !is_dns_label(text) {
            self.add(
                field,
                format!(
                    "{} must be 1 to 63 lower-case letters, digits and hyphens, and begin and end with a letter or digit",
                    shown(text)
                ),
            );
        }
    }

    pub fn at_most(&mut self, field: &str, text: &str, characters: usize) {
        if text.chars().count() > characters {
            self.add(field, format!("must have at most {characters} characters"));
        }
        if text.chars().any(|c| c.is_control() && c != '\n' && c != '\t') {
            self.add(field, "must not have control characters");
        }
    }

    pub fn labels(&mut self, field: &str, labels: &Labels) {
        if labels.len() > 64 {
            self.add(field, "must have at most 64 labels");
        }
        for (key, value) in labels.iter().take(64) {
            if !is_label_key(key) {
                self.add(
                    field,
                    format!("{} is not a label key as Kubernetes has them", shown(key)),
                );
            }
            if !(value.is_empty() || is_label_part(value)) {
                self.add(
                    field,
                    format!(
                        "the value of {} is not a label value as Kubernetes has them",
                        shown(key)
                    ),
                );
            }
        }
    }
}

fn shown(text: &str) -> String {
    let short: String = text.chars().take(80).collect();
    format!("{short:?}")
}

pub fn is_dns_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=63).contains(&text.len())
        && text.chars().all(|c| inner(c) || c == '-')
        && text.starts_with(inner)
        && text.ends_with(inner)
}

pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_label)
}

fn is_label_part(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_dns_subdomain(prefix) && is_label_part(name),
        None => is_label_part(text),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("cert-manager", true)]
    #[case("a", true)]
    #[case("", false)]
    #[case("-a", false)]
    #[case("a-", false)]
    #[case("A", false)]
    #[case("a.b", false)]
    #[case("ä", false)]
    fn names(#[case] text: &str, #[case] good: bool) {
        assert_eq!(is_dns_label(text), good);
        assert!(!is_dns_label(&"a".repeat(64)));
    }

    #[test]
    fn labels_are_checked_one_by_one() {
        let mut complaints = Complaints::default();
        let labels: Labels = [
            ("team", "a"),
            ("x/y/z", "a"),
            ("b", "not ok"),
            ("example.com/c", ""),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        complaints.labels("labels", &labels);
        assert_eq!(complaints.0.len(), 2, "{complaints:?}");
    }
}
