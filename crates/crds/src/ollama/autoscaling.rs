//! Autoscaling of a Model: the common settings, and what the counting proxy measures.

use crate::common::{Autoscaling, AutoscalingMetric, Fragment, Problem};
use crate::schema::{self, Rule};
use crate::validate::autoscaling_problems;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A HorizontalPodAutoscaler made by Gantry. While it is enabled, `replicas` is left to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(&[crate::common::MIN_MAX, MODEL_FROM_ZERO])))]
pub struct ModelAutoscaling {
    /// Switches the autoscaler off without removing its settings. On when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,

    /// Fewest replicas. 0 needs a metric that lives without pods and a server whose autoscaler can scale to zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = schema::MAX_REPLICAS))]
    pub min_replicas: Option<i32>,

    /// Most replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = schema::MAX_REPLICAS))]
    pub max_replicas: Option<i32>,

    /// Wished-for mean CPU use, in percent of the request. 70 when no metric at all is named.
    #[serde(rename = "targetCPU", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub target_cpu: Option<i32>,

    /// Wished-for mean memory use, in percent of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub target_memory: Option<i32>,

    /// Wished-for requests per second and pod, as the counting proxy sees them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub target_request_rate: Option<Quantity>,

    /// Wished-for waiting requests per pod, as the counting proxy sees them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub target_queue_depth: Option<Quantity>,

    /// Custom metrics, from `custom.metrics.k8s.io` or `external.metrics.k8s.io`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub metrics: Option<Vec<AutoscalingMetric>>,

    /// Scaling speed and stabilisation, as `behavior` of an `autoscaling/v2` HorizontalPodAutoscaler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behavior: Option<Fragment>,
}

const MODEL_FROM_ZERO: Rule = Rule {
    rule: "!has(self.minReplicas) || self.minReplicas > 0 || has(self.targetRequestRate) || \
           has(self.targetQueueDepth) || (has(self.metrics) && size(self.metrics) > 0)",
    message: "minReplicas 0 needs a metric that lives without pods: set targetRequestRate, targetQueueDepth or \
              metrics, or set minReplicas to 1",
};

impl ModelAutoscaling {
    /// Whether an autoscaler is wanted.
    pub fn enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    /// Whether the counting proxy has to measure for it.
    pub fn needs_proxy(&self) -> bool {
        self.target_request_rate.is_some() || self.target_queue_depth.is_some()
    }

    /// The part that all kinds share.
    pub fn common(&self) -> Autoscaling {
        Autoscaling {
            enabled: self.enabled,
            min_replicas: self.min_replicas,
            max_replicas: self.max_replicas,
            target_cpu: self.target_cpu,
            target_memory: self.target_memory,
            metrics: self.metrics.clone(),
            behavior: self.behavior.clone(),
        }
    }

    /// Fewest replicas, 1 when absent.
    pub fn min_replicas(&self) -> i32 {
        self.min_replicas.unwrap_or(1)
    }

    /// Most replicas, 10 when absent.
    pub fn max_replicas(&self) -> i32 {
        self.max_replicas.unwrap_or(Autoscaling::DEFAULT_MAX)
    }

    /// Wished-for CPU percentage: as given, or the default when no metric is named.
    pub fn target_cpu(&self) -> Option<i32> {
        self.target_cpu.or_else(|| {
            if self.needs_proxy() {
                None
            } else {
                self.common().target_cpu()
            }
        })
    }

    pub(super) fn problems(&self, field: &str) -> Vec<Problem> {
        let from_zero = self.min_replicas == Some(0);
        let common = Autoscaling {
            min_replicas: self.min_replicas.filter(|_| !from_zero),
            ..self.common()
        };
        let mut problems = autoscaling_problems(field, Some(&common));
        if from_zero && !self.needs_proxy() && self.metrics.as_ref().is_none_or(Vec::is_empty) {
            problems.push(Problem::new(field, MODEL_FROM_ZERO.message));
        }
        problems
    }
}
