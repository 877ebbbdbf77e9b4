//! Reads what a proxy's `/metrics` says. Pure; the text comes from a pod, so nothing in it is believed.

use super::metric::Metric;

/// Values above this are nonsense, and an autoscaler must not see them.
const MOST: f64 = 1e9;
/// A proxy counts a handful of models.
const MOST_SAMPLES: usize = 256;

#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub metric: Metric,
    pub model: String,
    pub value: f64,
}

/// The samples of our metrics; any other line is passed over.
pub fn samples(text: &str) -> Vec<Sample> {
    text.lines().filter_map(sample).take(MOST_SAMPLES).collect()
}

fn sample(line: &str) -> Option<Sample> {
    let (name, rest) = line.split_once('{')?;
    let metric = Metric::of(name)?;
    let (model, rest) = labels(rest)?;
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    (value.is_finite() && (0.0..=MOST).contains(&value)).then_some(Sample { metric, model, value })
}

/// The label `model`, and what comes after the closing bracket.
fn labels(mut rest: &str) -> Option<(String, &str)> {
    let mut model = None;
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((model?, after));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let (value, after) = unquote(quoted)?;
        if name == "model" {
            model = Some(value);
        }
        rest = after;
    }
}

fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const TEXT: &str = r#"# HELP gantry_model_in_flight Requests being worked on.
# TYPE gantry_model_in_flight gauge
gantry_model_in_flight{model="phi:3b"} 1
gantry_model_in_flight{model="other"} 0
gantry_model_queue_depth{model="a\"b}c\\"} 7
gantry_model_requests_per_second{zone="x",model="phi"} 2.5 1700000000
gantry_model_requests_total{model="phi",route="/api/chat",code="2xx"} 9
# EOF
"#;

    #[test]
    fn ours_are_read_and_others_passed_over() {
        let read: Vec<String> = samples(TEXT)
            .into_iter()
            .map(|sample| format!("{} {} {}", sample.metric.name(), sample.model, sample.value))
            .collect();
        assert_eq!(
            read,
            [
                "gantry_model_in_flight phi:3b 1",
                "gantry_model_in_flight other 0",
                "gantry_model_queue_depth a\"b}c\\ 7",
                "gantry_model_requests_per_second phi 2.5",
            ]
        );
    }

    #[rstest]
    #[case("gantry_model_in_flight{model=\"x\"} NaN")]
    #[case("gantry_model_in_flight{model=\"x\"} -1")]
    #[case("gantry_model_in_flight{model=\"x\"} 1e300")]
    #[case("gantry_model_in_flight{model=\"x\"} +Inf")]
    #[case("gantry_model_in_flight{model=\"x} 1")]
    #[case("gantry_model_in_flight{other=\"x\"} 1")]
    #[case("gantry_model_in_flight 1")]
    fn nonsense_is_left_out(#[case] line: &str) {
        assert_eq!(samples(line), []);
    }

    #[test]
    fn there_is_an_end() {
        let text = "gantry_model_in_flight{model=\"x\"} 1\n".repeat(10_000);
        assert_eq!(samples(&text).len(), MOST_SAMPLES);
    }

    proptest! {
        #[test]
        fn rubbish_does_no_harm(text in "(gantry_model_in_flight)?[{}=\"\\\\a-z0-9 \n,]{0,80}") {
            samples(&text);
        }
    }
}
