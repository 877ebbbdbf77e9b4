//! Whether a change did good: medians before and after, a threshold, and a band that is noise.

use gantry_crds::penin::{Direction, Readings, Verdict};

/// What the numbers say.
#[derive(Clone, Debug, PartialEq)]
pub enum Judgement {
    /// Better by more than noise, and by no less than the threshold.
    Better,
    /// Worse by more than noise.
    Worse,
    /// Neither, or too few readings; with the cause.
    Unclear(String),
}

/// Sums readings up; what is no finite number is left out. Rounded, so that a status does not show seventeen digits.
pub fn summary(samples: &[f64]) -> Readings {
    let mut sorted: Vec<f64> = samples
        .iter()
        .copied()
        .filter(|value| value.is_finite())
        .collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let median = if sorted.len() % 2 == 1 {
        sorted.get(middle).copied()
    } else {
        middle
            .checked_sub(1)
            .and_then(|low| Some(f64::midpoint(*sorted.get(low)?, *sorted.get(middle)?)))
    };
    Readings {
        samples: Some(i32::try_from(sorted.len()).unwrap_or(i32::MAX)),
        median: median.map(rounded),
        least: sorted.first().copied().map(rounded),
        greatest: sorted.last().copied().map(rounded),
    }
}

fn rounded(value: f64) -> f64 {
    let factor = 1e9;
    if value.abs() < 1e6 {
        (value * factor).round() / factor
    } else {
        value
    }
}

/// Whether two summaries are the same one: a fraction that went through a server may come back a hair off.
pub fn same(one: &Readings, other: &Readings) -> bool {
    let near = match (one.median, other.median) {
        (Some(one), Some(other)) => (one - other).abs() <= 1e-9 * one.abs().max(1.0),
        (one, other) => one.is_none() && other.is_none(),
    };
    near && one.samples == other.samples
}

/// How much better the second is than the first, and what that means.
pub fn judge(rule: &Verdict, before: &Readings, after: &Readings) -> (Option<f64>, Judgement) {
    let needed = rule.min_samples();
    for (when, readings) in [("before", before), ("after", after)] {
        let found = readings.samples.unwrap_or(0);
        if found < needed {
            let cause = format!("{found} readings {when} the change, {needed} are needed");
            return (None, Judgement::Unclear(cause));
        }
    }
    let (Some(before), Some(after)) = (before.median, after.median) else {
        return (None, Judgement::Unclear("nothing was measured".to_owned()));
    };
    let gain = rounded(match rule.direction() {
        Direction::Increase => after - before,
        Direction::Decrease => before - after,
    });
    let noise = rule.noise_band.unwrap_or(0.0);
    let threshold = rule.threshold.unwrap_or(0.0);
    let judgement = if gain < -noise {
        Judgement::Worse
    } else if gain > noise && gain >= threshold {
        Judgement::Better
    } else if gain > noise {
        Judgement::Unclear(format!("better by {gain}, but {threshold} is asked for"))
    } else {
        Judgement::Unclear(format!("a difference of {gain} is noise (band {noise})"))
    };
    (Some(gain), judgement)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::none(&[], None)]
    #[case::one(&[2.0], Some(2.0))]
    #[case::odd(&[3.0, 1.0, 2.0], Some(2.0))]
    #[case::even(&[4.0, 1.0, 2.0, 3.0], Some(2.5))]
    #[case::an_outlier_does_not_count(&[1.0, 1.0, 1.0, 1.0, 1e12], Some(1.0))]
    #[case::what_is_no_number_is_left_out(&[f64::NAN, 1.0, f64::INFINITY], Some(1.0))]
    fn the_median(#[case] samples: &[f64], #[case] expected: Option<f64>) {
        assert_eq!(summary(samples).median, expected);
    }

    #[test]
    fn a_hair_makes_no_other_summary() {
        let one = summary(&[0.7, 0.7]);
        let mut other = one.clone();
        other.median = Some(0.7 + f64::EPSILON);
        assert!(same(&one, &other));
        assert!(!same(&one, &summary(&[0.7])));
        assert!(!same(&one, &summary(&[0.7, 0.8])));
    }

    fn rule(threshold: f64, noise: f64, direction: Direction) -> Verdict {
        Verdict {
            threshold: Some(threshold),
            noise_band: Some(noise),
            direction: Some(direction),
            min_samples: Some(2),
            ..Verdict::default()
        }
    }

    fn unclear() -> Judgement {
        Judgement::Unclear(String::new())
    }

    #[rstest]
    #[case::better(0.0, 0.0, Direction::Increase, 1.0, 1.5, Judgement::Better)]
    #[case::worse(0.0, 0.0, Direction::Increase, 1.5, 1.0, Judgement::Worse)]
    #[case::less_is_better(0.0, 0.0, Direction::Decrease, 1.5, 1.0, Judgement::Better)]
    #[case::more_is_worse(0.0, 0.0, Direction::Decrease, 1.0, 1.5, Judgement::Worse)]
    #[case::the_same(0.0, 0.0, Direction::Increase, 1.0, 1.0, unclear())]
    #[case::inside_the_band(0.0, 0.5, Direction::Increase, 1.0, 1.5, unclear())]
    #[case::inside_the_band_below(0.0, 0.5, Direction::Increase, 1.5, 1.0, unclear())]
    #[case::beyond_the_band(0.0, 0.5, Direction::Increase, 1.0, 1.75, Judgement::Better)]
    #[case::worse_beyond_the_band(0.0, 0.5, Direction::Increase, 1.75, 1.0, Judgement::Worse)]
    #[case::at_the_threshold(0.5, 0.25, Direction::Increase, 1.0, 1.5, Judgement::Better)]
    #[case::below_the_threshold(0.5, 0.25, Direction::Increase, 1.0, 1.375, unclear())]
    fn medians_are_compared(
        #[case] threshold: f64,
        #[case] noise: f64,
        #[case] direction: Direction,
        #[case] before: f64,
        #[case] after: f64,
        #[case] expected: Judgement,
    ) {
        let (gain, found) = judge(
            &rule(threshold, noise, direction),
            &summary(&[before; 3]),
            &summary(&[after; 3]),
        );
        assert!(gain.is_some());
        assert_eq!(
            std::mem::discriminant(&found),
            std::mem::discriminant(&expected),
            "{found:?}"
        );
    }

    #[rstest]
    #[case::before(1, 5, "1 readings before")]
    #[case::after(5, 1, "1 readings after")]
    #[case::never(0, 0, "0 readings before")]
    fn too_few_readings_prove_nothing(#[case] before: usize, #[case] after: usize, #[case] cause: &str) {
        let (gain, found) = judge(
            &rule(0.0, 0.0, Direction::Increase),
            &summary(&vec![1.0; before]),
            &summary(&vec![9.0; after]),
        );
        assert_eq!(gain, None);
        assert!(
            matches!(&found, Judgement::Unclear(text) if text.starts_with(cause)),
            "{found:?}"
        );
    }
}
