//! Whether a user may see a metric: the API server is asked, as for any resource of its own.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::{Api, Client, api::PostParams};

use super::{
    fresh::Fresh,
    front::User,
    metric::Metric,
    path::{Refusal, Values, Version},
};

/// As long as the API server itself remembers such answers.
const LIFE: Duration = Duration::from_secs(10);
const DEADLINE: Duration = Duration::from_secs(5);

/// All that the answer depends on.
type Key = (User, &'static str, String, Option<String>, Metric);

pub struct Access {
    client: Client,
    answers: Fresh<Key, Result<bool, String>>,
}

impl Access {
    pub fn new(client: Client) -> Self {
        Self {
            client,
            answers: Fresh::new(LIFE, 1024),
        }
    }

    pub async fn check(&self, user: User, values: &Values) -> Result<(), Refusal> {
        let name = user.name.clone();
        let attributes = attributes(values);
        let key = (
            user.clone(),
            values.version.group(),
            values.namespace.clone(),
            values.pod.clone(),
            values.metric,
        );
        let answer = self.answers.get(key, self.ask(user, attributes)).await;
        match answer {
            Ok(true) => Ok(()),
            Ok(false) => Err(Refusal::new(
                403,
                "Forbidden",
                format!(
                    "{name:?} may not get {} of {} in namespace {:?}",
                    values.metric.name(),
                    values.version.group(),
                    values.namespace
                ),
            )),
            Err(why) => Err(Refusal::new(
                503,
                "ServiceUnavailable",
                format!("failed to ask whether {name:?} may see this: {why}"),
            )),
        }
    }

    async fn ask(&self, user: User, attributes: ResourceAttributes) -> Result<bool, String> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name),
                groups: Some(user.groups),
                extra: Some(user.extra.into_iter().collect()),
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        match tokio::time::timeout(DEADLINE, api.create(&PostParams::default(), &review)).await {
            Ok(Ok(answered)) => Ok(answered.status.is_some_and(|status| status.allowed)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("no answer in time".to_owned()),
        }
    }
}

/// As the API server sees the same request.
fn attributes(values: &Values) -> ResourceAttributes {
    let common = ResourceAttributes {
        group: Some(values.version.group().to_owned()),
        version: Some(values.version.version().to_owned()),
        namespace: Some(values.namespace.clone()),
        ..ResourceAttributes::default()
    };
    if values.version == Version::External1 {
        ResourceAttributes {
            resource: Some(values.metric.name().to_owned()),
            verb: Some("list".to_owned()),
            ..common
        }
    } else {
        ResourceAttributes {
            resource: Some("pods".to_owned()),
            subresource: Some(values.metric.name().to_owned()),
            name: Some(values.pod.clone().unwrap_or_else(|| "*".to_owned())),
            verb: Some("get".to_owned()),
            ..common
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics_api::path::{Question, question};

    #[test]
    fn the_question_is_the_one_the_api_server_asked_before() {
        let read = |path: &str| match question(path, None) {
            Ok(Question::Values(values)) => attributes(&values),
            other => panic!("{other:?}"),
        };
        let external = read("/apis/external.metrics.k8s.io/v1beta1/namespaces/team/gantry_model_queue_depth");
        assert_eq!(external.resource.as_deref(), Some("gantry_model_queue_depth"));
        assert_eq!(external.verb.as_deref(), Some("list"));
        let custom =
            read("/apis/custom.metrics.k8s.io/v1beta2/namespaces/team/pods/*/gantry_model_queue_depth");
        assert_eq!(custom.resource.as_deref(), Some("pods"));
        assert_eq!(custom.subresource.as_deref(), Some("gantry_model_queue_depth"));
        assert_eq!(
            (custom.verb.as_deref(), custom.name.as_deref()),
            (Some("get"), Some("*"))
        );
    }
}
