//! What was read from the services, as metrics of the operator's own: for images that serve none, and for the four axes of
//! SR-Ω∞, which are told over REST only.

use std::sync::atomic::AtomicU64;

use gantry_kit::{ObjectKey, metrics::Metrics};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
};

use super::metrics::{AXES, Reading};

pub const NAME: &str = "gantry_penin_score";

/// Not `namespace` and `cluster`: Prometheus has labels of these names for what it scrapes.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    penin_namespace: String,
    penin_cluster: String,
    score: &'static str,
}

#[derive(Clone, Default)]
pub struct Scores {
    family: Family<Labels, Gauge<f64, AtomicU64>>,
}

impl Scores {
    pub fn new(metrics: &Metrics) -> Self {
        let scores = Self::default();
        let help = "Scores of PENIN-Ω clusters, as last read from their services";
        metrics.register(|registry| registry.register(NAME, help, scores.family.clone()));
        scores
    }

    /// What is not known any more is not told any more; all of it where nothing was read.
    pub fn tell(&self, cluster: &ObjectKey, reading: Option<&Reading>) {
        let nothing = Reading::default();
        for (score, value) in of(reading.unwrap_or(&nothing)) {
            let labels = Labels {
                penin_namespace: cluster.namespace.clone(),
                penin_cluster: cluster.name.clone(),
                score,
            };
            match value {
                Some(value) => {
                    self.family.get_or_create(&labels).set(value);
                }
                None => {
                    self.family.remove(&labels);
                }
            }
        }
    }
}

fn of(reading: &Reading) -> impl Iterator<Item = (&'static str, Option<f64>)> {
    let metrics = &reading.metrics;
    let scores = [
        ("alpha", metrics.alpha),
        ("delta_linf", metrics.delta_linf),
        ("caos_plus", metrics.caos_plus),
        ("sr_score", metrics.sr_score),
    ];
    let axes = reading.axes.unwrap_or_default();
    let axes = AXES
        .into_iter()
        .zip(axes)
        .map(|((score, _), value)| (score, value));
    scores.into_iter().chain(axes)
}

#[cfg(test)]
mod tests {
    use gantry_crds::penin::ClusterMetrics;

    use super::*;

    #[test]
    fn what_is_known_is_told_and_no_more() {
        let metrics = Metrics::default();
        let scores = Scores::new(&metrics);
        let key = ObjectKey::new("ns", "demo");
        let mut reading = Reading {
            metrics: ClusterMetrics {
                caos_plus: Some(1.5),
                ..ClusterMetrics::default()
            },
            axes: Some([Some(0.9), Some(1.0), None, Some(0.7)]),
            silent: Vec::new(),
        };
        scores.tell(&key, Some(&reading));
        let line = |score: &str, value: &str| {
            format!("{NAME}{{penin_namespace=\"ns\",penin_cluster=\"demo\",score=\"{score}\"}} {value}\n")
        };
        let told = metrics.render();
        for expected in [
            line("caos_plus", "1.5"),
            line("sr_awareness", "0.9"),
            line("sr_ethics", "1.0"),
        ] {
            assert!(told.contains(&expected), "{expected} not in {told}");
        }
        assert!(!told.contains("alpha") && !told.contains("sr_autocorrection"));
        reading.axes = None;
        scores.tell(&key, Some(&reading));
        let told = metrics.render();
        assert!(!told.contains("sr_awareness") && told.contains(&line("caos_plus", "1.5")));
        scores.tell(&key, None);
        assert!(!metrics.render().contains("demo"));
    }
}
