//! The metrics that are served, and how their values are written. Pure.

/// A closed set: what a counting proxy says about the model behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Metric {
    RequestsPerSecond,
    QueueDepth,
    InFlight,
}

impl Metric {
    pub const ALL: [Self; 3] = [Self::RequestsPerSecond, Self::QueueDepth, Self::InFlight];

    /// The same name at the proxy and here.
    pub fn name(self) -> &'static str {
        match self {
            Self::RequestsPerSecond => "gantry_model_requests_per_second",
            Self::QueueDepth => "gantry_model_queue_depth",
            Self::InFlight => "gantry_model_in_flight",
        }
    }

    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|metric| metric.name() == name)
    }

    /// Seconds that the value was taken over, when it is not of one moment.
    pub fn window(self) -> Option<u32> {
        matches!(self, Self::RequestsPerSecond).then_some(30)
    }
}

/// As a Kubernetes quantity, in thousandths.
pub fn quantity(value: f64) -> String {
    let thousandths = (value * 1000.0).round() as i64;
    if thousandths % 1000 == 0 {
        (thousandths / 1000).to_string()
    } else {
        format!("{thousandths}m")
    }
}

/// A model's name as a label that selectors can ask for: `phi:3b` becomes `phi-3b`.
pub fn label_value(name: &str) -> String {
    let mapped: String = name
        .chars()
        .take(63)
        .map(|char| match char {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '-' => char,
            _ => '-',
        })
        .collect();
    mapped
        .trim_matches(|char: char| !char.is_ascii_alphanumeric())
        .to_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0.0, "0")]
    #[case(3.0, "3")]
    #[case(0.2, "200m")]
    #[case(1.0 / 3.0, "333m")]
    #[case(12.3456, "12346m")]
    #[case(1e9, "1000000000")]
    fn quantities(#[case] value: f64, #[case] text: &str) {
        assert_eq!(quantity(value), text);
    }

    #[rstest]
    #[case("phi", "phi")]
    #[case("phi:3b", "phi-3b")]
    #[case("registry.example/team/phi:3b-Q4_K", "registry.example-team-phi-3b-Q4_K")]
    #[case(":odd:", "odd")]
    fn names_become_labels(#[case] name: &str, #[case] label: &str) {
        assert_eq!(label_value(name), label);
    }

    #[test]
    fn names_lead_back() {
        for metric in Metric::ALL {
            assert_eq!(Metric::of(metric.name()), Some(metric));
        }
        assert_eq!(Metric::of("up"), None);
    }
}
