//! Names of children: as the originals named them wherever that is possible.

pub use gantry_kit::names::{dns_label, label_value};

/// `<prefix>-<name>`, shortened and made a valid DNS label where the root's name is too long or has dots.
pub fn child(prefix: &str, name: &str) -> String {
    dns_label(&format!("{prefix}-{name}"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("echo", "mcpserver-echo")]
    #[case("a.b", "mcpserver-a-b-")]
    #[case(
        "x23456789012345678901234567890123456789012345678901234567890",
        "mcpserver-x2345678901234567890123456789012345678901234-"
    )]
    fn names_are_kept_or_made_valid(#[case] name: &str, #[case] start: &str) {
        let made = child("mcpserver", name);
        assert!(made.starts_with(start), "{made}");
        assert!(made.len() <= 63);
        assert_eq!(made, dns_label(&made), "valid as it is");
    }

    #[test]
    fn different_names_stay_different() {
        assert_ne!(child("mcpserver", "a.b"), child("mcpserver", "a-b"));
    }
}
