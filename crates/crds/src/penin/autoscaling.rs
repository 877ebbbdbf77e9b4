//! Autoscaling of the services: `autoScaling`.

use super::{PerService, Service};
use crate::common::{AutoscalingMetric, Problem};
use crate::schema::{self, Rule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A HorizontalPodAutoscaler per service. While it is enabled, `replicas` of the service is left to it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = all_rules()))]
pub struct AutoScaling {
    /// Switches the autoscalers off without removing their settings. On when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,

    /// Fewest pods of a service.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = schema::MAX_REPLICAS), extend("default" = 2))]
    pub min_replicas: Option<i32>,

    /// Most pods of a service.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = schema::MAX_REPLICAS), extend("default" = 10))]
    pub max_replicas: Option<i32>,

    /// Wished-for mean CPU use, in percent of the request.
    #[serde(rename = "targetCPU", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000), extend("default" = 70))]
    pub target_cpu: Option<i32>,

    /// Wished-for mean memory use, in percent of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000), extend("default" = 80))]
    pub target_memory: Option<i32>,

    /// What is different for single services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub services: Option<PerService<ServiceAutoScaling>>,
}

/// What is different for one service; everything absent is as for all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceAutoScaling {
    /// Whether this service has an autoscaler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,

    /// Fewest pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = schema::MAX_REPLICAS))]
    pub min_replicas: Option<i32>,

    /// Most pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = schema::MAX_REPLICAS))]
    pub max_replicas: Option<i32>,

    /// Wished-for mean CPU use, in percent of the request.
    #[serde(rename = "targetCPU", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub target_cpu: Option<i32>,

    /// Wished-for mean memory use, in percent of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub target_memory: Option<i32>,

    /// Custom metrics that this service follows as well, such as those of SR-Ω∞, from `custom.metrics.k8s.io` or
    /// `external.metrics.k8s.io`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub metrics: Option<Vec<AutoscalingMetric>>,
}

/// Settings of one service's autoscaler, with everything filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct EffectiveAutoScaling {
    pub min_replicas: i32,
    pub max_replicas: i32,
    pub target_cpu: i32,
    pub target_memory: i32,
    pub metrics: Vec<AutoscalingMetric>,
}

const MIN_MAX: Rule = Rule {
    rule: "(has(self.minReplicas) ? self.minReplicas : 2) <= (has(self.maxReplicas) ? self.maxReplicas : 10)",
    message: "minReplicas (2 when absent) must not be greater than maxReplicas (10 when absent): lower the one or \
              raise the other",
};

/// The same for one service, with what it inherits.
macro_rules! service_min_max {
    ($key:literal) => {
        Rule {
            rule: concat!(
                "!has(self.services) || !has(self.services.",
                $key,
                ") || (has(self.services.",
                $key,
                ".minReplicas) ? self.services.",
                $key,
                ".minReplicas : has(self.minReplicas) ? self.minReplicas : 2) <= (has(self.services.",
                $key,
                ".maxReplicas) ? self.services.",
                $key,
                ".maxReplicas : has(self.maxReplicas) ? self.maxReplicas : 10)"
            ),
            message: concat!(
                "minReplicas of ",
                $key,
                " must not be greater than its maxReplicas: lower the one or raise the other, for this service or for all"
            ),
        }
    };
}

const SERVICE_MIN_MAX: [(Service, Rule); 4] = [
    (Service::OmegaMeta, service_min_max!("omegaMeta")),
    (Service::SigmaGuard, service_min_max!("sigmaGuard")),
    (Service::SrOmegaInfinity, service_min_max!("srOmegaInfinity")),
    (Service::AcfaLeague, service_min_max!("acfaLeague")),
];

fn all_rules() -> serde_json::Value {
    let mut rules = vec![MIN_MAX];
    rules.extend(SERVICE_MIN_MAX.map(|(_, rule)| rule));
    schema::rules(&rules)
}

impl AutoScaling {
    /// The autoscaler of a service, when one is wanted.
    pub fn of(&self, service: Service) -> Option<EffectiveAutoScaling> {
        let own = self.own(service).and_then(|o| o.enabled);
        own.or(self.enabled)
            .unwrap_or(true)
            .then(|| self.effective(service))
    }

    fn own(&self, service: Service) -> Option<&ServiceAutoScaling> {
        self.services.as_ref().and_then(|s| s.get(service))
    }

    fn effective(&self, service: Service) -> EffectiveAutoScaling {
        let own = self.own(service);
        EffectiveAutoScaling {
            min_replicas: own
                .and_then(|o| o.min_replicas)
                .or(self.min_replicas)
                .unwrap_or(2),
            max_replicas: own
                .and_then(|o| o.max_replicas)
                .or(self.max_replicas)
                .unwrap_or(10),
            target_cpu: own.and_then(|o| o.target_cpu).or(self.target_cpu).unwrap_or(70),
            target_memory: own
                .and_then(|o| o.target_memory)
                .or(self.target_memory)
                .unwrap_or(80),
            metrics: own.and_then(|o| o.metrics.clone()).unwrap_or_default(),
        }
    }

    pub(super) fn problems(&self, field: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.min_replicas.unwrap_or(2) > self.max_replicas.unwrap_or(10) {
            problems.push(Problem::new(field, MIN_MAX.message));
        }
        for (service, rule) in SERVICE_MIN_MAX {
            let effective = self.effective(service);
            if self.own(service).is_some() && effective.min_replicas > effective.max_replicas {
                problems.push(Problem::new(field, rule.message));
            }
            for (index, metric) in effective.metrics.iter().enumerate() {
                let field = format!("{field}.services.{}.metrics[{index}]", service.key());
                problems.extend(metric.problems(&field));
            }
        }
        problems
    }
}
